"""The live checks, as data: a name, what it asks, the remedy, and a judge with three answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kvdiag.causes import CAUSES
from kvdiag.doctor.site import INFO, Service, Site, block_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

State = Literal["ok", "problem", "not evaluated"]

READER_MARGIN_S: Final = 5.0
"""vLLM declines a read when less than this is left of decode's TTL."""
CLOCK_TOLERANCE_S: Final = 2.0
"""Dates come in whole seconds; beyond this, joining logs by time goes wrong."""
_FAILURES: Final = (
    "vllm:nixl_num_failed_transfers_total",
    "kvdiag_transfer_failures_total",
    "kvdiag_connector_errors_total",
)
_MANY_FAILED: Final = 0.01
"""Share of an engine's transfers since its start."""
_COMPARED: Final = ("ttl_seconds", "recompute_threshold", "nixl")


class Answer(msgspec.Struct, frozen=True):
    """What a judge says, and what it saw."""

    state: State
    seen: str


class Result(msgspec.Struct, kw_only=True):
    """One check's outcome. `remedy` is empty unless there is a problem."""

    check: str
    state: State
    seen: str
    remedy: str = ""


def judged(cause: str, detail: str | None, how: str) -> Result:
    """Return what it means for reuse that a second turn ended with this cause; `how` says who was asked."""
    name = f"{cause}/{detail}" if detail else cause
    if cause == "remote_hit":
        return Result(check="reuse", state="ok", seen=f"{how}, the second turn was read back from decode")
    known = CAUSES.get(cause)
    meaning = f" ({known.meaning})" if known else ""
    remedy = known.remedy(detail) if known else ""
    return Result(
        check="reuse", state="problem", seen=f"{how}, the second turn ended as {name}{meaning}", remedy=remedy
    )


def needs(check: str, what: str) -> Result:
    """Return that a check could not be made, and what it needs."""
    return Result(check=check, state="not evaluated", seen=f"needs {what}")


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a site."""

    name: str
    asks: str
    remedy: str
    judge: Callable[[Site], Answer]
    last: bool = False
    """It compares with an earlier look, so that it has to come after everything else."""

    def run(self, site: Site) -> Result:
        """Return the outcome for this site."""
        answer = self.judge(site)
        remedy = self.remedy if answer.state == "problem" else ""
        return Result(check=self.name, state=answer.state, seen=answer.seen, remedy=remedy)


def ok(seen: str) -> Answer:
    """Return that all is well."""
    return Answer("ok", seen)


def problem(seen: str) -> Answer:
    """Return that something is wrong."""
    return Answer("problem", seen)


def not_evaluated(needs: str) -> Answer:
    """Return that the check could not be made, and what it needs."""
    return Answer("not evaluated", f"needs {needs}")


def reachable(site: Site) -> Answer:
    """Judge whether every service answers."""
    silent = [f"{service.name}: {service.problem}" for service in site.services if service.problem]
    return problem("; ".join(silent)) if silent else ok(_answering(len(site.services)))


def metrics(site: Site) -> Answer:
    """Judge whether every service's metrics are there and filled."""
    seen = [service for service in site.services if not service.problem]
    if not seen:
        return not_evaluated("a service that answers")
    bare = [service.name for service in seen if not _has_metrics(service)]
    return problem(f"empty or foreign: {'; '.join(bare)}") if bare else ok("every page has its series")


def _answering(services: int) -> str:
    return "1 service answers" if services == 1 else f"{services} services answer"


def roles(site: Site) -> Answer:
    """Judge whether every engine is on the side that its kv_role is for."""
    told = [engine for engine in site.engines if engine.info("role")]
    if not told:
        return not_evaluated("kvdiag's connector on an engine")
    wrong = [f"{engine.name} says that it is {engine.info('role')}" for engine in told if engine.misplaced]
    return problem("; ".join(wrong)) if wrong else ok(f"{len(told)} engines are what they were called")


def versions(site: Site) -> Answer:
    """Judge whether all engines run one vLLM."""
    return _equal(site.engines, "vLLM version", lambda engine: engine.version or engine.info("vllm"))


def models(site: Site) -> Answer:
    """Judge whether all engines serve one model."""
    return _equal(site.engines, "model", lambda engine: engine.model)


