"""`KvdiagNixlConnector`: upstream's pull connector, observed, and kept from claiming what it cannot read.

A facade: upstream's methods run as they are, ours before or after them. Nothing of ours may fail a request, so every
call goes through `Outbox.guard`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

from kvdiag.connector import upstream
from kvdiag.connector.exposition import InstrumentedPromMetrics
from kvdiag.connector.outbox import Outbox
from kvdiag.connector.scheduler import SchedulerSide
from kvdiag.connector.settings import Settings
from kvdiag.connector.worker import WorkerSide

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvdiag.connector.reads import Request


class KvdiagNixlConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM ships no types
    """Drop-in for NixlConnector.

    Raises RuntimeError at start where this vLLM cannot be instrumented, InputError for a setting that cannot be used.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        upstream.require_surface()
        settings = Settings.of(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        self._outbox = Outbox()
        self._scheduler_side: SchedulerSide | None = None
        self._worker_side: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            if settings.recomputes_failed_reads:
                upstream.recompute_failed_reads(vllm_config)
            self._scheduler_side = SchedulerSide(
                settings,
                upstream.layout_of(vllm_config, kv_cache_config),
                self._outbox,
                can_read_back=upstream.can_read_back(self),
                may_notify_strangers=upstream.may_notify_strangers(),
            )
        else:
            worker = self.connector_worker
            timeout_s = settings.read_timeout_s if upstream.can_give_up(worker) else 0.0
            self._worker_side = WorkerSide(self._outbox, leads=worker.tp_rank == 0, read_timeout_s=timeout_s)
            upstream.attach(worker, self._worker_side, self._outbox)

    # Scheduler side.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the pool that the blocks of this engine come from."""
        super().bind_gpu_block_pool(gpu_block_pool)
        if self._scheduler_side is not None:
            self._scheduler_side.quarantine.bind(gpu_block_pool)

    def on_new_request(self, request: Request) -> None:
        """Vet the params before upstream reads them."""
        if self._scheduler_side is not None:
            self._outbox.guard(self._scheduler_side.admit, request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Let upstream claim only what can be read; without a plan, nothing."""
        side = self._scheduler_side
        if side is not None and not self._outbox.guard(side.offer, request, lambda: upstream.salt_of(request)):
            side.withhold(request)
        claim: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if side is not None:
            self._outbox.guard(side.matched, request, num_computed_tokens)
        return claim

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        """Take the decision down."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if self._scheduler_side is not None:
            self._outbox.guard(self._scheduler_side.admitted, request, num_external_tokens, blocks.blocks)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Send the workers, beside what upstream sends, how each read uses its handle."""
        meta = super().build_connector_meta(scheduler_output)
        if self._scheduler_side is not None:
            meta.kvdiag_notes = self._scheduler_side.take_notes()
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """Learn from the workers what has arrived, failed and been let go."""
        super().update_connector_output(connector_output)
        self._outbox.guard(self._learn, connector_output)

    def _learn(self, output: Any) -> None:
        side = self._scheduler_side
        if side is None:
            return
        side.absorb(upstream.take_items(output.kv_connector_stats))
        side.received(output.finished_recving or ())
        side.released(output.finished_sending or ())

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Add to the params that go back what router and next engine need."""
        return self._add_context(request, (block_ids,), super().request_finished(request, block_ids))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Do the same for models with several KV cache groups; vLLM calls this one for every model."""
        return self._add_context(request, block_ids, super().request_finished_all_groups(request, block_ids))

    def _add_context(
        self,
        request: Any,
        block_ids: Sequence[Sequence[int]],
        result: tuple[bool, dict[str, Any] | None],
    ) -> tuple[bool, dict[str, Any] | None]:
        held, params = result
        if self._scheduler_side is not None:
            self._outbox.guard(
                self._scheduler_side.finished,
                request,
                block_ids if held else (),
                params,
                lambda: request.all_token_ids,
                lambda: upstream.salt_of(request),
            )
        return held, params

    # Worker side.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start upstream's reads, each of them observed."""
        if self._worker_side is not None:
            self._outbox.guard(self._worker_side.keep_notes, getattr(self._connector_metadata, "kvdiag_notes", {}))
        super().start_load_kv(forward_context, **kwargs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Report what has ended; vLLM 0.29 asks here."""
        self._give_up_stalled()
        sent, received = super().get_finished(finished_req_ids)
        self._observe(sent, received)
        return sent, received

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Report what has ended; vLLM 0.30 and later ask here."""
        self._give_up_stalled()
        results = super().get_transfer_results(finished_req_ids)
        self._observe(results.finished_sending, results.finished_recving)
        results.failed_recving &= results.finished_recving
        return results

    def _give_up_stalled(self) -> None:
        if self._worker_side is not None:
            self._outbox.guard(upstream.give_up_stalled, self.connector_worker, self._worker_side)

    def _observe(self, sent: Iterable[str], received: set[str]) -> None:
        if self._worker_side is not None:
            self._outbox.guard(self._worker_side.settle, received)
            self._outbox.guard(self._worker_side.received, received)
            self._outbox.guard(self._worker_side.let_go, sent)

    # Both sides, and the API server.

    def get_kv_connector_stats(self) -> upstream.InstrumentedStats | None:
        """Return upstream's stats with our items; None where there is nothing to tell."""
        stats = super().get_kv_connector_stats()
        items = self._outbox.drain()
        return upstream.stats_with(stats, items) if stats is not None or items else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> NixlKVConnectorStats | None:
        """Return upstream's stats alone: they feed the periodic log line, which stays as it is."""
        return NixlKVConnectorStats(data={key: value for key, value in (data or {}).items() if key != upstream.ITEMS})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> InstrumentedPromMetrics:
        """Return what receives the stats in the API server."""
        return InstrumentedPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


upstream.register()
