"""What each input was: its format, who wrote it, how much of it was recognised, the time that it covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.report import InputSummary, Settings, Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.diagnosis.casebook import Casebook, FileNotes

_ROUTER: Final = frozenset({"lookup_miss", "lookup_hit", "handle_sent", "router_ready", "prefill_done"})


def summarise(notes: FileNotes) -> InputSummary:
    """Return the summary of one file."""
    recognised = min(sum(notes.facts.values()) + notes.accepted, notes.lines)
    roles = {engine.role for engine in notes.logs.values()} - {None}
    return InputSummary(
        path=notes.path,
        kind=kind_of(notes),
        role=next(iter(roles)) if len(roles) == 1 else "mixed" if roles else None,
        lines=notes.lines,
        recognised=recognised,
        skipped=notes.lines - recognised,
        repeated=notes.facts["repeated"],
        from_=clock.render(notes.span[0]),
        to=clock.render(notes.span[1]),
        cut_short=notes.problem is not None and notes.lines > 0,
        problem=notes.problem or _problem(notes),
    )


def kind_of(notes: FileNotes) -> str:
    """Return the name of the file's format."""
    for test, name in _KINDS:
        if test(notes):
            return name or next(iter(notes.systems or notes.products))
    return "unknown"


def _problem(notes: FileNotes) -> str | None:
    kind = kind_of(notes)
    if kind in {"empty", "binary", "unknown"}:
        return {"empty": "empty", "binary": "binary, not a log", "unknown": "no line of a known format"}[kind]
    return f"a log of {kind}, not of vLLM" if kind in notes.systems else None


_KINDS: Final[tuple[tuple[Callable[[FileNotes], bool], str], ...]] = (
    (lambda n: n.problem is not None and n.lines == 0, "unreadable"),
    (lambda n: n.lines == 0, "empty"),
    (lambda n: n.binary, "binary"),
    (lambda n: bool(n.systems) and not n.origins["vllm"], ""),
    (lambda n: n.facts["record"] > 0, "records"),
    (lambda n: n.facts["sample"] > 0, "metrics"),
    (lambda n: n.origins["vllm"] > 0, "vllm"),
    (lambda n: bool(n.products), ""),
    (lambda n: n.facts["router_line"] > 0, "kvdiag-router"),
    (lambda n: any(n.facts[kind] for kind in _ROUTER), "proxy"),
    (lambda n: n.facts["toy_ready"] + n.facts["router_error"] > 0, "toy-proxy"),
    (lambda n: n.origins["access"] > 0 or n.accepted > 0, "access"),
    (lambda n: n.origins["native"] > 0, "nixl"),
)


def window(book: Casebook) -> Window:
    """Return the time that all inputs cover together; dated stamps count first."""
    stamps = [stamp for notes in book.files.values() for stamp in notes.span if stamp is not None]
    known = [stamp for stamp in stamps if clock.dated(stamp)] or stamps
    return Window(from_=clock.render(min(known, default=None)), to=clock.render(max(known, default=None)))


def settings(book: Casebook) -> Settings:
    """Return the settings that start-up lines state; of several engines the ones that bound reuse first."""
    configs = [(engine.role, config) for engine in book.engines for config, _ in engine.configs]
    ttls = [ttl for role, config in configs if (ttl := config.ttl_s) is not None and role != "prefill"]
    thresholds = [tokens for role, config in configs if (tokens := config.threshold) is not None and role != "decode"]
    stated = [engine.ttl_s for engine in book.engines if engine.ttl_s is not None and engine.role == "decode"]
    return Settings(
        decoder_kv_blocks_ttl=min([*ttls, *stated], default=None),
        kv_recompute_threshold=max(thresholds, default=None),
        router_handle_ttl=_router_ttl(book),
    )


def _router_ttl(book: Casebook) -> float | None:
    stated = (event.ttl_s for events in book.conversations.values() for event in events if event.ttl_s is not None)
    return min(stated, default=None)
