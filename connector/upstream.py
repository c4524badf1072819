"""Every place where kvdiag touches what vLLM does not promise to keep.

`kvdiag.connector.surface` lists what is relied on; an engine whose vLLM lacks any of it does not start. vLLM 0.29 to
0.33.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import time
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvdiag.connector import surface
from kvdiag.connector.digest import Salt
from kvdiag.connector.plan import Layout
from kvdiag.connector.worker import failure_of

if TYPE_CHECKING:
    from kvdiag.connector.outbox import Outbox
    from kvdiag.connector.worker import WorkerSide

_log = logging.getLogger("vllm.kvdiag.connector")
NAME: Final = "KvdiagNixlConnector"
ITEMS: Final = "kvdiag"
"""Key of our items in the stats' data."""


def missing_from_vllm() -> list[str]:
    """Return what the installed vLLM lacks of the surface; empty where it fits."""
    return surface.missing(surface.CONNECTOR, _parameters_of)


def _parameters_of(method: surface.Method) -> tuple[str, ...] | None:
    owner = getattr(importlib.import_module(method.module), method.owner, None)
    function = getattr(owner, method.name, None)
    if function is None:
        return None
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def require_surface() -> None:
    """Raise RuntimeError, naming what is missing, where this vLLM cannot be instrumented."""
    missing = missing_from_vllm()
    if missing:
        raise RuntimeError(
            f"KvdiagNixlConnector supports vLLM 0.29 to 0.33; this is {vllm_version}, which lacks {'; '.join(missing)}. "
            'Use "kv_connector": "NixlConnector" or another version of kvdiag.'
        )


def may_notify_strangers() -> bool:
    """Return whether telling an engine to let go is safe before the first handshake with it.

    In vLLM 0.29 a failed handshake would report such a request as received, which stops the engine.
    """
    return Version(vllm_version).release >= (0, 30)


