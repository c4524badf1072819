"""Answers or one clear reason; nothing hostile is taken in."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from kvdiag.doctor.http import NoAnswerError, Server
from kvdiag.errors import InputError

from .conftest import Fake

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "secure"),
    [
        ("http://h:8000", "h", 8000, "", False),
        ("h:8000/", "h", 8000, "", False),
        ("https://h/base/v1", "h", 443, "/base", True),
        ("http://[::1]:9/metrics", "::1", 9, "", False),
    ],
)
def test_base_urls_are_read(url: str, host: str, port: int, prefix: str, *, secure: bool) -> None:
    server = Server.parse(url)
    assert (server.host, server.port, server.prefix, server.secure) == (host, port, prefix, secure)


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://h", "http://h:99999", "http://h:x", "http://[::1", "http://u:p@h"]
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        Server.parse(url)


def test_credentials_in_a_url_are_not_echoed() -> None:
    with pytest.raises(InputError) as error:
        Server.parse("http://user:secret@h")
    assert "secret" not in str(error.value)


def test_the_key_is_sent_as_bearer(serve: Callable[[Fake], Fake]) -> None:
    fake = serve(Fake())
    Server.parse(fake.url, "k").post("/x", {}, 5)
    assert fake.asked[0][2]["authorization"] == "Bearer k"


@pytest.mark.parametrize(("date", "skewed"), [("Thu, 01 Jan 2026 00:00:00 GMT", True), (None, False)])
def test_the_servers_clock_is_compared(serve: Callable[[Fake], Fake], date: str | None, *, skewed: bool) -> None:
    clock = Server.parse(serve(Fake(date=date)).url).get("/", 5).clock_s
    assert clock is not None
    assert (abs(clock) > 100) is skewed


@pytest.mark.parametrize("date", ["garbage", "\x1b[2J", "Mon, 99 Foo 99999 99:99:99"])
def test_a_date_that_is_none_is_ignored(serve: Callable[[Fake], Fake], date: str) -> None:
    assert Server.parse(serve(Fake(date=date)).url).get("/", 5).clock_s is None


def test_nobody_there_is_one_clear_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = Server.parse(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(NoAnswerError, match="refused"):
            server.get("/", 5)


@pytest.mark.parametrize(
    ("reply", "reason"), [(b"", "closed|not HTTP|RemoteDisconnected"), (b"SSH-2.0-OpenSSH\r\n", "not HTTP")]
)
def test_what_is_not_http_is_said_to_be(reply: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoAnswerError, match=reason):
            Server.parse(f"http://127.0.0.1:{listener.getsockname()[1]}").get("/", 5)
        thread.join()


def test_silence_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server.parse(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.2 s"):
            server.get("/", 0.2)


@pytest.mark.parametrize("body", ["", "[]", "null", "{", "[" * 100_000])
def test_a_body_that_is_no_object_reads_as_empty(serve: Callable[[Fake], Fake], body: str) -> None:
    assert Server.parse(serve(Fake(pages={"/": body})).url).get("/", 5).json() == {}
