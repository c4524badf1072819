"""Mock prefill (P) and decode (D) servers for router benchmarks.

One uvloop process serves both roles on two loopback ports, so that the mocks
cost one context, not two.  P answers a JSON body with kv_transfer_params;
D streams N SSE chunks (or one JSON body when "stream" is not true) and puts
kv_transfer_params on its last chunk, as vLLM's NixlConnector does.

Runtime settings are changed with GET /_set?chunks=50&delay_ms=5&..., and read
back with GET /_stats.  Any other GET answers 200 (health, models).
"""

import argparse
import asyncio
import json
import random
import socket
import sys
from urllib.parse import parse_qsl, urlsplit

import httptools
import uvloop

CFG = {
    "chunks": 50,  # SSE content chunks per stream
    "delay_ms": 5.0,  # time between chunks; 0: back to back, one write each
    "jitter": 0.6,  # relative width of the random part of delay_ms
    "prefill_ms": 0.0,  # P's think time
    "first_ms": 0.0,  # D's time to the first chunk
    "coalesce": 0,  # 1: the whole stream in a single write
    "block": 16,  # tokens per KV block (sizes remote_block_ids)
    "bytes_per_token": 4,
    "die_after": 0,  # D drops the connection after this many chunks
    "p_status": 200,
    "d_status": 200,
}
STATS = {"p": 0, "d": 0, "d_with_kv": 0, "p_with_kv": 0, "aborted": 0}

STREAM = b'"stream":true', b'"stream": true'
ID = "chatcmpl-5f0c6a2e9d9a4c7e8b1d3f2a4c6e8f00"
HEAD_JSON = b"HTTP/1.1 %d OK\r\nserver: mock\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
HEAD_SSE = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; "
    b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def kv_params(nblocks, role):
    prefill = role == "p"
    return {
        "do_remote_prefill": prefill,
        "do_remote_decode": not prefill,
        "remote_block_ids": [list(range(1000, 1000 + nblocks))],
        "remote_engine_id": "0b9e0d6a-6a54-4d4f-9e07-3a5a3d7a2f11",
        "remote_request_id": ID + "-0",
        "remote_host": "127.0.0.1",
        "remote_port": 5600 if prefill else 5601,
        "tp_size": 1,
        "remote_num_tokens": nblocks * CFG["block"],
        "remote_blocks_expiry_time": None if prefill else 1e6,
    }


def frame(payload):
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def sse(obj):
    return b"data: " + json.dumps(obj, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta, finish=None, **extra):
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": 1764440000,
        "model": "tiny",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}],
        **extra,
    }


CONTENT = frame(sse(chunk({"content": " token"})))
FIRST = frame(sse(chunk({"role": "assistant", "content": ""})))
DONE = frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_last, _json = {}, {}


def last_frames(nblocks):
    if nblocks not in _last:
        _last[nblocks] = frame(sse(chunk({"content": ""}, "stop", kv_transfer_params=kv_params(nblocks, "d")))) + DONE
    return _last[nblocks]


def json_answer(nblocks, role):
    key = nblocks, role
    if key not in _json:
        body = json.dumps(
            {
                "id": ID,
                "object": "chat.completion",
                "created": 1764440000,
                "model": "tiny",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": " token"},
                        "finish_reason": "length" if role == "p" else "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": nblocks * CFG["block"],
                    "completion_tokens": 1,
                    "total_tokens": nblocks * CFG["block"] + 1,
                },
                "kv_transfer_params": kv_params(nblocks, role),
            },
            separators=(",", ":"),
        ).encode()
        _json[key] = HEAD_JSON % (200, len(body)) + body
    return _json[key]


class Mock(asyncio.Protocol):
    def __init__(self, role):
        self.role = role
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport):
        self.t = transport
        self.closed = False
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parser = httptools.HttpRequestParser(self)
        self.body = []

    def connection_lost(self, exc):
        self.closed = True

    def data_received(self, data):
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.t.close()

    def on_url(self, url):
        self.url = url

    def on_body(self, data):
        self.body.append(data)

    def on_message_complete(self):
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body = []
        if self.parser.get_method() != b"POST":
            return self.on_get()
        n = max(1, len(body) // CFG["bytes_per_token"] // CFG["block"])
        ends = body[:400] + body[-400:]
        STATS[self.role] += 1
        if b'"remote_engine_id":"0b9e' in body or b'"remote_engine_id": "0b9e' in body:
            STATS[self.role + "_with_kv"] += 1
        if CFG[self.role + "_status"] != 200:
            err = b'{"error":{"message":"mock failure","type":"server_error","code":500}}'
            self.t.write(HEAD_JSON % (CFG[self.role + "_status"], len(err)) + err)
        elif self.role == "p":
            self.later(CFG["prefill_ms"], self.t.write, json_answer(n, "p"))
        elif any(s in where for where in (ends, body) for s in STREAM):
            self.left, self.n = CFG["chunks"], n
            if CFG["coalesce"]:
                self.t.write(HEAD_SSE + FIRST + CONTENT * self.left + last_frames(n))
            else:
                self.later(CFG["first_ms"], self.start)
        else:
            self.later(CFG["delay_ms"] * CFG["chunks"], self.t.write, json_answer(n, "d"))

    def later(self, ms, fn, *a):
        if ms:
            self.loop.call_later(ms / 1e3, fn, *a)
        else:
            fn(*a)

    def start(self):
        self.t.write(HEAD_SSE + FIRST)
        self.tick_later()

    def tick_later(self):
        d = CFG["delay_ms"]
        if d:
            # jitter, so that streams do not fall into step
            d *= 1 + CFG["jitter"] * (random.random() - 0.5)
            self.loop.call_later(d / 1e3, self.tick)
        else:
            self.loop.call_soon(self.tick)

    def tick(self):
        if self.closed:
            STATS["aborted"] += 1
            return
        if CFG["die_after"] and CFG["chunks"] - self.left >= CFG["die_after"]:
            return self.t.abort()
        if self.left:
            self.left -= 1
            self.t.write(CONTENT)
            self.tick_later()
        else:
            self.t.write(last_frames(self.n))

    def on_get(self):
        u = urlsplit(self.url.decode())
        if u.path == "/_set":
            for k, v in parse_qsl(u.query):
                CFG[k] = type(CFG[k])(v)
            out = CFG
        elif u.path == "/_stats":
            out = STATS
        elif u.path.endswith("/models"):
            out = {
                "object": "list",
                "data": [{"id": "tiny", "object": "model", "root": "tiny", "max_model_len": 131072}],
            }
        else:
            out = {"status": "ok"}
        body = b"# none\n" if u.path == "/metrics" else json.dumps(out).encode()
        self.t.write(HEAD_JSON % (200, len(body)) + body)


async def main(a):
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Mock("p"), "127.0.0.1", a.p_port, backlog=2048)
    await loop.create_server(lambda: Mock("d"), "127.0.0.1", a.d_port, backlog=2048)
    print("mock ready", a.p_port, a.d_port, flush=True)
    await asyncio.sleep(a.max_life_s)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--p-port", type=int, default=18100)
    ap.add_argument("--d-port", type=int, default=18200)
    ap.add_argument("--max-life-s", type=float, default=7200)
    sys.exit(uvloop.run(main(ap.parse_args())))
