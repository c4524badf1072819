"""Our own records in the casebook: the router's turn log and the connector's event log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvdiag.diagnosis.ids import external_id
from kvdiag.diagnosis.turns import Mark
from kvdiag.events import KvEvent, TurnRecord

if TYPE_CHECKING:
    from kvdiag.diagnosis.reduce import Seen

_Record = TypeVar("_Record", TurnRecord, KvEvent)


def add_record(seen: Seen) -> None:
    """Put one record of `kvdiag.turn/1` or `kvdiag.kv/1` into the casebook; anything else is left out."""
    record = seen.data.get("record")
    schema = str(seen.data.get("schema", ""))
    if isinstance(record, TurnRecord):
        _add_turn(seen, record)
    elif isinstance(record, KvEvent):
        _add_event(seen, record)
    elif schema.startswith("kvdiag.turn/"):
        _add_turn(seen, _convert(TurnRecord, seen.data))
    elif schema.startswith("kvdiag.kv/"):
        _add_event(seen, _convert(KvEvent, seen.data))


def _convert(kind: type[_Record], data: dict[str, Any]) -> _Record | None:
    try:
        # Older and newer minor versions differ in fields only: those not known are left out.
        return msgspec.convert({**data, "schema": kind.__struct_config__.tag}, kind, strict=False)
    except msgspec.ValidationError:
        return None


def _add_turn(seen: Seen, record: TurnRecord | None) -> None:
    seen.engine.votes["router"] += 1
    if record is None:
        seen.note("invalid_record")
        return
    seen.engine.counts["turn_records"] += 1
    turn = seen.book.named(external_id(record.request_id, suffixed=False))
    turn.record, turn.record_at = record, seen.evidence
    turn.conversation, turn.number = record.conversation, record.turn
    turn.prefill_s = record.prefill_s


def _add_event(seen: Seen, event: KvEvent | None) -> None:
    if event is None:
        seen.note("invalid_record")
        return
    seen.engine.votes[event.role] += 1
    seen.engine.counts[f"event_{event.kind}"] += 1
    turn = seen.book.request(event.request_id, (f"{seen.engine.name} {event.role}", 0))
    turn.mark(f"event_{event.kind}", Mark(seen.evidence, seen.engine, seen.fact.stamp, {"event": event}))
    if event.remote_request_id and event.role == "prefill":
        turn.handle = turn.handle or event.remote_request_id
        seen.book.wants(event.remote_request_id, turn.id)