def nixl_version() -> str:
    """Return the version of the installed NIXL wheel, or "unknown"."""
    for name in ("nixl-cu12", "nixl-cu13", "nixl", "nixl-rocm"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def layout_of(vllm_config: Any, kv_cache_config: Any) -> Layout:
    """Return the layout of this engine's KV cache."""
    groups = kv_cache_config.transfer_groups
    parallel = vllm_config.parallel_config
    whole = (
        len(groups) == 1
        and isinstance(groups[0].kv_cache_spec, FullAttentionSpec)
        and parallel.decode_context_parallel_size == 1
        and parallel.prefill_context_parallel_size == 1
    )
    memory = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return Layout(
        block_size=vllm_config.cache_config.block_size,
        divisible=whole,
        block_bytes=ranks * memory // max(1, kv_cache_config.num_blocks),
        blocks=kv_cache_config.num_blocks,
    )


def recompute_failed_reads(vllm_config: Any) -> None:
    """Let vLLM's scheduler compute what a failed read did not bring: it reads the policy after it has made the connector."""
    vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"


def can_read_back(connector: Any) -> bool:
    """Return whether upstream's scheduler queues the reads that it claims: it does not with a host staging buffer."""
    scheduler = connector.connector_scheduler
    return bool(scheduler.is_bidirectional_kv_xfer_enabled and not scheduler.use_host_buffer)


def salt_of(request: Any) -> Salt:
    """Return what changes the KV of a request beside its tokens."""
    lora = request.lora_request.lora_name if request.lora_request is not None else ""
    whole = f"{lora}\0{request.cache_salt or ''}".encode() if lora or request.cache_salt else b""
    parts = [(feature.mm_position.offset, feature.identifier.encode()) for feature in request.mm_features]
    return Salt(whole, tuple(sorted(parts)))


def stats_with(stats: NixlKVConnectorStats | None, items: list[Any]) -> InstrumentedStats:
    """Return upstream's stats with our items beside them."""
    together = InstrumentedStats()
    if stats is not None:
        together.data = dict(stats.data)
    together.data[ITEMS] = items
    return together


def take_items(stats: Any) -> list[Any]:
    """Return our items from the workers' stats, MultiConnector's included, and leave none there."""
    if isinstance(stats, MultiKVConnectorStats):
        stats = stats.data.get(NAME)
    if not isinstance(stats, InstrumentedStats):
        return []
    items: list[Any] = stats.data[ITEMS]
    stats.data[ITEMS] = []
    return items


def register() -> None:
    """Let vLLM find the connector by its name alone, as MultiConnector does for the stats of its members."""
    with contextlib.suppress(ValueError):  # registered already
        KVConnectorFactory.register_connector(NAME, "kvdiag.connector", NAME)


class InstrumentedStats(NixlKVConnectorStats):  # type: ignore[misc]  # vLLM ships no types
    """Upstream's stats and our items; upstream's own aggregation joins both."""

    def reset(self) -> None:
        """Empty both."""
        super().reset()
        self.data[ITEMS] = []

    def is_empty(self) -> bool:
        """Return whether there is nothing to hand on."""
        return not self.data[ITEMS] and super().is_empty()


def attach(worker: Any, side: WorkerSide, outbox: Outbox) -> None:
    """Let `side` see what the worker does. Raises RuntimeError, naming it, where the worker lacks state that is read."""
    lacking = [name for name in surface.WORKER_STATE if not hasattr(worker, name)]
    if lacking:
        raise RuntimeError(f"KvdiagNixlConnector: vLLM {vllm_version}'s worker has no {', '.join(lacking)}")
    _attach_reads(worker, side, outbox)
    _attach_transfers(worker, side, outbox)
    _attach_notifications(worker, side, outbox)


def _attach_reads(worker: Any, side: WorkerSide, outbox: Outbox) -> None:
    read, expired = worker._read_blocks_for_req, worker._is_turn2_read_expired
    prepare, notify = worker.nixl_wrapper.make_prepped_xfer, worker.nixl_wrapper.send_notif
    current: list[str] = [""]

    def annotated(message: bytes) -> bytes:
        return outbox.guard(side.annotated, current[0], message) or message

    def annotated_prepare(*arguments: Any, notif_msg: bytes = b"", **options: Any) -> Any:
        return prepare(*arguments, notif_msg=annotated(notif_msg) if notif_msg else notif_msg, **options)

    def annotated_notify(agent: str, notif_msg: bytes, *arguments: Any, **options: Any) -> Any:
        return notify(agent, annotated(notif_msg), *arguments, **options)

    def observed_read(req_id: str, meta: Any) -> None:
        current[0] = req_id
        outbox.guard(side.reading, req_id, meta.remote.engine_id)
        if meta.remote.engine_id in getattr(worker, "_invalid_remote_engines", ()):
            side.failing(req_id, "peer_unreachable", "restarted")
        try:
            read(req_id, meta)
        except Exception as error:  # noqa: BLE001 - one request with impossible params must not take the rank down
            _fail(worker, side, outbox, req_id, error)
        finally:
            current[0] = ""
        if req_id not in worker._recving_metadata:
            side.forget(req_id)

    def observed_expiry(meta: Any) -> bool:
        is_expired = bool(expired(meta))
        if is_expired:
            side.failing(current[0], "expired_remote_read")
        return is_expired

    worker.nixl_wrapper.make_prepped_xfer = annotated_prepare
    worker.nixl_wrapper.send_notif = annotated_notify
    worker._read_blocks_for_req = observed_read
    worker._is_turn2_read_expired = observed_expiry


def _fail(worker: Any, side: WorkerSide, outbox: Outbox, request_id: str, error: Exception) -> None:
    """Let upstream report a read as failed whose set-up raised: its handle does not fit this engine."""
    _log.error("kvdiag: the read for %s could not be set up: %r", request_id, error)
    side.failing(request_id, "missing_metadata", "incomplete")
    if request_id in worker._recving_metadata:
        outbox.guard(_report_failed, worker, request_id)


def _report_failed(worker: Any, request_id: str) -> None:
    failures = getattr(worker, "_recv_failures", None)  # since 0.30
    worker._handle_failed_transfer(request_id, None, *(() if failures is None else (failures,)))


def can_give_up(worker: Any) -> bool:
    """Return whether a read can be given up: what it brings late must go to its own blocks, and its failure be told.

    A host staging buffer is copied on arrival; vLLM 0.29 cannot report failures of models with several groups.
    """
    return not worker.use_host_buffer and (hasattr(worker, "_recv_failures") or not worker._is_hma_required)


def give_up_stalled(worker: Any, side: WorkerSide) -> None:
    """Report reads that take too long as failed.

    Upstream goes on to follow them under another id, which brings no blocks along: it keeps the holder's registration
    while the read lasts and frees NIXL's handle in the end.
    """
    for request_id in side.overdue(worker._recving_transfers):
        meta = worker._recving_metadata[request_id]
        name = side.give_up(request_id)
        nothing: tuple[list[int], ...] = tuple([] for _ in meta.local_block_ids)
        worker._recving_metadata[name] = replace(meta, local_block_ids=nothing, local_physical_block_ids=nothing)
        worker._recving_transfers[name] = worker._recving_transfers.pop(request_id)
        _report_failed(worker, request_id)
        _log.error("kvdiag: the read for %s from %s stalls; it is given up", request_id, meta.remote.engine_id)


def _attach_transfers(worker: Any, side: WorkerSide, outbox: Outbox) -> None:
    fail, handshake = worker._handle_failed_transfer, worker._nixl_handshake
    telemetry = worker.nixl_wrapper.get_xfer_telemetry

    def observed_telemetry(handle: int) -> Any:
        measured = telemetry(handle)
        outbox.guard(note_transfer, handle, measured)
        return measured

    def note_transfer(handle: int, measured: Any) -> None:
        for request_id, reading in worker._recving_transfers.items():
            if handle in reading:
                side.moved(request_id, measured)
                return

    def observed_failure(req_id: str, handle: int | None, *arguments: Any, **options: Any) -> Any:
        side.failing(req_id, "transfer_failed")
        return fail(req_id, handle, *arguments, **options)

    def observed_handshake(
        host: str,
        port: int,
        remote_tp_size: int,
        expected_engine_id: str,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        start = time.perf_counter()
        try:
            result = handshake(host, port, remote_tp_size, expected_engine_id, *arguments, **options)
        except BaseException as error:
            outbox.guard(side.handshaken, expected_engine_id, time.perf_counter() - start, failure_of(error))
            raise
        outbox.guard(side.handshaken, expected_engine_id, time.perf_counter() - start, None)
        return result

    worker.nixl_wrapper.get_xfer_telemetry = observed_telemetry
    worker._handle_failed_transfer = observed_failure
    worker._nixl_handshake = observed_handshake


def _attach_notifications(worker: Any, side: WorkerSide, outbox: Outbox) -> None:
    receive, digest = worker.nixl_wrapper.get_new_notifs, worker._get_new_notifs

    def held(request_id: str) -> bool:
        return request_id in worker._reqs_to_process or request_id in worker._reqs_to_send

    def observed_receive() -> Any:
        messages = receive()
        if not messages:
            return messages
        sifted = outbox.guard(side.sift, messages)
        return messages if sifted is None else sifted

    def observed_digest() -> Any:
        notified = digest()
        outbox.guard(side.notified, notified, held)
        return notified

    worker.nixl_wrapper.get_new_notifs = observed_receive
    worker._get_new_notifs = observed_digest
