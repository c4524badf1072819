from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from kvdiag.context import TurnContext
from kvdiag.router.bodies import APIS, Body
from kvdiag.router.identity import Identifier, Identity
from kvdiag.router.ledger import Claim, Ledger, decode_params, prefill_params, usable_ttl
from kvdiag.router.stores import Entry, MemoryStore

HANDLE: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "engine",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 5600,
    "remote_num_tokens": 256,
    "remote_blocks_expiry_time": 9.5,
    "tp_size": 1,
    "unknown_to_us": {"kept": True},
}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Book:
    """A ledger and one conversation."""

    def __init__(self, handle_ttl_s: float | None = None) -> None:
        self.clock = Clock()
        store = MemoryStore(self.clock, max_entries=9, max_bytes=1 << 20, ttl_s=3600, on_evict=lambda: None)
        self.ledger = Ledger(store, handle_ttl_s=handle_ttl_s, decode_ttl_s=480, clock=self.clock)

    def claim(self) -> Claim:
        return asyncio.run(self.ledger.claim(identity()))

    def commit(self, handle: dict[str, Any] | None, decode: str = "d", turn: int = 1) -> None:
        raw = None if handle is None else json.dumps(handle).encode()
        self.ledger.commit(identity(), None, Entry(turn=turn, conversation="c", decode=decode), raw)


def identity() -> Identity:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    parsed = Body.parse(APIS["/v1/chat/completions"], json.dumps(body).encode())
    return Identifier(b"s", derive=True).identify({b"x-session-id": b"a"}, parsed)


def without(*names: str, **changed: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {k: v for k, v in {**HANDLE, **changed}.items() if k not in names}


def test_a_handle_goes_back_as_it_came() -> None:
    book = Book()
    book.commit(HANDLE)
    book.clock.now += 4
    claim = book.claim()
    assert (claim.lookup, claim.turn, claim.conversation, claim.age_s) == ("hit", 2, "c", 4)
    params = json.loads(prefill_params(claim.entry, TurnContext(turn=2, lookup="hit")))
    assert params.pop("kvdiag") == {"v": 1, "turn": 2, "lookup": "hit"}
    assert params == HANDLE


def test_without_a_handle_prefill_is_told_to_keep_blocks_for_decode() -> None:
    params = json.loads(prefill_params(None, TurnContext()))
    assert params == {"do_remote_decode": True, "do_remote_prefill": False, "kvdiag": {"v": 1}}


def test_roles_in_the_handle_are_set_right() -> None:
    book = Book()
    book.commit(without(do_remote_prefill=True, do_remote_decode=False))
    params = json.loads(prefill_params(book.claim().entry, TurnContext()))
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)


def test_the_connectors_words_travel_with_the_handle_and_ours_win() -> None:
    book = Book()
    book.commit(without(kvdiag={"v": 1, "prefix": "abc", "issued_at": 1.0, "future": [1]}))
    context = TurnContext(turn=2, issued_at=5.0)
    params = json.loads(prefill_params(book.claim().entry, context))
    assert params["kvdiag"] == {"v": 1, "prefix": "abc", "future": [1], "turn": 2, "issued_at": 5.0}


@pytest.mark.parametrize("kvdiag", [None, 3, [], "x"])
def test_a_strange_word_of_the_connector_is_dropped(kvdiag: Any) -> None:  # noqa: ANN401 - any JSON
    book = Book()
    book.commit(without(kvdiag=kvdiag))
    assert json.loads(prefill_params(book.claim().entry, TurnContext()))["kvdiag"] == {"v": 1}


@pytest.mark.parametrize(
    ("handle", "lookup"),
    [
        (None, "not_returned"),
        (without("remote_num_tokens"), "incomplete"),
        (without(remote_num_tokens=0), "incomplete"),
        (without(remote_block_ids=[[]]), "incomplete"),
        (without(remote_block_ids=None), "incomplete"),
        *[
            (without(name), "incomplete")
            for name in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
        ],
        (without(remote_port="x"), "incomplete"),
        ({}, "incomplete"),
        (without("remote_blocks_expiry_time"), "hit"),
    ],
)
def test_a_handle_that_prefill_could_not_use_is_never_sent(handle: dict[str, Any] | None, lookup: str) -> None:
    book = Book()
    book.commit(handle)
    assert book.claim().lookup == lookup


@pytest.mark.parametrize(
    ("configured", "told", "learned", "usable"),
    [
        (None, None, None, 473),
        (None, None, 60.0, 53),
        (None, 20.0, 60.0, 13),
        (100.0, 20.0, 60.0, 100),
        (None, 3.0, None, 0),
    ],
)
def test_a_handle_is_sent_for_decodes_ttl_less_the_readers_margin(
    configured: float | None, told: float | None, learned: float | None, usable: float
) -> None:
    book = Book(configured)
    if learned is not None:
        book.ledger.learn("d", engine_id=None, ttl_s=learned)
    for late, lookup in ((usable, "hit"), (usable + 0.1, "stale")):
        book.commit(HANDLE if told is None else without(kvdiag={"v": 1, "ttl_s": told}))
        book.clock.now += late
        assert book.claim().lookup == lookup


def test_ranks_share_an_engine_and_a_new_process_voids_the_old_ones_handles() -> None:
    book = Book()
    book.commit(without(remote_engine_id="one_dp0"))
    book.ledger.learn("d", engine_id="one_dp1", ttl_s=None)
    assert book.claim().lookup == "hit"
    book.commit(without(remote_engine_id="one_dp0"))
    book.ledger.learn("d", engine_id="two", ttl_s=None)
    assert book.claim().lookup == "restarted"


def test_an_engine_that_was_down_says_who_it_is_before_its_handles_count() -> None:
    book = Book()
    book.commit(HANDLE)
    book.ledger.void("d")
    assert book.claim().lookup == "restarted"
    book.commit(HANDLE)
    assert book.claim().lookup == "hit"


def test_claims_are_given_back_unless_the_handle_may_have_been_read() -> None:
    book = Book()
    book.ledger.give_back(identity(), book.claim(), unread=True)
    assert book.claim().lookup == "first_turn"
    book.commit(HANDLE)
    claim = book.claim()
    fork = book.claim()
    assert fork.lookup == "consumed"
    book.ledger.give_back(identity(), fork, unread=True)
    book.ledger.give_back(identity(), claim, unread=True)
    claim = book.claim()
    assert (claim.lookup, claim.turn) == ("hit", 2)
    book.ledger.give_back(identity(), claim, unread=False)
    claim = book.claim()
    assert (claim.lookup, claim.turn) == ("consumed", 2)


def test_decode_gets_prefills_params_and_the_turns_context() -> None:
    told = json.dumps({**HANDLE, "kvdiag": {"v": 1, "cause": "x"}}).encode()
    params = msgspec.json.decode(told, type=dict[str, msgspec.Raw])
    sent = json.loads(decode_params(params, TurnContext(turn=4)))
    assert sent == {**HANDLE, "kvdiag": {"v": 1, "cause": "x", "turn": 4}}


def test_a_ttl_below_the_margin_means_never() -> None:
    assert usable_ttl(5) == 0
