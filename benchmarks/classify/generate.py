"""Write a log like that of a busy deployment.

usage: generate.py FILE SIZE_MB [--kind prefill|decode|debug|json|turns|events|proxy]

`prefill`, `decode`: a stock engine. Per 10 s of log time 60 to 200 completions (uvicorn access lines, through the API
server's wrapped stream as up to 0.30), 2 health checks and a scrape, one `Engine 000:` and one `KV Transfer metrics:`
line, on decode one benign TTL release for every 20th completion, on prefill a declined read (4 lines) for every 2000th.
`debug` adds the DEBUG lines that vLLM prints per request, `json` keeps the lines as Docker's json-file driver does.
`turns` is our router's turn log, one turn in 200 not reused; `events` our connector's event log; `proxy` the log of
vLLM's multi-turn example proxy. Seeded: the same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        yield from debugged(name, stamp, rng)
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


def debugged(name: str, stamp: str, rng: random.Random) -> Iterator[str]:
    """Yield what prefill prints at DEBUG about a request that reads back: match, allocation, read, retention."""
    where = f"{CORE}DEBUG {stamp} [distributed/.../nixl/"
    remote = (
        f"'remote_engine_id': '1f44d83f-b329-433c-90fc-ce825e1a9077', 'remote_block_ids': [{list(range(100, 140))}], "
        f"'remote_request_id': 'chatcmpl-{rng.getrandbits(64):016x}', 'remote_host': '198.51.100.34', 'remote_port': 5600, "
        "'remote_num_tokens': 2600"
        if rng.random() < 0.8
        else "'remote_engine_id': None, 'remote_block_ids': None, 'remote_host': None, 'remote_port': None"
    )
    params = f"{{'do_remote_decode': True, 'do_remote_prefill': False, {remote}}}"
    local = rng.randint(0, 2000)
    yield f"{where}pull_scheduler.py:52] NIXLConnector get_num_new_matched_tokens: num_computed_tokens={local}, kv_transfer_params={params}"
    yield f"{where}base_scheduler.py:301] NIXLConnector update_state_after_alloc: num_external_tokens={2600 - local}, kv_transfer_params={params}"
    yield f"{where}pull_worker.py:170] start_load_kv for request {name} from remote engine 1f44d83f-b329-433c-90fc-ce825e1a9077. Num local_block_ids: 40. Num remote_block_ids: 40. "
    yield f"{where}base_worker.py:3110] Finished recving KV transfer for request {name}"
    yield f"{where}base_scheduler.py:402] NIXLConnector request_finished({name}) waiting for 30 seconds before releasing blocks"


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


def turn_records(rng: random.Random) -> Iterator[str]:
    """Yield our router's turn log: agents with up to 40 turns, one turn in 200 not reused."""
    number = 0
    while True:
        number += 1
        turn = 1 + number % 40
        yield encode(turn_record(rng, number, turn))


def turn_record(rng: random.Random, number: int, turn: int) -> TurnRecord:
    lost = rng.random() < 0.005 and turn > 1
    prompt = 1500 + 700 * turn
    return TurnRecord(
        ts=f"2026-10-{1 + number // 400000 % 28:02d}T{number // 20000 % 24:02d}:{number // 300 % 60:02d}:{number // 5 % 60:02d}.{number % 1000:03d}Z",
        request_id=str(uuid.UUID(int=rng.getrandbits(128))),
        conversation=f"{number // 40:012x}",
        turn=turn,
        model="Qwen/Qwen3-32B",
        stream=True,
        prefill="198.51.100.21:8100",
        decode="198.51.100.34:8200",
        lookup="first_turn" if turn == 1 else "hit",
        handle_age_s=None if turn == 1 else round(rng.uniform(2, 60), 3),
        gap_s=None if turn == 1 else round(rng.uniform(2, 60), 3),
        prompt_tokens=prompt,
        local_tokens=0,
        remote_tokens=0 if turn == 1 or lost else prompt - 700,
        computed_tokens=prompt if turn == 1 or lost else 700,
        lost_tokens=prompt - 700 if lost else 0,
        router_s=round(rng.uniform(0.0005, 0.002), 6),
        queue_s=round(rng.uniform(0.001, 0.01), 6),
        read_s=round(rng.uniform(0.01, 0.05), 6),
        prefill_s=round(rng.uniform(0.9, 1.2) if lost else rng.uniform(0.15, 0.3), 6),
        ttft_s=round(rng.uniform(1.0, 1.4) if lost else rng.uniform(0.2, 0.4), 6),
        total_s=round(rng.uniform(2, 20), 6),
        status=200,
        cause="expired_remote_read" if lost else "first_turn" if turn == 1 else "remote_hit",
        detail="declined" if lost else None,
    )


