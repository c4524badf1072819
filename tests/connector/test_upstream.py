"""The installed vLLM is the one that the adapter expects, and its own classes carry our items."""

from __future__ import annotations

import inspect
import os
import queue
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvdiag.connector.worker import annotate

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.filterwarnings("ignore")  # importing vLLM and torch warns in many ways


@pytest.fixture(scope="module", autouse=True)
def upstream() -> ModuleType:
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    from kvdiag.connector import upstream as module

    return module


def test_everything_touched_exists_with_its_parameters(upstream: ModuleType) -> None:
    assert upstream.missing_from_vllm() == []


def test_the_streaming_plugin_finds_what_it_patches(upstream: ModuleType) -> None:
    from kvdiag.connector import surface

    assert surface.missing(surface.STREAMING, upstream._parameters_of) == []


def test_what_is_missing_is_named_at_start(upstream: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvdiag.connector import surface

    monkeypatch.setattr(surface, "CONNECTOR", (surface.Method("types", "SimpleNamespace", "gone", ("a", "b")),))
    with pytest.raises(RuntimeError, match=r"supports vLLM .* lacks SimpleNamespace.gone\(a, b\)"):
        upstream.require_surface()


def test_the_state_that_is_read_is_set_by_upstreams_constructors(upstream: ModuleType) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, base_worker

    from kvdiag.connector import surface

    worker = inspect.getsource(base_worker.NixlBaseConnectorWorker.__init__)
    scheduler = inspect.getsource(base_scheduler.NixlBaseConnectorScheduler.__init__)
    assert [name for name in surface.WORKER_STATE if f"self.{name}" not in worker] == []
    assert [name for name in surface.SCHEDULER_STATE if f"self.{name}" not in scheduler] == []


def test_upstreams_aggregation_joins_items_and_stats(upstream: ModuleType) -> None:
    worker = upstream.stats_with(None, [["moved", "r", 1, 2, 3, 4]])
    worker.record_kv_expired_req()
    together = worker.aggregate(upstream.stats_with(None, [["event", {}]]))
    assert together.data[upstream.ITEMS] == [["moved", "r", 1, 2, 3, 4], ["event", {}]]
    assert len(together.data["num_kv_expired_reqs"]) == 1
    assert upstream.take_items(together) == [["moved", "r", 1, 2, 3, 4], ["event", {}]]
    assert upstream.take_items(together) == []


def test_a_multi_connectors_stats_hold_ours_and_find_the_class_by_name(upstream: ModuleType) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorStats

    from kvdiag.connector import KvdiagNixlConnector

    name = KvdiagNixlConnector.__name__
    members = MultiKVConnectorStats(data={name: upstream.stats_with(None, [["unverified"]])})
    assert KVConnectorFactory.get_connector_class_by_name(name) is KvdiagNixlConnector
    assert upstream.take_items(members) == [["unverified"]]
    assert upstream.take_items(members) == []


@pytest.mark.parametrize("stats", [None, object()])
def test_other_stats_hold_no_items(upstream: ModuleType, stats: object) -> None:
    assert upstream.take_items(stats) == []


def test_stats_with_items_only_are_handed_on_and_empty_ones_are_not(upstream: ModuleType) -> None:
    assert upstream.InstrumentedStats().is_empty()
    assert not upstream.stats_with(None, [["unverified"]]).is_empty()


def test_the_periodic_log_line_sees_upstreams_stats_only(upstream: ModuleType) -> None:
    """Items alone must not print a line of zeros."""
    from kvdiag.connector import KvdiagNixlConnector

    stats = upstream.stats_with(None, [["unverified"]])
    logged: Any = KvdiagNixlConnector.build_kv_connector_stats(stats.data)
    assert logged.is_empty()
    assert stats.data[upstream.ITEMS] == [["unverified"]]


def request(**changes: Any) -> Any:  # noqa: ANN401 - stands in for vLLM's Request
    return SimpleNamespace(**({"lora_request": None, "cache_salt": None, "mm_features": []} | changes))


@pytest.mark.parametrize(
    "other",
    [
        request(cache_salt="tenant"),
        request(lora_request=SimpleNamespace(lora_name="adapter")),
        request(mm_features=[SimpleNamespace(identifier="cat", mm_position=SimpleNamespace(offset=3))]),
    ],
    ids=["cache salt", "adapter", "image"],
)
def test_what_changes_kv_beside_tokens_changes_the_salt(upstream: ModuleType, other: object) -> None:
    assert upstream.salt_of(other) != upstream.salt_of(request())
    assert upstream.salt_of(other) == upstream.salt_of(other)


def layout(upstream: ModuleType, *specs: Any, dcp: int = 1, tensor: int = 1) -> Any:  # noqa: ANN401
    parallel = SimpleNamespace(
        decode_context_parallel_size=dcp,
        prefill_context_parallel_size=1,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=1,
    )
    vllm_config = SimpleNamespace(parallel_config=parallel, cache_config=SimpleNamespace(block_size=16))
    cache = SimpleNamespace(
        transfer_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs],
        kv_cache_tensors=[SimpleNamespace(size=1000), SimpleNamespace(size=1000)],
        num_blocks=10,
    )
    return upstream.layout_of(vllm_config, cache)


