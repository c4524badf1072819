"""Closed- or open-loop load on a streaming chat/completions server.

Reports TTFT (request written -> first SSE bytes), end-to-end time and a count
of stream errors.  Connections are kept alive, one per virtual user.  Bodies are
built before the clock starts; only a fixed-width conversation id differs.

  load.py --port 8000 --conc 16 --size 1000 --duration 10
  load.py --port 8000 --conc 64 --rate 50 ...      (open loop: Poisson arrivals/s)
  load.py --port D --two-hop-port P ...            (the client itself calls P, then D)
"""

import argparse
import asyncio
import json
import random
import socket
import sys
import time

import httptools
import uvloop

clock = time.perf_counter


def body_for(size, conv_field=True, turns=None):
    """A chat body of about `size` bytes with a 16-character id slot."""
    turns = turns or max(1, min(40, size // 2000)) * 2 - 1
    per = max(16, (size - 200) // turns)
    words = (
        "the cache of block table prefill decode transfer router turn agent "
        "tool call result file line test error fix value list map "
    ).encode()
    text = (words * (per // len(words) + 1))[:per].decode()
    msgs = [{"role": "assistant" if i % 2 else "user", "content": f"{i} {text}"[:per]} for i in range(turns)]
    b = {
        "model": "tiny",
        "messages": msgs,
        "stream": True,
        "temperature": 0.0,
        "max_tokens": 50,
        "stream_options": {"include_usage": True},
    }
    if conv_field:
        b["conversation_id"] = "@" * 16
    return json.dumps(b).encode()


class Conn(asyncio.Protocol):
    def __init__(self, res):
        self.res = res

    def connection_made(self, t):
        self.t = t
        t.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.alive = True
        self.fut = None

    def connection_lost(self, exc):
        self.alive = False
        if self.fut and not self.fut.done():
            self.fut.set_result(False)

    def request(self, raw):
        self.parser = httptools.HttpResponseParser(self)
        self.first = None
        self.tail = b""
        self.status = 0
        self.nbytes = 0
        self.reads = 0
        self.fut = asyncio.get_running_loop().create_future()
        self.t0 = clock()
        self.t.write(raw)
        return self.fut

    def data_received(self, data):
        self.reads += 1
        self.parser.feed_data(data)

    def on_body(self, data):
        if self.first is None:
            self.first = clock()
        self.nbytes += len(data)
        self.tail = data if len(data) > 30 else self.tail[-30:] + data

    def on_message_complete(self):
        self.t1 = clock()
        self.status = self.parser.get_status_code()
        if self.fut and not self.fut.done():
            self.fut.set_result(True)


def raw_request(host, port, path, body):
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"accept: */*\r\ncontent-length: {len(body)}\r\n"
    ).encode()


async def run(a):
    loop = asyncio.get_running_loop()
    body = body_for(a.size, not a.no_conv)
    head = raw_request("127.0.0.1", a.port, a.path, body)
    pre, _, post = body.partition(b"@" * 16)
    p_body = body.replace(b'"stream": true', b'"stream": false').replace(b'"max_tokens": 50', b'"max_tokens": 1')
    p_raw = raw_request("127.0.0.1", a.two_hop_port, a.path, p_body) + b"\r\n" + p_body

    ttft, e2e, errs, reads, nbytes = [], [], {}, 0, 0
    state = {"seq": 0, "open": True}
    t_start = clock() + 0.05
    measure_from = t_start + a.warmup
    stop = measure_from + a.duration

    async def connect(port):
        _, c = await loop.create_connection(lambda: Conn(None), "127.0.0.1", port)
        return c

    async def one(conn, pconn, conv):
        nonlocal reads, nbytes
        cid = b"%016d" % conv
        raw = b"%sx-conversation-id: %s\r\n\r\n%s%s%s" % (head, cid, pre, cid if post else b"", post)
        t0 = clock()
        if pconn is not None:
            if not await pconn.request(p_raw):
                return False
        ok = await conn.request(raw)
        why = None
        if not ok:
            why = "closed"
        elif conn.status != 200:
            why = f"status {conn.status}"
        elif a.check and b"[DONE]" not in conn.tail:
            why = "no [DONE]"
        if t0 >= measure_from:
            if why:
                errs[why] = errs.get(why, 0) + 1
            else:
                ttft.append(conn.first - t0)
                e2e.append(conn.t1 - t0)
                reads += conn.reads
                nbytes += conn.nbytes
        return why is None

    async def user(i):
        conn = pconn = None
        # spread the starts so that the streams are not in step
        await asyncio.sleep(max(0, t_start - clock()) + a.spread * i / a.conc)
        while clock() < stop:
            if conn is None or not conn.alive:
                conn = await connect(a.port)
            if a.two_hop_port and (pconn is None or not pconn.alive):
                pconn = await connect(a.two_hop_port)
            await one(conn, pconn, a.conv_base + i)
            if a.think:
                await asyncio.sleep(a.think)
        if conn:
            conn.t.close()
        if pconn:
            pconn.t.close()

    async def open_loop():
        idle, tasks = [], set()
        n = 0

        async def shot(i):
            c = idle.pop() if idle else await connect(a.port)
            if not c.alive:
                c = await connect(a.port)
            await one(c, None, a.conv_base + i % a.conc)
            idle.append(c)

        due = t_start
        rnd = random.Random(a.seed)
        while due < stop:
            # Poisson arrivals, the same for every target: users of a closed loop
            # with fixed stream lengths fall into step and queue on one another
            due += rnd.expovariate(a.rate)
            d = due - clock()
            if d > 0:
                await asyncio.sleep(d)
            if len(tasks) < a.conc:
                t = loop.create_task(shot(n))
                tasks.add(t)
                t.add_done_callback(tasks.discard)
            else:
                errs["dropped"] = errs.get("dropped", 0) + 1
            n += 1
        if tasks:
            await asyncio.wait(tasks, timeout=30)

    if a.rate:
        await open_loop()
    else:
        await asyncio.gather(*(user(i) for i in range(a.conc)))
    took = max(clock(), stop) - measure_from

    def pct(v, q):
        v = sorted(v)
        return round(v[min(len(v) - 1, int(q * len(v)))] * 1e3, 3) if v else None

    return {
        "n": len(e2e),
        "rps": round(len(e2e) / took, 2),
        "errors": errs,
        "ttft_ms": {
            "p50": pct(ttft, 0.5),
            "p90": pct(ttft, 0.9),
            "p99": pct(ttft, 0.99),
            "mean": round(sum(ttft) / len(ttft) * 1e3, 3) if ttft else None,
        },
        "e2e_ms": {"p50": pct(e2e, 0.5), "p99": pct(e2e, 0.99)},
        "reads_per_req": round(reads / len(e2e), 1) if e2e else None,
        "resp_bytes": round(nbytes / len(e2e)) if e2e else None,
        "body_bytes": len(body),
        "cpu_s": time.process_time(),
    }


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("--two-hop-port", type=int, default=0)
    ap.add_argument("--path", default="/v1/chat/completions")
    ap.add_argument("--conc", type=int, default=1)
    ap.add_argument("--rate", type=float, default=0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--size", type=int, default=1000)
    ap.add_argument("--duration", type=float, default=5)
    ap.add_argument("--warmup", type=float, default=1)
    ap.add_argument("--spread", type=float, default=0)
    ap.add_argument("--think", type=float, default=0)
    ap.add_argument("--conv-base", type=int, default=0)
    ap.add_argument("--no-conv", action="store_true")
    ap.add_argument("--check", type=int, default=1)
    args = ap.parse_args()
    json.dump(uvloop.run(run(args)), sys.stdout)
    print()
