"""Every pattern finds its own sample, through the scanner, and nothing in a quotation of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from kvdiag.diagnosis.patterns import PATTERNS, Pattern
from kvdiag.diagnosis.reduce import KINDS
from kvdiag.diagnosis.scan import scan

if TYPE_CHECKING:
    from kvdiag.diagnosis.lines import Origin

_LAYOUTS: Final[dict[Origin, str]] = {
    "vllm": "(EngineCore pid=5) WARNING 10-14 09:00:00 [f.py:1] {}\n",
    "proxy": "2026-10-14 09:00:00 [INFO] disagg_proxy: {}\n",
    "native": "E1014 09:00:00.513088   27395 x.cpp:1] {}\n",
    "access": "INFO:     {}\n",
    "bare": "{}\n",
    "json": '{{"level": "info", "ts": "2026-10-14T09:00:00.100Z", "caller": "proxy/connector_nixlv2.go:178", "msg": "{}"}}\n',
}
_SAMPLED = [pattern for pattern in PATTERNS if pattern.sample and pattern.origins & set(_LAYOUTS)]
_QUOTE = "(APIServer pid=1) INFO 10-14 09:00:00 [logger.py:9] Generated response chatcmpl-z: output: '{}', finish_reason: stop\n"


def _name(pattern: Pattern) -> str:
    return f"{pattern.kind}: {pattern.needle[:30]}"


@pytest.mark.parametrize("pattern", _SAMPLED, ids=_name)
def test_a_pattern_finds_its_sample_in_every_layout(pattern: Pattern) -> None:
    for origin in pattern.origins & set(_LAYOUTS):
        found = scan(_LAYOUTS[origin].format(pattern.sample).encode()).facts

        assert pattern.kind in {fact.kind for fact in found}, origin


@pytest.mark.parametrize("pattern", _SAMPLED, ids=_name)
def test_model_output_that_quotes_a_sample_is_no_fact(pattern: Pattern) -> None:
    lines = [_QUOTE.format(layout.format(pattern.sample).strip()) for layout in _LAYOUTS.values()]

    assert scan("".join(lines).encode()).facts == []


@pytest.mark.parametrize("pattern", [pattern for pattern in _SAMPLED if pattern.kind != "foreign"], ids=_name)
@pytest.mark.parametrize("form", ["| `x` | y | `{}` |\n", "> {}\n", "- {}\n", "`{}`\n", '"{}"\n', "It said: {}\n"])
def test_a_document_that_quotes_a_sample_is_no_fact(pattern: Pattern, form: str) -> None:
    assert scan(form.format(pattern.sample).encode()).facts == []


@pytest.mark.parametrize("pattern", PATTERNS, ids=_name)
def test_a_pattern_says_where_its_message_comes_from(pattern: Pattern) -> None:
    assert pattern.source


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p.find is None and not p.spellings], ids=_name)
def test_a_needle_survives_json_and_stands_in_its_sample(pattern: Pattern) -> None:
    assert pattern.needle.isascii()
    assert not set(pattern.needle) & set('"\\\n')
    assert not pattern.sample or pattern.needle in pattern.sample or pattern.kind in {"router_line", "sidecar_error"}


def test_every_kind_of_fact_is_handled_or_known_to_need_no_handling() -> None:
    needless = {"foreign", "lookup_hit", "nixl_named", "retained", "bad_request"}
    unhandled = {pattern.kind for pattern in PATTERNS} - KINDS
    assert unhandled == needless, (
        f"give {sorted(unhandled ^ needless)} a handler in `_HANDLERS` of src/kvdiag/diagnosis/reduce.py, or a place in this list"
    )
