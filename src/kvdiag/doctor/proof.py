"""A two-turn conversation that proves reuse, or names the link that is broken.

The second prompt is the first one's tokens, its answer's tokens and some more, so that it starts with exactly what
decode holds. Prompt and answer are each longer than the recompute threshold, and the prompt is random, so that no
prefix cache covers it all.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvdiag.causes import CAUSES
from kvdiag.context import TurnOutcome, parse
from kvdiag.doctor.checks import Result
from kvdiag.doctor.conversation import FIRST_PREFILL, BrokenLinkError, Speaker, Turn
from kvdiag.doctor.site import Service, Site, look_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.doctor.samples import Samples

_DEFAULT_THRESHOLD: Final = 64
_DEFAULT_BLOCK: Final = 16
_SETTLE_S: Final = 15.0
"""How long a service may take to count what it did."""
_POLL_S: Final = 0.3
_SCRAPE_S: Final = 10.0
_CONNECT_S: Final = 3.0
_READ_BACK: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("kvdiag_transfer_bytes_total", {"direction": "decode_to_prefill"}),
    ("vllm:nixl_bytes_transferred_sum", {}),
)
"""Counters of prefill that rise with a read-back: whoever reads counts."""


@dataclass(frozen=True, slots=True)
class _Pair:
    prefill: Service
    decode: Service


def probe(site: Site, *, model: str | None, timeout_s: float) -> list[Result]:
    """Return whether a second turn is read back, streamed answers carry handles and side channels can be reached."""
    alive = [service for service in site.services if not service.problem]
    named = model or next((service.model for service in alive if service.model), None)
    pair = _pair(site)
    router = site.router if site.router in alive else None
    if named is None or (pair is None and router is None):
        needs = "the router, or prefill and decode" if named else "the model's name (--model)"
        return [_needs(check, needs) for check in ("reuse", "streaming_handles", "side_channel")]
    speaker = Speaker(named, _tokens(site), timeout_s)
    through = _guarded("reuse", lambda: _through_router(speaker, router, site)) if router else None
    if pair is None:
        assert through is not None  # noqa: S101 - one of the two is there
        return [through, *(_needs(check, "prefill and decode") for check in ("streaming_handles", "side_channel"))]
    addresses: list[tuple[str, int]] = []
    by_hand = _guarded("reuse", lambda: _by_hand(speaker, pair, addresses))
    streaming = _guarded("streaming_handles", lambda: _streaming(speaker, pair))
    return [_joined(through, by_hand), streaming, _side_channel(by_hand, pair, addresses)]


def _pair(site: Site) -> _Pair | None:
    prefill = next((engine for engine in site.prefills if not engine.problem), None)
    decode = next((engine for engine in site.decodes if not engine.problem), None)
    return _Pair(prefill, decode) if prefill and decode else None


def _tokens(site: Site) -> int:
    """Return how long prompt and answer have to be for a read-back to be worth it."""
    told = [engine.info("recompute_threshold") or "" for engine in site.prefills]
    threshold = max((int(text) for text in told if text.isdigit()), default=_DEFAULT_THRESHOLD)
    return threshold + 2 * (site.block_size or _DEFAULT_BLOCK)


def _guarded(check: str, link: Callable[[], Result]) -> Result:
    try:
        return link()
    except BrokenLinkError as error:
        return Result(check=check, state="problem", seen=str(error), remedy=error.remedy)


def _through_router(speaker: Speaker, router: Service, site: Site) -> Result:
    name = f"kvdiag-probe-{secrets.token_hex(8)}"
    first = speaker.complete(router, speaker.opening(), conversation=name)
    before, read_before = _scraped(router), [_scraped(engine) for engine in site.prefills]
    speaker.complete(router, first.followed_by(_tail(first)), limit=1, conversation=name)
    if before is not None and before.has("kvdiag_turns_total"):
        return _cause_counted(router, before)
    pairs = [(engine, seen) for engine, seen in zip(site.prefills, read_before, strict=True) if seen]
    if not pairs:
        return _needs("reuse", "kvdiag's router, or prefill's /metrics")
    if any(_rose(engine, seen) for engine, seen in pairs):
        return Result(check="reuse", state="ok", seen="prefill read the second turn's KV back from decode")
    raise BrokenLinkError("prefill read nothing back for the second turn through this router", "missing_metadata")


def _cause_counted(router: Service, before: Samples) -> Result:
    """Return what the router counted for the second turn; other traffic may count at the same time."""
    was = before.by("kvdiag_turns_total", "cause", "detail", "turn")
    until = time.monotonic() + _SETTLE_S
    risen: list[tuple[str, ...]] = []
    while not risen and time.monotonic() < until:
        time.sleep(_POLL_S)
        now = _scraped(router)
        counted = now.by("kvdiag_turns_total", "cause", "detail", "turn") if now else {}
        risen = [key for key, value in counted.items() if key[2] == "2-4" and value > was.get(key, 0.0)]
    if len(risen) != 1:
        return _needs("reuse", f"a quieter router: {len(risen)} causes were counted while the probe ran")
    return _judged(risen[0][0], risen[0][1] or None, "through the router")


def _by_hand(speaker: Speaker, pair: _Pair, addresses: list[tuple[str, int]]) -> Result:
    """Drive both engines as a router would; leaves the side channels' addresses in `addresses`."""
    opening = speaker.opening()
    first = speaker.complete(pair.prefill, opening, limit=1, params=FIRST_PREFILL)
    if not first.params.get("remote_engine_id"):
        raise BrokenLinkError("prefill returned no kv_transfer_params", "feature_off", "no_connector")
    addresses += _address(first.params)
    answered = _handed_off(speaker, pair, opening, first)
    if not answered.params.get("remote_block_ids"):
        raise BrokenLinkError("decode's answer carried no handle", "feature_off", "decode")
    addresses += _address(answered.params)
    before = _scraped(pair.prefill)
    handle = answered.params | {"do_remote_decode": True, "do_remote_prefill": False}
    second = _second(speaker, pair, answered, handle)
    outcome = parse(TurnOutcome, second.params)
    if outcome is not None:
        return _judged(outcome.cause, outcome.detail, "driven by hand")
    if before is None or not any(before.total(name, **labels) is not None for name, labels in _READ_BACK):
        return _needs("reuse", "prefill's NIXL series")
    if _rose(pair.prefill, before):
        return Result(check="reuse", state="ok", seen="driven by hand, prefill read the second turn's KV from decode")
    raise BrokenLinkError("prefill had a handle and read nothing", "feature_off", "prefill")