def test_only_a_single_group_of_full_attention_can_be_cut(upstream: ModuleType) -> None:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    full, latent, window = (spec.__new__(spec) for spec in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec))
    assert layout(upstream, full).divisible
    assert layout(upstream, latent).divisible
    assert not layout(upstream, window).divisible
    assert not layout(upstream, full, window).divisible
    assert not layout(upstream, latent, dcp=2).divisible
    assert layout(upstream, full, tensor=2).block_bytes == 400


class FakeWrapper:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.inbox: dict[str, list[bytes]] = {}

    def get_xfer_telemetry(self, _handle: int) -> object:
        return SimpleNamespace(xferDuration=1e6, postDuration=0, totalBytes=7, descCount=1)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        inbox, self.inbox = self.inbox, {}
        return inbox

    def make_prepped_xfer(self, *_arguments: object, notif_msg: bytes = b"") -> int:
        self.sent.append(("transfer", notif_msg))
        return 41

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        self.sent.append((agent, notif_msg))


class FakeWorker:
    """vLLM's worker, as far as it is touched: `read` and `handshake` are what a test wants them to do."""

    def __init__(self, read: Any = None, handshake: Any = None) -> None:  # noqa: ANN401
        self.nixl_wrapper = FakeWrapper()
        self.tp_rank = 0
        self._recving_metadata: dict[str, object] = {}
        self._recving_transfers: dict[str, list[int]] = {}
        self.use_host_buffer = self._is_hma_required = False
        self._reqs_to_process: set[str] = set()
        self._reqs_to_send: dict[str, float] = {}
        self._recv_failures: set[str] = set()
        self._read, self._handshake = read, handshake

    def _read_blocks_for_req(self, req_id: str, meta: object) -> None:
        self._recving_metadata[req_id] = meta
        if self._read:
            self._read(self, req_id, meta)

    def _is_turn2_read_expired(self, meta: Any) -> bool:  # noqa: ANN401
        return bool(meta.expired)

    def _handle_failed_transfer(self, req_id: str, _handle: int | None, failures: set[str] | None = None) -> bool:
        if failures is not None:
            failures.add(req_id)
        return True

    def _nixl_handshake(self, *_arguments: object) -> str:
        return str(self._handshake())

    def _get_new_notifs(self) -> set[str]:
        return {
            message.decode().rsplit(":", 1)[0]
            for batch in self.nixl_wrapper.get_new_notifs().values()
            for message in batch
        }


def attached(upstream: ModuleType, worker: FakeWorker, **options: Any) -> tuple[Any, Any]:  # noqa: ANN401
    from kvdiag.connector.outbox import Outbox
    from kvdiag.connector.worker import WorkerSide

    outbox = Outbox()
    side = WorkerSide(outbox, leads=True, **options)
    upstream.attach(worker, side, outbox)
    return side, outbox


def meta(*, expired: bool = False) -> Any:  # noqa: ANN401
    return SimpleNamespace(remote=SimpleNamespace(engine_id="engine", request_id="old"), expired=expired)


def test_a_read_whose_setup_raises_fails_that_request_alone(upstream: ModuleType) -> None:
    def read(_worker: FakeWorker, _request: str, _meta: object) -> None:
        raise AssertionError("more blocks here than there")

    worker = FakeWorker(read)
    side, outbox = attached(upstream, worker)
    worker._read_blocks_for_req("r", meta())
    assert worker._recv_failures == {"r"}
    side.received(["r"])
    assert outbox.drain() == [["failed", "r", "missing_metadata", "incomplete", "engine"]]


