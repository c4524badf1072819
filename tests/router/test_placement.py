from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvdiag.errors import InputError
from kvdiag.router.faults import NoEngineError
from kvdiag.router.placement import BREAK_AFTER, OPEN_S, Address, Engine, Policy, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines want a loop for their connections; none is opened here."""
    loop = asyncio.new_event_loop()
    monkeypatch.setattr("asyncio.get_running_loop", lambda: loop)
    yield
    loop.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pool(*names: str, policy: Policy = "least_loaded", clock: Clock | None = None) -> Pool:
    made = Pool("prefill", policy, lambda role, address: Engine(role, address, clock or Clock(), connect_s=1))
    made.update(address for name in names for address in Address.parse(f"http://{name}:80"))
    return made


def engine(made: Pool, name: str) -> Engine:
    return next(engine for engine in made.engines if engine.address.host == name)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("http://h:8000", ["h:8000"]),
        ("https://h", ["h:443"]),
        ("http://[::1]:8000/", ["[::1]:8000"]),
        ("http://h:8000@0-2", ["h:8000@0", "h:8000@1", "h:8000@2"]),
    ],
)
def test_urls_name_engines_and_their_ranks(url: str, names: list[str]) -> None:
    assert [address.name for address in Address.parse(url)] == names


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://h:port", "http://h/path", "http://a b"])
def test_anything_else_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InputError, match="is not a URL such as"):
        Address.parse(url)


def test_the_least_loaded_engine_is_picked() -> None:
    made = pool("a", "b", "c")
    for name, load in (("a", 2), ("b", 0), ("c", 1)):
        engine(made, name).load = load
    assert [made.pick().address.host for _ in range(3)] == ["b", "b", "b"]


def test_round_robin_takes_turns() -> None:
    made = pool("a", "b", policy="round_robin")
    assert [made.pick().address.host for _ in range(4)] == ["a", "b", "a", "b"]


def test_the_preferred_engine_is_kept_while_it_is_ready() -> None:
    made = pool("a", "b")
    engine(made, "a").load = 9
    assert made.pick(prefer="a:80").address.host == "a"
    engine(made, "a").healthy = False
    assert made.pick(prefer="a:80").address.host == "b"


def test_an_engine_that_misses_its_health_check_is_the_last_resort_not_refused() -> None:
    made = pool("a", "b")
    engine(made, "a").healthy = False
    assert made.pick().address.host == "b"
    assert made.pick(avoid={"b:80"}).address.host == "a"
    assert not pool()


def test_a_breaker_opens_after_failures_in_a_row_and_closes_with_time() -> None:
    clock = Clock()
    made = pool("a", "b", clock=clock)
    engine(made, "b").load = 9
    for _ in range(BREAK_AFTER):
        assert made.pick().address.host == "a"
        engine(made, "a").failed()
    assert made.pick().address.host == "b"
    clock.now += OPEN_S
    assert made.pick().address.host == "a"


def test_where_every_breaker_is_open_none_counts() -> None:
    made = pool("a", "b", clock=Clock())
    for name in ("a", "b"):
        for _ in range(BREAK_AFTER):
            engine(made, name).failed()
    assert {made.pick().address.host for _ in range(2)} == {"a", "b"}
    with pytest.raises(NoEngineError):
        made.pick(avoid={"a:80", "b:80"})


def test_an_update_keeps_the_state_of_those_that_stay() -> None:
    made = pool("a", "b")
    engine(made, "b").load = 3
    assert made.update(address for name in ("b", "c") for address in Address.parse(f"http://{name}:80"))
    assert {engine.address.host: engine.load for engine in made.engines} == {"b": 3, "c": 0}
    assert not made.update(address for name in ("b", "c") for address in Address.parse(f"http://{name}:80"))