def kv_layout(site: Site) -> Answer:
    """Judge whether all engines lay their KV out alike."""
    sizes = _equal(site.engines, "block size", lambda engine: _text(block_size(engine)))
    types = _equal(site.engines, "KV dtype", _kv_dtype)
    if sizes.state == "ok" and types.state == "problem":
        return types
    return sizes if types.state != "ok" or sizes.state != "ok" else ok(f"{sizes.seen}; {types.seen}")


def connector(site: Site) -> Answer:
    """Judge whether a KV connector is loaded on every engine."""
    seen = [engine for engine in site.engines if engine.samples]
    if not seen:
        return not_evaluated("an engine's /metrics")
    without = [engine.name for engine in seen if not _connector(engine)]
    if without:
        return problem(f"no NIXL series on {'; '.join(without)}")
    return ok(", ".join(f"{engine.role}: {_connector(engine)}" for engine in seen))


def bidirectional(site: Site) -> Answer:
    """Judge whether reading back is on at both ends."""
    flags = {engine.name: engine.info("bidirectional") for engine in site.engines}
    off = [name for name, flag in flags.items() if flag is not None and flag.lower() not in {"true", "1", "on", "yes"}]
    if off:
        return problem(f"off on {'; '.join(off)}")
    if not flags or None in flags.values():
        return not_evaluated("kvdiag's connector on every engine; the probe shows the effect without it")
    return ok("on everywhere")


def flags(site: Site) -> Answer:
    """Judge whether the connectors are set alike."""
    told = [engine for engine in site.engines if engine.samples and engine.samples.rows(INFO)]
    if len(told) < 2:
        return not_evaluated("kvdiag's connector on two engines or more")
    differing = [answer.seen for key in _COMPARED if (answer := _equal(told, key, _setting(key))).state == "problem"]
    return problem("; ".join(differing)) if differing else ok(f"{', '.join(_COMPARED)} are equal")


def failure_policy(site: Site) -> Answer:
    """Judge what a failed read-back does to its request."""
    policies = {engine.info("failure_policy") for engine in site.prefills} - {None}
    if not policies:
        return not_evaluated("kvdiag's connector on prefill")
    if policies == {"recompute"}:
        return ok("prefill computes what a failed read did not bring")
    if site.router is None:
        return not_evaluated("the router's URL: with `fail`, the router has to repeat the turn without its handle")
    if not _ours(site.router):
        return problem("prefill has `fail` and the router is not kvdiag's: a failed read-back answers HTTP 500")
    return ok("`fail` on prefill, and kvdiag's router repeats the turn without the handle")


def ttl_order(site: Site) -> Answer:
    """Judge whether the router lets go of handles before decode does."""
    router = site.router.number("kvdiag_router_handle_ttl_seconds") if site.router else None
    kept = [ttl for engine in site.decodes if (ttl := decode_ttl(engine)) is not None]
    if router is None or not kept:
        return not_evaluated("kvdiag's router and kvdiag's connector on decode")
    order = f"router {router:g} s, decode {min(kept):g} s, margin {READER_MARGIN_S:g} s"
    return ok(order) if router <= min(kept) - READER_MARGIN_S else problem(order)


def store(site: Site) -> Answer:
    """Judge whether the router's handle store answers."""
    up = site.router.number("kvdiag_router_store_up") if site.router else None
    if up is None:
        return not_evaluated("kvdiag's router")
    return ok("the store answers") if up else problem("the store is down: the router serves without reuse")


def clocks(site: Site) -> Answer:
    """Judge whether the hosts' clocks agree with this one's."""
    skews = {service.name: service.clock_s for service in site.services if service.clock_s is not None}
    if not skews:
        return not_evaluated("a Date header in the answers")
    off = [f"{name} by {skew:+.0f} s" for name, skew in skews.items() if abs(skew) > CLOCK_TOLERANCE_S]
    return problem(f"off from here: {'; '.join(off)}") if off else ok(f"{len(skews)} clocks agree with this host's")


def failures(site: Site) -> Answer:
    """Judge whether engines count failed transfers or errors of the connector: now, or too many since they started."""
    counted = [
        (engine, name, count)
        for engine in site.engines
        for name in _FAILURES
        if (count := engine.number(name)) is not None
    ]
    if not counted:
        return not_evaluated("the NIXL series of an engine")
    rising = [
        f"{name} +{rise:g} on {engine.name}"
        for engine, name, count in counted
        if (rise := count - site.before(engine, name)) > 0
    ]
    if site.earlier is not None and rising:
        return problem(f"while this ran: {'; '.join(rising)}")
    bad = [(engine, name, count) for engine, name, count in counted if count]
    if not bad:
        return ok("no failed transfer since start")
    seen = "; ".join(
        f"{name} = {count:g} on {engine.name} since its start{_age(engine)}" for engine, name, count in bad
    )
    quiet = ", none while this ran" if site.earlier is not None else ""
    return problem(seen + quiet) if any(_many(engine, count) for engine, _, count in bad) else ok(f"few: {seen}{quiet}")