def test_a_declined_read_is_told_apart_from_a_failed_one(upstream: ModuleType) -> None:
    def read(worker: FakeWorker, request_id: str, asked: object) -> None:
        if worker._is_turn2_read_expired(asked):
            worker._handle_failed_transfer(request_id, None, worker._recv_failures)

    worker = FakeWorker(read)
    side, outbox = attached(upstream, worker)
    worker._read_blocks_for_req("r", meta(expired=True))
    side.received(["r"])
    assert outbox.drain() == [["failed", "r", "expired_remote_read", None, "engine"]]


def test_a_finished_transfer_is_booked_to_its_request(upstream: ModuleType) -> None:
    worker = FakeWorker()
    side, outbox = attached(upstream, worker)
    worker._read_blocks_for_req("r", meta())
    worker._recving_transfers["r"] = [41, 42]
    worker.nixl_wrapper.get_xfer_telemetry(42)
    side.received(["r"])
    assert outbox.drain() == [["moved", "r", 7, 1.0, 0.0, 1]]


def test_a_reads_notifications_are_annotated_and_no_others(upstream: ModuleType) -> None:
    def read(worker: FakeWorker, _request: str, _meta: object) -> None:
        worker.nixl_wrapper.make_prepped_xfer("READ", notif_msg=b"old:1")
        worker.nixl_wrapper.send_notif("other rank", notif_msg=b"old:1")

    worker = FakeWorker(read)
    side, _ = attached(upstream, worker)
    side.keep_notes({"r": "read"})
    worker._read_blocks_for_req("r", meta())
    worker.nixl_wrapper.send_notif("agent", notif_msg=b"HB:r")
    noted = annotate(b"old:1", "read", "r")
    assert worker.nixl_wrapper.sent == [("transfer", noted), ("other rank", noted), ("agent", b"HB:r")]


@dataclass
class ReadMeta:
    """What of vLLM's ReqMeta says where a read goes."""

    local_block_ids: tuple[list[int], ...]
    local_physical_block_ids: tuple[list[int], ...]
    remote: Any


def test_a_stalled_read_fails_its_request_and_is_followed_without_its_blocks(upstream: ModuleType) -> None:
    worker, now = FakeWorker(), [0.0]
    side, _ = attached(upstream, worker, read_timeout_s=30.0, clock=lambda: now[0])
    worker._recving_metadata["r"] = ReadMeta(([1, 2],), ([1, 2],), meta().remote)
    worker._recving_transfers["r"] = [41]
    for now[0] in (0.0, 31.0):
        upstream.give_up_stalled(worker, side)
    ((followed, handles),) = worker._recving_transfers.items()
    kept: Any = worker._recving_metadata[followed]
    assert (worker._recv_failures, handles) == ({"r"}, [41])
    assert (kept.local_block_ids, kept.local_physical_block_ids) == (([],), ([],))
    assert kept.remote.engine_id == "engine"


