"""A two-turn conversation that proves reuse, or names the link that is broken.

The second prompt is the first one's tokens, its answer's tokens and some more, so that it starts with exactly what
decode holds. Prompt and answer are each longer than the recompute threshold, and the prompt is random, so that no
prefix cache covers it all.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from kvdiag.doctor import readback
from kvdiag.doctor.checks import Result, State, judged, needs
from kvdiag.doctor.conversation import BrokenLinkError, Speaker, probe_id
from kvdiag.doctor.pair import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvdiag.doctor.samples import Samples
    from kvdiag.doctor.site import Service, Site

MOST_PAIRS: Final = 16
"""More pairs than this take too long; each engine is still in one of them, up to as many engines."""
_DEFAULT_THRESHOLD: Final = 64
_DEFAULT_BLOCK: Final = 16
_TURNS: Final = "kvdiag_turns_total"
PROBED: Final = {
    "reuse": "Is a second turn read back from decode, through the router and by hand?",
    "streaming_handles": "Does a streamed answer carry decode's handle?",
    "side_channel": "Can the addresses that engines name for transfers be reached?",
}
"""What only a conversation shows, and what it asks; the remedy is that of the cause that is found."""


def probe(site: Site, *, model: str | None, timeout_s: float) -> list[Result]:
    """Return whether a second turn is read back, streamed answers carry handles and side channels can be reached.

    Every prefill is tried with every decode, up to `MOST_PAIRS` pairs. Nothing is sent where engines are called by the
    other's role, whose blocks nobody would read, or where nobody serves the model.
    """
    if any(engine.misplaced for engine in site.engines):
        return [needs(check, "every engine on the side of its kv_role") for check in PROBED]
    alive = [service for service in site.services if not service.problem]
    named = model or next((service.model for service in alive if service.model), None)
    if named is None:
        return [needs(check, "the model's name (--model)") for check in PROBED]
    if stranger := _unserved(named, alive):
        return [stranger]
    speaker = Speaker(named, _tokens(site), timeout_s)
    router = site.router if site.router in alive else None
    through = _guarded("reuse", lambda: _through_router(speaker, router, site)) if router else None
    pairs = pairs_of(speaker, site)
    if not pairs:
        reuse = through or needs("reuse", "the router, or prefill and decode")
        return [reuse, *(needs(check, "prefill and decode") for check in ("streaming_handles", "side_channel"))]
    by_hand = [_guarded("reuse", pair.read_back) for pair in pairs]
    streaming = {pair.decode.name: pair for pair in reversed(pairs)}.values()
    met = [pair.side_channel(met=result.state == "ok") for pair, result in zip(pairs, by_hand, strict=True)]
    return [
        *_joined(through, _told(pairs, by_hand)),
        *_told(list(streaming), [_guarded("streaming_handles", pair.streamed_handle) for pair in streaming]),
        *_told(pairs, met),
        *_untried(site, len(pairs)),
    ]


def _unserved(model: str, services: Sequence[Service]) -> Result | None:
    served = sorted({name for service in services for name in service.models})
    if not served or model in served:
        return None
    remedy = f"give --model a name that is served: {', '.join(served)}"
    return Result(check="reuse", state="problem", seen=f"nobody serves the model {model!r}", remedy=remedy)


def _untried(site: Site, tried: int) -> list[Result]:
    possible = sum(not p.problem for p in site.prefills) * sum(not d.problem for d in site.decodes)
    if possible <= tried:
        return []
    return [needs("reuse", f"another run with fewer engines: {tried} of {possible} pairs were tried")]


def pairs_of(speaker: Speaker, site: Site) -> list[Pair]:
    """Return the pairs to drive by hand: every engine that answers at least once before any twice, then the rest."""
    prefills = [engine for engine in site.prefills if not engine.problem]
    decodes = [engine for engine in site.decodes if not engine.problem]
    if not prefills or not decodes:
        return []
    longer = max(len(prefills), len(decodes))
    order = ((at % len(prefills), (at + shift) % len(decodes)) for shift in range(longer) for at in range(longer))
    return [Pair(speaker, prefills[p], decodes[d]) for p, d in list(dict.fromkeys(order))[:MOST_PAIRS]]


def _told(pairs: Sequence[Pair], results: Sequence[Result]) -> list[Result]:
    """Return the results, of several pairs each with its name, those that are alike as one."""
    if len(pairs) == 1:
        return list(results)
    alike: dict[tuple[str, State, str, str], list[str]] = {}
    for pair, result in zip(pairs, results, strict=True):
        alike.setdefault((result.check, result.state, result.seen, result.remedy), []).append(pair.name)
    return [
        Result(check=check, state=state, seen=f"{seen} [{', '.join(names)}]", remedy=remedy)
        for (check, state, seen, remedy), names in alike.items()
    ]


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
    name = probe_id()
    first = speaker.complete(router, _opening(speaker, router), conversation=name)
    before, read_before = readback.scraped(router), [readback.scraped(engine) for engine in site.prefills]
    speaker.complete(router, first.followed_by(), limit=1, conversation=name)
    if before is not None and before.has(_TURNS):
        return _cause_counted(router, before)
    pairs = [(engine, seen) for engine, seen in zip(site.prefills, read_before, strict=True) if seen]
    if not pairs:
        return needs("reuse", "kvdiag's router, or prefill's /metrics")
    if any(readback.rose(engine, seen) for engine, seen in pairs):
        return Result(check="reuse", state="ok", seen="prefill read the second turn's KV back from decode")
    raise BrokenLinkError("prefill read nothing back for the second turn through this router", "missing_metadata")


def _opening(speaker: Speaker, router: Service) -> list[int] | str:
    """Return a fresh first prompt in the form of the second one, tokens where engines tell them.

    In front of stock engines a router compares what a conversation sends with what it sent before.
    """
    text = speaker.opening()
    told = speaker.complete(router, text, limit=1, conversation=probe_id()).prompt
    return secrets.SystemRandom().sample(told, len(told)) if isinstance(told, list) else text


def _cause_counted(router: Service, before: Samples) -> Result:
    """Return what the router counted for the second turn; other traffic may count at the same time."""
    was = before.by(_TURNS, "cause", "detail", "turn")
    until = time.monotonic() + readback.SETTLE_S
    risen: list[tuple[str, ...]] = []
    while not risen and time.monotonic() < until:
        time.sleep(readback.POLL_S)
        now = readback.scraped(router)
        counted = now.by(_TURNS, "cause", "detail", "turn") if now else {}
        risen = [key for key, value in counted.items() if key[2] == "2-4" and value > was.get(key, 0.0)]
    if len(risen) != 1:
        return needs("reuse", f"a quieter router: {len(risen)} causes were counted while the probe ran")
    return judged(risen[0][0], risen[0][1] or None, "through the router")


def _joined(through: Result | None, by_hand: list[Result]) -> list[Result]:
    """Return the router's result, with what driving by hand adds about where it fails."""
    if through is None or through.state == "ok":
        broken = [result for result in by_hand if result.state == "problem"]
        return [through, *broken] if through is not None else by_hand
    if through.state == "problem" and all(result.state == "ok" for result in by_hand):
        through.seen += "; driven by hand, the engines read back: the router is the broken link"
        return [through]
    return [result for result in by_hand if result.state == "problem"] or [through]
