"""What an exposition weighs, and the engine's exposition with as many peers as it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.connector.hooks import settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvdiag.connector.recorder import PEERS, EngineRecorder
from kvdiag.exporters.prometheus import Metrics
from kvdiag.localstack.process import get

if TYPE_CHECKING:
    from kvdiag.causes import Direction


@dataclass(frozen=True)
class Exposition:
    """One page of /metrics."""

    text: str

    @classmethod
    def of(cls, port: int) -> Self:
        """Return the page of a server on this machine."""
        return cls(get(port, "/metrics", timeout=30)[1].decode())

    def series(self, prefix: str = "", suffix: str = "") -> float:
        """Return how many series there are whose name begins and ends so."""
        families = text_string_to_metric_families(self.text)
        names = (sample.name for family in families for sample in family.samples)
        return float(sum(name.startswith(prefix) and name.endswith(suffix) for name in names))

    def sizes(self) -> dict[str, float]:
        """Return series, how many of them only tell when another was created, and bytes."""
        created = self.series(suffix="_created")
        return {"series": self.series(), "_created series": created, "bytes": float(len(self.text))}


def connector_page(peers: int) -> Exposition:
    """Return the connector's own part of an engine's page after transfers with so many peers in both directions."""
    registry = CollectorRegistry()
    metrics = Metrics("connector", registry, constant={"model_name": "model", "engine": "0"})
    recorder = EngineRecorder(metrics, settings(verify=True), None)
    recorder.introduce("16", "0.32.0", "1.5.1")
    for peer in range(peers):
        for direction in ("decode_to_prefill", "prefill_to_decode"):
            recorder.record(["event", _transfer(f"10.0.{peer // 250}.{peer % 250}:5600", direction)])
    return Exposition(generate_latest(registry).decode())


def connector_costs() -> dict[str, float]:
    """Return the connector's series and bytes without peers, with as many as it names, and with ten times as many."""
    return {
        f"connector, {peers} peers, {key}": value
        for peers in (0, PEERS, 10 * PEERS)
        for key, value in connector_page(peers).sizes().items()
    }


def _transfer(peer: str, direction: Direction) -> dict[str, object]:
    return {
        "t": 0.0,
        "request_id": "r",
        "role": "prefill",
        "engine_id": "e",
        "kind": "transfer",
        "direction": direction,
        "bytes": 1 << 20,
        "seconds": 0.01,
        "peer": peer,
    }
