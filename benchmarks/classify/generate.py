"""Write a log like that of a busy stock engine: mostly access lines, the two periodic lines, now and then a warning.

usage: generate.py FILE SIZE_MB [--role prefill|decode] [--debug]

Per 10 s of log time: 60 to 200 completions (uvicorn access lines, through the API server's wrapped stream as up to
0.30), 2 health checks and a scrape, one `Engine 000:` and one `KV Transfer metrics:` line, on decode one benign TTL
release for every 20th completion, on prefill a declined read (4 lines) for every 2000th. `--debug` adds the DEBUG
lines that vLLM prints per request. Seeded: the same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

API = "(APIServer pid=3208) "
CORE = "(EngineCore pid=5893) "


def lines(role: str, rng: random.Random, *, debug: bool) -> Iterator[str]:
    """Yield lines without end."""
    yield from start_up(role)
    second = 0
    while True:
        second += 10
        stamp = f"{10 + second // 2592000 % 3:02d}-{1 + second // 86400 % 28:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        for _ in range(rng.randint(60, 200)):
            yield from request(role, stamp, rng, debug=debug)
        yield f'{API}INFO:     198.51.100.2:{rng.randint(30000, 60000)} - "GET /metrics HTTP/1.1" 200 OK'
        yield f'{API}INFO:     198.51.100.3:{rng.randint(30000, 60000)} - "GET /health HTTP/1.1" 200 OK'
        yield from periodic(role, stamp, rng)


def start_up(role: str) -> Iterator[str]:
    """Yield what tells a reader whose log this is."""
    kv_role = "kv_producer" if role == "prefill" else "kv_consumer"
    yield f"{API}INFO 10-01 00:00:00 [api_utils.py:347]  #  version 0.33.0"
    yield (
        f"{API}INFO 10-01 00:00:00 [api_utils.py:286] non-default args: {{'port': 8200, 'kv_transfer_config': "
        f"KVTransferConfig(kv_connector='NixlConnector', engine_id='7d2cd0e6-3b0b-4084-8d58-24cbf5f95022', kv_role='{kv_role}', "
        "kv_connector_extra_config={'kv_recompute_threshold': 64, 'bidirectional_kv_xfer': True, 'decoder_kv_blocks_ttl': 480})}"
    )
    yield "INFO:     Application startup complete."


def request(role: str, stamp: str, rng: random.Random, *, debug: bool) -> Iterator[str]:
    name = f"chatcmpl-{uuid.UUID(int=rng.getrandbits(128))}-{rng.getrandbits(32):08x}"
    if debug:
        yield (
            f"{CORE}DEBUG {stamp} [distributed/.../nixl/pull_scheduler.py:52] NIXLConnector get_num_new_matched_tokens: "
            f"num_computed_tokens={rng.randint(0, 4000)}, kv_transfer_params={{'do_remote_decode': True, 'do_remote_prefill': False, "
            "'remote_engine_id': None, 'remote_block_ids': None, 'remote_host': None, 'remote_port': None}"
        )
    if role == "decode" and rng.random() < 0.05:
        yield (
            f"{CORE}WARNING {stamp} [base_worker.py:3370] Releasing expired KV blocks for request {name} which were "
            "retrieved by 0 remote worker(s) before lease expired."
        )
    if role == "prefill" and rng.random() < 0.0005:
        yield f"{CORE}WARNING {stamp} [pull_worker.py:161] Declining expired remote read for {name} from engine 1f44d83f-b329-433c-90fc-ce825e1a9077."
        yield f"{CORE}WARNING {stamp} [base_worker.py:3253] Skipping KV post-processing for failed request {name}"
        yield f"{API}ERROR {stamp} [serving.py:203] Request {name[:-9]} failed with an internal error during generation"
        yield f'{API}INFO:     203.0.113.77:{rng.randint(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    yield f'{API}INFO:     203.0.113.{rng.randint(1, 250)}:{rng.randint(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def periodic(role: str, stamp: str, rng: random.Random) -> Iterator[str]:
    prompt, generation = (rng.uniform(900, 4000), 0.4) if role == "prefill" else (0.0, rng.uniform(300, 900))
    yield (
        f"{API}INFO {stamp} [loggers.py:335] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
        f"{generation:.1f} tokens/s, Running: {rng.randint(1, 9)} reqs, Waiting: 0 reqs, GPU KV cache usage: {rng.uniform(2, 40):.1f}%, "
        f"Prefix cache hit rate: {rng.uniform(20, 70):.1f}%, External prefix cache hit rate: {rng.uniform(5, 100):.1f}%"
    )
    yield (
        f"{API}INFO {stamp} [metrics.py:103] KV Transfer metrics: Num successful transfers={rng.randint(1, 99)}, Avg xfer time (ms)="
        f"{rng.uniform(9, 30):.3f}, P90 xfer time (ms)=31.0, Avg post time (ms)=1.2, P90 post time (ms)=1.4, Avg MB per transfer=96.5, "
        "Throughput (MB/s)=4308.0, Avg number of descriptors=128.0, Num failed transfers=0, Num KV expired reqs=0, Num notifs after expiry=0"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("size_mb", type=int)
    parser.add_argument("--role", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args()
    rng = random.Random(20261114)
    written, wanted = 0, options.size_mb * 1_000_000
    source = lines(options.role, rng, debug=options.debug)
    with options.file.open("w", encoding="utf-8") as out:
        while written < wanted:
            written += out.write(next(source) + "\n")


if __name__ == "__main__":
    main()
