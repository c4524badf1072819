"""The whole local stack: prefill and decode engines, router, Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kvdiag.errors import UnavailableError
from kvdiag.localstack.engine import EngineOptions, engine_service, require_vllm
from kvdiag.localstack.model import Size, ensure_model
from kvdiag.localstack.process import HOST, Service, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType

    from kvdiag.events import Role

ENVIRONMENT: Final = "environment"
"""The file that tells a shell where everything is."""
LEASE_S: Final = 30
"""vLLM's own kv_lease_duration."""
START_TIMEOUT_S: Final = 420.0
"""A busy two-core machine was seen to take three minutes for the pair."""


def model_cache() -> Path:
    """Return where models are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvdiag"


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start. `router_arguments` None starts no router."""

    prefill: EngineOptions = field(default_factory=EngineOptions)
    decode: EngineOptions = field(default_factory=EngineOptions)
    prefills: int = 1
    decodes: int = 1
    model: Size = "tiny"
    router_arguments: tuple[str, ...] | None = ()
    prometheus: bool = False
    rules: tuple[Path, ...] = ()
    """Rule files that this Prometheus evaluates."""


class LocalStack:
    """Context manager: everything runs and is healthy inside, nothing is left behind outside.

    Logs, the router's turn log and the connectors' event logs lie in `folder`.

    Raises:
        MissingExtraError: vLLM is not installed.
        UnavailableError: a process ended or did not become healthy; names the log to read.

    """

    def __init__(
        self, folder: Path, options: StackOptions | None = None, *, progress: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder = folder
        self.options = options or StackOptions()
        self.prefills: list[Service] = []
        self.decodes: list[Service] = []
        self.router: Service | None = None
        self.prometheus: Service | None = None
        self._progress = progress
        self._clean_up = contextlib.ExitStack()

    @property
    def turn_log(self) -> Path:
        """Return the router's turn log."""
        return self.folder / "turns.jsonl"

    @property
    def logs(self) -> list[Path]:
        """Return every log that this run has written so far, what `kvdiag classify` takes."""
        services = [*self.prefills, *self.decodes, *([self.router] if self.router else [])]
        files = [*(service.log for service in services), *sorted(self.folder.glob("*-events.jsonl")), self.turn_log]
        return [file for file in files if file.exists() and file.stat().st_size]

    def __enter__(self) -> Self:
        require_vllm()
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as unwind:
            unwind.enter_context(_terminable())
            self._start(unwind)
            self._write_environment()
            self._clean_up = unwind.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up.close()

    def _start(self, unwind: contextlib.ExitStack) -> None:
        self._progress(f"preparing the {self.options.model} model")
        model = ensure_model(model_cache(), self.options.model)
        self.prefills = self._engines("prefill", self.options.prefill, self.options.prefills, model)
        self.decodes = self._engines("decode", self.options.decode, self.options.decodes, model)
        engines = [*self.prefills, *self.decodes]
        self._progress(f"starting {len(engines)} vLLM engines, about a minute (logs in {self.folder})")
        for engine in engines:
            self._launch(engine, unwind)
        for engine in engines:
            engine.wait_healthy(START_TIMEOUT_S, self._progress)
        if self.options.router_arguments is not None:
            self.router = self._ready(
                router_service(self.folder, self.prefills, self.decodes, self.options.router_arguments), unwind
            )
        if self.options.prometheus:
            self.prometheus = self._ready(self._prometheus_service(), unwind)

    def _write_environment(self) -> None:
        """Say where everything is, in the variables that runbooks use, as a file for the shell."""
        decode = self.options.decode
        variables = {
            "PREFILL": self.prefills[0].url,
            "DECODE": self.decodes[0].url,
            "LOGS": str(self.folder.resolve()),
            "TTL": str(decode.decode_ttl_s),
            "LEASE": str(self.options.prefill.lease_s or LEASE_S),
            "SIDE_CHANNEL_HOST": HOST,
            "SIDE_CHANNEL_PORT": self.decodes[0].environment["VLLM_NIXL_SIDE_CHANNEL_PORT"],
        }
        for name, service in (("ROUTER", self.router), ("PROM", self.prometheus)):
            if service is not None:
                variables[name] = service.url
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        (self.folder / ENVIRONMENT).write_text("".join(lines), encoding="utf-8")

    def _engines(self, role: Role, options: EngineOptions, count: int, model: Path) -> list[Service]:
        names = [role] if count == 1 else [f"{role}-{number}" for number in range(1, count + 1)]
        return [engine_service(name, role, model, self.folder, options) for name in names]

    def _launch(self, service: Service, unwind: contextlib.ExitStack) -> None:
        service.start()
        unwind.callback(service.stop)

    def _ready(self, service: Service, unwind: contextlib.ExitStack) -> Service:
        self._launch(service, unwind)
        service.wait_healthy(60, self._progress)
        return service

    def _prometheus_service(self) -> Service:
        if shutil.which("prometheus") is None:
            raise UnavailableError("prometheus is not installed; run: apt-get install prometheus")
        port = free_port()
        config = self.folder / "prometheus.yml"
        config.write_text(json.dumps(self._scrape_config()), encoding="utf-8")
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'prometheus-data'}",
            f"--web.listen-address={HOST}:{port}",
            "--log.level=warn",
        ]
        return Service("prometheus", command, self.folder / "prometheus.log", port, health_path="/-/ready")

    def _scrape_config(self) -> dict[str, object]:
        """Return the configuration; JSON is YAML too."""
        jobs = {"prefill": self.prefills, "decode": self.decodes, "router": [self.router] if self.router else []}
        return {
            "global": {"scrape_interval": "1s"},
            "rule_files": [str(file.resolve()) for file in self.options.rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [f"{HOST}:{service.port}" for service in services]}]}
                for job, services in jobs.items()
            ],
        }


def router_service(
    folder: Path,
    prefills: Sequence[Service],
    decodes: Sequence[Service],
    arguments: Sequence[str],
    name: str = "router",
) -> Service:
    """Return a router in front of these engines; its log and `turns.jsonl` lie in `folder`."""
    port = free_port()
    upstreams = [part for engine in prefills for part in ("--prefill", engine.url)]
    upstreams += [part for engine in decodes for part in ("--decode", engine.url)]
    listen = ["--host", HOST, "--port", str(port), "--turn-log", str(folder / "turns.jsonl")]
    command = [sys.executable, "-m", "kvdiag", "router", *listen, *upstreams, *arguments]
    return Service(name, command, folder / f"{name}.log", port)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that clean-up runs for it as it does for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
