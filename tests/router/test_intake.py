from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.router.intake import Intake, Limits, Phase, Request


class Seen:
    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: list[Request] = []
        self.refused: list[int] = []
        self.invited = 0
        self.intake = Intake(
            limits or Limits(), deliver=self.requests.append, refuse=self.refused.append, invite=self._invite
        )

    def _invite(self) -> None:
        self.invited += 1

    def feed(self, data: bytes, cuts: list[int] | None = None) -> Seen:
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
        for a, b in itertools.pairwise(edges):
            self.intake.feed(data[a:b])
        return self


POST = b"POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


@given(cuts=st.lists(st.integers(min_value=0, max_value=1000), max_size=8))
def test_requests_are_read_wherever_they_are_cut(cuts: list[int]) -> None:
    seen = Seen().feed(POST + CHUNKED + POST, cuts)
    assert [request.body for request in seen.requests] == [b"hello"] * 3
    assert seen.requests[0].path == "/v1/x"
    assert seen.requests[0].headers[b"x-a"] == b"1"
    assert not seen.refused


@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_once(data: bytes) -> None:
    seen = Seen().feed(data, [3, 50]).feed(data)
    assert len(seen.refused) <= 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nx: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nx: a\rb\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nx: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nbad name: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1, 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\ncontent-length : 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\ncontent-length: 1\n\na", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED.replace(b"2\r\nhe", b"2\nhe"), 400),
        (CHUNKED.replace(b"2\r\nhe", b"ffffffffffffffff2\r\nhe"), 400),
        (CHUNKED.replace(b"he\r\n", b"heX\r\n"), 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 400 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\ncontent-length: 2000\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n400\r\n"
            + b"a" * 1024
            + b"\r\n400\r\n"
            + b"a" * 1024,
            413,
        ),
    ],
)
def test_hostile_requests_are_refused(data: bytes, status: int) -> None:
    seen = Seen(Limits(head=1000, body=1500)).feed(data)
    assert seen.refused == [status]
    assert seen.intake.phase is Phase.REFUSED
    assert not seen.feed(POST).requests


def test_an_offer_to_upgrade_is_not_taken_up() -> None:
    offer = b"\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n"
    seen = Seen().feed(b"GET / HTTP/1.1" + offer + b"\r\n" + POST)
    assert [request.body for request in seen.requests] == [b"", b"hello"]
    assert Seen().feed(POST.replace(b"\r\n", offer, 1)).refused == [400]


def test_of_repeated_headers_the_first_counts() -> None:
    seen = Seen().feed(b"GET / HTTP/1.1\r\nhost: h\r\nx-session-id: a\r\nX-Session-ID: b\r\n\r\n")
    assert seen.requests[0].headers[b"x-session-id"] == b"a"


def test_trailers_are_not_headers() -> None:
    seen = Seen().feed(CHUNKED.removesuffix(b"\r\n") + b"x-session-id: late\r\n\r\n" + POST)
    assert [b"x-session-id" in request.headers for request in seen.requests] == [False, False]


def test_a_body_is_invited_only_if_it_will_be_read() -> None:
    expect = b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
    assert Seen().feed(expect % 5).invited == 1
    assert Seen(Limits(body=4)).feed(expect % 5).invited == 0


@pytest.mark.parametrize(
    ("line", "keep_alive", "chunked"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True, True),
        (b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n", False, True),
        (b"GET / HTTP/1.0\r\n\r\n", False, False),
    ],
)
def test_the_version_decides_on_framing(line: bytes, *, keep_alive: bool, chunked: bool) -> None:
    request = Seen().feed(line).requests[0]
    assert (request.keep_alive, request.chunked) == (keep_alive, chunked)
