"""What can be seen of a deployment from outside: each service's health, version, metrics and clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvdiag.doctor.http import NoAnswerError, Server
from kvdiag.doctor.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["router", "prefill", "decode"]
INFO = "kvdiag_connector_info"


@dataclass(frozen=True, slots=True)
class Service:
    """One service as it answered. None stands for what it did not tell."""

    role: Role
    server: Server
    problem: str | None = None
    """Why it could not be reached."""
    version: str | None = None
    models: tuple[str, ...] = ()
    """The names that it serves."""
    samples: Samples | None = None
    clock_s: float | None = None

    @property
    def name(self) -> str:
        """Return how to call it in a message."""
        return f"{self.role} {self.server.url}"

    @property
    def model(self) -> str | None:
        """Return the first name that it serves."""
        return self.models[0] if self.models else None

    @property
    def tells(self) -> bool:
        """Whether its metrics are those of vLLM or of kvdiag."""
        return self.samples is not None and (self.samples.has("vllm:") or self.samples.has("kvdiag_"))

    @property
    def foreign(self) -> bool:
        """Whether it is something else altogether, such as a Prometheus: metrics of its own, and no model."""
        return bool(self.samples) and not self.tells and not self.models

    @property
    def misplaced(self) -> bool:
        """Whether it is an engine whose kv_role is that of the other side; a kv_both engine can be either."""
        return self.role != "router" and self.info("role") == {"prefill": "decode", "decode": "prefill"}[self.role]

    def info(self, key: str) -> str | None:
        """Return a setting that kvdiag's connector exports."""
        return self.samples.label(INFO, key) if self.samples else None

    def number(self, name: str) -> float | None:
        """Return a metric's value, summed over its labels."""
        return self.samples.total(name) if self.samples else None


@dataclass(frozen=True, slots=True)
class Site:
    """The deployment under examination."""

    router: Service | None
    prefills: tuple[Service, ...]
    decodes: tuple[Service, ...]
    earlier: Site | None = None
    """The same deployment some time before."""

    def before(self, service: Service, name: str) -> float:
        """Return what a metric of a service was at the earlier look; 0 where there was none."""
        earlier = self.earlier.engines if self.earlier is not None else ()
        return next((known.number(name) or 0.0 for known in earlier if known.name == service.name), 0.0)

    @property
    def engines(self) -> tuple[Service, ...]:
        """Return prefill and decode engines."""
        return self.prefills + self.decodes

    @property
    def services(self) -> tuple[Service, ...]:
        """Return everything, the router first."""
        return ((self.router,) if self.router else ()) + self.engines

    @property
    def block_size(self) -> int | None:
        """Return the tokens of a KV block on the first engine that tells."""
        return next((size for size in map(block_size, self.engines) if size), None)


def block_size(service: Service) -> int | None:
    """Return the tokens of a KV block, from kvdiag's connector or from vLLM itself."""
    stock = service.samples.label("vllm:cache_config_info", "block_size") if service.samples else None
    text = service.info("block_size") or stock or ""
    return int(text) if text.isdigit() else None


def observe(
    router: str | None, prefills: Sequence[str], decodes: Sequence[str], *, api_key: str | None, timeout_s: float
) -> Site:
    """Ask every service, all at once; a service that does not answer is part of the result, not an error."""
    wanted: list[tuple[Role, str]] = [("router", router)] if router else []
    wanted += [("prefill", url) for url in prefills] + [("decode", url) for url in decodes]
    servers = [(role, Server.parse(url, api_key)) for role, url in wanted]
    with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
        seen = list(pool.map(lambda pair: look_at(pair[0], pair[1], timeout_s), servers))
    return Site(
        router=next((service for service in seen if service.role == "router"), None),
        prefills=tuple(service for service in seen if service.role == "prefill"),
        decodes=tuple(service for service in seen if service.role == "decode"),
    )


def look_at(role: Role, server: Server, timeout_s: float) -> Service:
    """Ask one service for everything that it tells without credentials for administration."""
    try:
        page = server.get("/metrics", timeout_s)
    except NoAnswerError as error:
        return Service(role, server, problem=str(error))
    return Service(
        role,
        server,
        version=_field(server, "/version", timeout_s, "version"),
        models=_models(server, timeout_s),
        samples=_samples(page.body) if page.status == 200 else None,
        clock_s=page.clock_s,
    )


def _samples(body: bytes) -> Samples | None:
    try:
        return Samples.parse(body.decode("utf-8", "replace"))
    except (ValueError, KeyError, IndexError):
        return None


def _field(server: Server, path: str, timeout_s: float, key: str) -> str | None:
    try:
        value = server.get(path, timeout_s).json().get(key)
    except NoAnswerError:
        return None
    return value if isinstance(value, str) else None


def _models(server: Server, timeout_s: float) -> tuple[str, ...]:
    try:
        data = server.get("/v1/models", timeout_s).json().get("data")
    except NoAnswerError:
        return ()
    return (
        tuple(str(item["id"]) for item in data if isinstance(item, dict) and "id" in item)
        if isinstance(data, list)
        else ()
    )
