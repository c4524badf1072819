"""One row of the report for each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.ids import addressed
from kvdiag.diagnosis.judge import is_only_sent, outcome
from kvdiag.diagnosis.report import TurnReport
from kvdiag.diagnosis.split import split, transfer_event
from kvdiag.diagnosis.summary import lost_s, lost_tokens, outcome_lines

if TYPE_CHECKING:
    from kvdiag.causes import Confidence
    from kvdiag.diagnosis.judge import Fault
    from kvdiag.diagnosis.latency import Baseline
    from kvdiag.diagnosis.report import Evidence
    from kvdiag.diagnosis.summary import Judged
    from kvdiag.diagnosis.turns import Turn

_MAX_EVIDENCE: Final = 4
_FROM_RECORD: Final = (
    "prefill",
    "decode",
    "status",
    "stream",
    "prompt_tokens",
    "local_tokens",
    "remote_tokens",
    "computed_tokens",
    "handle_age_s",
    "gap_s",
    "ttft_s",
    "total_s",
)


def row(turn: Turn, known: Judged, baseline: Baseline, *, reads: bool) -> TurnReport:
    """Return the row of one turn; `reads` tells whether prefill read anything back at all."""
    fault = known.faults[0] if known.faults else None
    sent = is_only_sent(turn)
    ended = None if sent and not reads else outcome(turn)
    report = TurnReport(
        request_id=turn.id,
        conversation=turn.conversation,
        turn=turn.number,
        ts=turn.record.ts if turn.record is not None else clock.render(turn.first_seen),
        cause=fault.cause if fault else ended or "unexplained",
        detail=fault.detail if fault else None,
        confidence=fault.confidence if fault else _sureness(ended, sent=sent),
        probe=turn.is_probe,
        slow=known.slow,
        lost_tokens=lost_tokens(turn),
        lost_seconds=lost_s(turn, fault, baseline) if fault else None,
        prefill_s=turn.prefill_s,
        gap_s=turn.lookup.gap_s if turn.lookup is not None else None,
        split=split(turn),
        evidence=_evidence(turn, fault),
    )
    report.prefill, report.decode = endpoints(turn)
    _add_record(report, turn)
    _add_transfer(report, turn)
    return report


def _sureness(ended: str | None, *, sent: bool) -> Confidence:
    if ended is None:
        return "possible"
    return "likely" if sent else "certain"


def endpoints(turn: Turn) -> tuple[str | None, str | None]:
    """Return the prefill and the decode engine of a turn: by its router's word, or by the id that one made up."""
    named = addressed(turn.id) or (None, None)
    return turn.endpoints.get("prefill", named[0]), turn.endpoints.get("decode", named[1])


def _add_record(report: TurnReport, turn: Turn) -> None:
    for name in _FROM_RECORD:
        value = getattr(turn.record, name, None)
        if value is not None:
            setattr(report, name, value)


def _add_transfer(report: TurnReport, turn: Turn) -> None:
    event = transfer_event(turn, "decode_to_prefill")
    if event is not None:
        report.transfer_bytes, report.transfer_s = event.bytes, event.seconds


def _evidence(turn: Turn, fault: Fault | None) -> list[Evidence]:
    if fault is not None:
        return fault.evidence[:_MAX_EVIDENCE]
    return outcome_lines(turn, outcome(turn))[:_MAX_EVIDENCE]