def events(rng: random.Random) -> Iterator[str]:
    """Yield the connector's event log of a prefill: a match and a read a turn, and what it holds for decode."""
    number = 0
    while True:
        number += 1
        ids: dict[str, Any] = {
            "ts": f"2026-10-01T{number // 20000 % 24:02d}:{number // 300 % 60:02d}:{number // 5 % 60:02d}.{number % 1000:03d}Z",
            "request_id": f"chatcmpl-{uuid.UUID(int=rng.getrandbits(128))}-{rng.getrandbits(32):08x}",
            "role": "prefill",
            "engine_id": "7d2cd0e6-3b0b-4084-8d58-24cbf5f95022",
            "conversation": f"{number // 40:012x}",
            "turn": 1 + number % 40,
        }
        read: dict[str, Any] = {
            "direction": "decode_to_prefill",
            "remote_request_id": f"chatcmpl-{rng.getrandbits(64):016x}",
        }
        held: dict[str, Any] = {"direction": "prefill_to_decode", "blocks": 90, "bytes": 94371840}
        yield encode(
            KvEvent(
                kind="match",
                cause="remote_hit",
                tokens=2300,
                local_tokens=0,
                prompt_tokens=3000,
                queue_s=0.004,
                **ids,
                **read,
            )
        )
        yield encode(
            KvEvent(
                kind="transfer",
                bytes=150732800,
                seconds=0.021,
                post_seconds=0.001,
                descriptors=144,
                wait_s=0.03,
                **ids,
                **read,
            )
        )
        yield encode(KvEvent(kind="retain", **ids, **held))
        yield encode(KvEvent(kind="release", release="read", seconds=0.08, **ids, **held))


def encode(record: TurnRecord | KvEvent) -> str:
    return msgspec.json.encode(record).decode()


def proxy(rng: random.Random) -> Iterator[str]:
    """Yield the log of vLLM's multi-turn example proxy: agents that take turns, nearly all of them hits."""
    handles: dict[int, str] = {}
    number = 0
    while True:
        number += 1
        agent = rng.randrange(400) + number // 16000 * 400
        name, second = str(uuid.UUID(int=rng.getrandbits(128))), number // 5
        at = f"2026-10-{1 + second // 86400 % 28:02d} {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d} [INFO]"
        if handle := handles.get(agent):
            yield f"{at} disagg_proxy: conv=agent-{agent}: cache HIT (age={rng.uniform(2, 60):.1f}s)"
            yield f"{at} disagg_proxy: [{name}] conv=agent-{agent}: sending D's cached blocks to P (remote_request_id={handle})"
        else:
            yield f"{at} disagg_proxy: [{name}] conv=agent-{agent}: cache MISS"
        yield f'{at} httpx: HTTP Request: POST http://198.51.100.21:8100/v1/chat/completions "HTTP/1.1 200 OK"'
        yield f"{at} disagg_proxy: [{name}] Prefill done in {rng.randint(150, 300)}ms"
        yield f'{at} httpx: HTTP Request: POST http://198.51.100.34:8200/v1/chat/completions "HTTP/1.1 200 OK"'
        yield f'INFO:     203.0.113.{rng.randint(1, 250)}:{rng.randint(30000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        handles[agent] = f"chatcmpl-{name}-{rng.getrandbits(32):08x}"
        yield f"{at} disagg_proxy: conv=agent-{agent}: cached D blocks (remote_request_id={handles[agent]}, blocks={rng.randint(80, 400)})"


def in_json(source: Iterator[str]) -> Iterator[str]:
    """Yield the lines as Docker's json-file driver keeps them."""
    for number, line in enumerate(source):
        at = f"2026-10-01T{number // 36000 % 24:02d}:{number // 600 % 60:02d}:{number // 10 % 60:02d}.{number % 10}00000000Z"
        yield json.dumps({"log": line + "\n", "stream": "stdout", "time": at}, separators=(",", ":"))


SOURCES: Final[dict[str, Callable[[random.Random], Iterator[str]]]] = {
    "prefill": lambda rng: lines("prefill", rng, debug=False),
    "decode": lambda rng: lines("decode", rng, debug=False),
    "debug": lambda rng: lines("prefill", rng, debug=True),
    "json": lambda rng: in_json(lines("prefill", rng, debug=False)),
    "turns": turn_records,
    "events": events,
    "proxy": proxy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("size_mb", type=int)
    parser.add_argument("--kind", choices=tuple(SOURCES), default="prefill")
    options = parser.parse_args()
    written, wanted = 0, options.size_mb * 1_000_000
    source = SOURCES[options.kind](random.Random(20261114))
    with options.file.open("w", encoding="utf-8") as out:
        while written < wanted:
            written += out.write("\n".join(islice(source, 1000)) + "\n")


if __name__ == "__main__":
    main()