def _many(engine: Service, failed: float) -> bool:
    transfers = engine.number("vllm:nixl_xfer_time_seconds_count")
    return transfers is None or failed >= _MANY_FAILED * (transfers + failed)


def _age(engine: Service) -> str:
    started = engine.number("process_start_time_seconds")
    return f" {(time.time() - started) / 3600:.1f} h ago" if started else ""


def decode_ttl(engine: Service) -> float | None:
    """Return for how long decode keeps blocks, seconds."""
    number = engine.number("kvdiag_retention_ttl_seconds")
    text = engine.info("ttl_seconds")
    try:
        return number or float(text or "")
    except ValueError:
        return None


def _equal(engines: Iterable[Service], what: str, value: Callable[[Service], str | None]) -> Answer:
    found = {engine.name: value(engine) for engine in engines}
    told = {name: seen for name, seen in found.items() if seen}
    if len(told) < 2 or len(told) < len(found):
        return not_evaluated(f"the {what} of every engine, two or more")
    if len(set(told.values())) == 1:
        return ok(f"{what} {next(iter(told.values()))} everywhere")
    return problem(f"{what} differs: " + "; ".join(f"{seen} on {name}" for name, seen in told.items()))


def _setting(key: str) -> Callable[[Service], str | None]:
    return lambda engine: engine.info(key)


def _kv_dtype(engine: Service) -> str | None:
    return engine.samples.label("vllm:cache_config_info", "cache_dtype") if engine.samples else None


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _has_metrics(service: Service) -> bool:
    if service.samples is None:
        return False
    return (
        len(service.samples) > 0 and not service.foreign if service.role == "router" else service.samples.has("vllm:")
    )


def _ours(service: Service | None) -> bool:
    return service is not None and service.samples is not None and service.samples.has("kvdiag_router_")


def _connector(engine: Service) -> str | None:
    if engine.samples is None:
        return None
    if engine.samples.rows(INFO):
        return "kvdiag's"
    return "stock NIXL" if engine.samples.has("vllm:nixl_") else None


CHECKS: Final = (
    Check("reachable", "Does every service answer?", "start the service, or correct its URL", reachable),
    Check(
        "metrics",
        "Are metrics there and filled?",
        "correct the URL, or serve /metrics there (no --disable-log-stats); on a fresh engine send one request",
        metrics,
    ),
    Check(
        "roles",
        "Is every engine on the side of its kv_role?",
        "swap the URLs of --prefill and --decode, or start prefill with kv_role kv_producer and decode with kv_consumer",
        roles,
    ),
    Check("versions", "Do all engines run one vLLM?", CAUSES["peer_unreachable"].remedy("incompatible"), versions),
    Check("models", "Do all engines serve one model?", CAUSES["peer_unreachable"].remedy("incompatible"), models),
    Check(
        "kv_layout",
        "Do all engines lay their KV out alike?",
        "give all engines the same --block-size and --kv-cache-dtype",
        kv_layout,
    ),
    Check("connector", "Is a KV connector loaded?", CAUSES["feature_off"].remedy("no_connector"), connector),
    Check("bidirectional", "Is reading back on at both ends?", CAUSES["feature_off"].remedy(), bidirectional),
    Check(
        "flags", "Are the connectors set alike?", "give prefill and decode the same kv_connector_extra_config", flags
    ),
    Check(
        "failure_policy",
        "What does a failed read-back do?",
        "leave kvdiag_recompute_failed_reads on for prefill, or let kvdiag's router repeat such turns",
        failure_policy,
    ),
    Check("ttl_order", "Does the router let go before decode?", CAUSES["expired_remote_read"].remedy(), ttl_order),
    Check("store", "Does the handle store answer?", "start the store that the router names in its log", store),
    Check("clocks", "Do the clocks agree?", "synchronise the hosts (chrony, ntpd)", clocks),
    Check(
        "failures",
        "Do transfers fail: now, or many since start?",
        CAUSES["transfer_failed"].remedy(),
        failures,
        last=True,
    ),
)
"""Every check that needs no request of its own, in the order in which to read them."""