def _handed_off(speaker: Speaker, pair: _Pair, opening: str, first: Turn) -> Turn:
    try:
        return speaker.complete(pair.decode, opening, params=first.params)
    except BrokenLinkError as error:
        raise BrokenLinkError(f"the hand-off from prefill to decode failed: {error}", "upstream_error") from error


def _second(speaker: Speaker, pair: _Pair, answered: Turn, handle: dict[str, Any]) -> Turn:
    prompt = answered.followed_by(_tail(answered))
    try:
        second = speaker.complete(pair.prefill, prompt, limit=1, params=handle)
    except BrokenLinkError as error:
        raise BrokenLinkError(f"the turn with decode's handle failed: {error}", "feature_off", "prefill") from error
    if second.params:  # nobody else would read these blocks: their lapse would look like a fault in prefill's log
        speaker.complete(pair.decode, prompt, limit=1, params=second.params)
    return second


def _streaming(speaker: Speaker, pair: _Pair) -> Result:
    params = speaker.chat(pair.prefill, FIRST_PREFILL, stream=False)
    if not params.get("remote_engine_id"):
        raise BrokenLinkError("prefill returned no kv_transfer_params", "feature_off", "no_connector")
    if speaker.chat(pair.decode, params, stream=True).get("remote_block_ids"):
        return Result(check="streaming_handles", state="ok", seen="decode's streamed answer carries its handle")
    raise BrokenLinkError("decode's streamed answer carries no handle", "missing_metadata", "not_returned")


def _side_channel(by_hand: Result, pair: _Pair, addresses: list[tuple[str, int]]) -> Result:
    if not addresses:
        return _needs("side_channel", "engines that return kv_transfer_params")
    shown = ", ".join(f"{host}:{port}" for host, port in addresses)
    if by_hand.state == "ok":
        return Result(check="side_channel", state="ok", seen=f"the engines met at {shown}")
    apart = pair.prefill.server.host != pair.decode.server.host
    bad = [f"{host}:{port}" for host, port in addresses if (apart and _is_loopback(host)) or not _accepts(host, port)]
    if not bad:
        return Result(check="side_channel", state="ok", seen=f"{shown} accept connections from here")
    remedy = CAUSES["peer_unreachable"].remedy("handshake_failed")
    return Result(check="side_channel", state="problem", seen=f"cannot be reached: {', '.join(bad)}", remedy=remedy)


def _joined(through: Result | None, by_hand: Result) -> Result:
    """Return the router's result, with what driving by hand adds about where it fails."""
    if through is None or through.state == "ok":
        return through or by_hand
    if by_hand.state == "ok" and through.state == "problem":
        through.seen += "; driven by hand, the engines read back: the router is the broken link"
        return through
    return by_hand if by_hand.state == "problem" else through


def _judged(cause: str, detail: str | None, how: str) -> Result:
    name = f"{cause}/{detail}" if detail else cause
    if cause == "remote_hit":
        return Result(check="reuse", state="ok", seen=f"{how}, the second turn was read back from decode")
    known = CAUSES.get(cause)
    meaning = f" ({known.meaning})" if known else ""
    remedy = known.remedy(detail) if known else ""
    return Result(
        check="reuse", state="problem", seen=f"{how}, the second turn ended as {name}{meaning}", remedy=remedy
    )


def _needs(check: str, what: str) -> Result:
    return Result(check=check, state="not evaluated", seen=f"needs {what}")


def _tail(turn: Turn) -> list[int] | str:
    """Return some more tokens, in the form in which the turn's are known."""
    return turn.prompt[:32] if isinstance(turn.prompt, list) else " Go on."


def _scraped(service: Service) -> Samples | None:
    return look_at(service.role, service.server, _SCRAPE_S).samples


def _rose(engine: Service, before: Samples) -> bool:
    until = time.monotonic() + _SETTLE_S
    while True:
        now = _scraped(engine)
        if now and any(
            (now.total(name, **labels) or 0) > (before.total(name, **labels) or 0) for name, labels in _READ_BACK
        ):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)


def _address(params: dict[str, Any]) -> list[tuple[str, int]]:
    host, port = params.get("remote_host"), params.get("remote_port")
    try:
        return [(str(host), int(port))] if host and port else []
    except (TypeError, ValueError):
        return []


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