def vllms_worker(read_state: list[str]) -> Any:  # noqa: ANN401 - vLLM's
    """Return vLLM's own worker with one read under way, on a NIXL that says of it what `read_state` says last."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta, ReqMeta
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    class Worker(NixlPullConnectorWorker):  # type: ignore[misc]  # vLLM ships no types
        def __init__(self) -> None:
            self.nixl_wrapper = FakeWrapper()
            self.nixl_wrapper.check_xfer_state = lambda _handle: read_state[-1]  # type: ignore[attr-defined]
            self.nixl_wrapper.release_xfer_handle = read_state.append  # type: ignore[attr-defined]
            self.transfer_topo = SimpleNamespace(
                get_engine_info=lambda _engine: SimpleNamespace(
                    remote_block_size=16, remote_physical_blocks_per_logical=1
                ),
                block_size_ratio=lambda _size: 1,
            )
            self.use_host_buffer = self._is_hma_required = self.use_mla = False
            self.enable_permute_local_kv = self.enable_heterogeneous_attn_post_process = False
            self.engine_id, self._handshake_lock = "own", threading.Lock()
            self._handshake_futures = {"met lately": None}  # no engine is cleaned up during a handshake
            self.tp_rank, self._physical_blocks_per_logical_kv_block = 0, 1
            self.xfer_stats = NixlKVConnectorStats()
            self._reqs_to_process: set[str] = set()
            self._reqs_to_send: dict[str, float] = {}
            self._replicated_pcp_done_sending: set[str] = set()
            self._pending_recv_notifs: dict[str, Any] = {}
            self._failed_remote_engines: set[str] = set()
            self._invalid_block_ids: queue.Queue[set[int]] = queue.Queue()
            self._failed_recv_reqs: queue.Queue[str] = queue.Queue()
            if "_recv_failures" in inspect.getsource(base_worker):  # since 0.30
                self._recv_failures: set[str] = set()
            remote = RemoteMeta(block_ids=([7, 8],), host="h", port=1, engine_id="engine", request_id="old")
            self._recving_metadata = {"r": ReqMeta(([1, 2],), ([1, 2],), tp_size=1, remote=remote)}
            self._recving_transfers = {"r": [41]}

        def __del__(self) -> None:
            """Nothing was started."""

        def _log_failure(self, **_about: object) -> None:
            """Its context needs more of a worker than there is."""

    return Worker()


def test_vllms_worker_follows_a_read_given_up_to_its_end(upstream: ModuleType) -> None:
    read_state: list[Any] = ["PROC"]
    worker, now = vllms_worker(read_state), [0.0]
    side, outbox = attached(upstream, worker, read_timeout_s=30.0, clock=lambda: now[0])

    def poll() -> tuple[set[str], set[int], list[Any]]:
        upstream.give_up_stalled(worker, side)
        _, received = worker.get_finished()
        side.settle(received)
        side.received(received)
        return received, worker.get_block_ids_with_load_errors(), outbox.drain()

    assert poll() == (set(), set(), [])
    now[0] = 31.0
    given_up = [["stalled", "r"], ["failed", "r", "transfer_failed", "stalled", None]]
    assert poll() == ({"r"}, {1, 2}, given_up)
    now[0] = 100.0
    assert poll() == (set(), set(), [])
    read_state.append("DONE")
    assert poll() == (set(), set(), [["settled", "r"]])
    assert read_state[-1] == 41
    assert (worker._recving_metadata, worker._recving_transfers) == ({}, {})


def test_vllms_worker_forgets_a_read_given_up_that_fails_in_the_end(upstream: ModuleType) -> None:
    read_state: list[Any] = ["PROC"]
    worker, now = vllms_worker(read_state), [0.0]
    side, outbox = attached(upstream, worker, read_timeout_s=30.0, clock=lambda: now[0])
    for now[0] in (0.0, 31.0):
        upstream.give_up_stalled(worker, side)
    worker.get_finished()
    worker.get_block_ids_with_load_errors()
    outbox.drain()
    read_state.append("ERR")
    _, received = worker.get_finished()
    side.settle(received)
    assert (received, worker.get_block_ids_with_load_errors(), outbox.drain()) == (set(), set(), [["settled", "r"]])


@pytest.mark.parametrize(
    ("state", "can"),
    [({}, True), ({"use_host_buffer": True}, False), ({"_is_hma_required": True}, True)],
)
def test_what_can_be_given_up_safely_depends_on_the_worker(
    upstream: ModuleType, state: dict[str, bool], *, can: bool
) -> None:
    worker = FakeWorker()
    vars(worker).update(state)
    assert upstream.can_give_up(worker) is can


def test_vllm_0_29_cannot_report_a_failure_of_several_groups(upstream: ModuleType) -> None:
    worker = FakeWorker()
    del worker._recv_failures
    assert upstream.can_give_up(worker)
    worker._is_hma_required = True
    assert not upstream.can_give_up(worker)


def test_a_handshake_that_fails_still_raises(upstream: ModuleType) -> None:
    def handshake() -> str:
        raise RuntimeError("Remote NIXL agent engine ID mismatch. Expected a,received b.")

    worker = FakeWorker(handshake=handshake)
    _, outbox = attached(upstream, worker)
    with pytest.raises(RuntimeError, match="engine ID mismatch"):
        worker._nixl_handshake("host", 1, 1, "engine")
    ((kind, engine, _, *failure),) = outbox.drain()
    assert (kind, engine, failure) == ("handshake", "engine", ["peer_unreachable", "restarted"])


def test_notifications_reach_upstream_without_notes(upstream: ModuleType) -> None:
    worker = FakeWorker()
    side, outbox = attached(upstream, worker)
    worker._reqs_to_process.add("old")
    worker.nixl_wrapper.inbox = {"agent": [annotate(b"old:1", "notified", "reader")]}
    assert worker._get_new_notifs() == {"old"}
    side.let_go(["old"])
    assert outbox.drain() == [["released", "old", "notified"]]


def test_a_worker_without_the_state_that_is_read_is_refused(upstream: ModuleType) -> None:
    worker = FakeWorker()
    del worker._reqs_to_send
    with pytest.raises(RuntimeError, match="_reqs_to_send"):
        attached(upstream, worker)
