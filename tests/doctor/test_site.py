"""What can be seen of services, among them silent, foreign and hostile ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvdiag.doctor import observe
from kvdiag.doctor.site import block_size

from .conftest import Engine, Fake

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvdiag.doctor.site import Service


def look(url: str) -> Service:
    [service] = observe(None, [url], [], api_key=None, timeout_s=5).services
    return service


def test_an_engine_tells_version_model_and_block_size(serve: Callable[[Fake], Fake]) -> None:
    engine = look(serve(Engine()).url)
    assert (engine.problem, engine.version, engine.model, block_size(engine)) == (None, "0.32.0", "tiny", 16)
    assert engine.info("failure_policy") == "fail"


def test_nobody_there_is_a_problem_and_not_an_error() -> None:
    assert look("http://127.0.0.1:9").problem == "Connection refused"


@pytest.mark.parametrize("page", [404, "<html>", "a{b=} 1\n", "\x00\xff", '{"not": "metrics"}'])
def test_a_page_that_is_no_metrics_is_none(serve: Callable[[Fake], Fake], page: str | int) -> None:
    service = look(serve(Fake(pages={"/metrics": page})).url)
    assert service.problem is None
    assert service.samples is None or not service.samples.has("vllm:")


@pytest.mark.parametrize(
    "answer", ["{}", "[]", '{"data": 5}', '{"data": []}', '{"data": [7]}', '{"data": [{}]}', "nonsense"]
)
def test_a_strange_list_of_models_is_no_model(serve: Callable[[Fake], Fake], answer: str) -> None:
    assert look(serve(Fake(pages={"/metrics": "x 1\n", "/v1/models": answer})).url).models == ()


@pytest.mark.parametrize("answer", ["{}", '{"version": 5}', "nonsense"])
def test_a_strange_version_is_none(serve: Callable[[Fake], Fake], answer: str) -> None:
    assert look(serve(Fake(pages={"/metrics": "x 1\n", "/version": answer})).url).version is None


def test_services_keep_their_roles(serve: Callable[[Fake], Fake]) -> None:
    urls = [serve(Fake(pages={"/metrics": "x 1\n"})).url for _ in range(4)]
    site = observe(urls[0], urls[1:3], urls[3:], api_key=None, timeout_s=5)
    assert [service.role for service in site.services] == ["router", "prefill", "prefill", "decode"]
    assert [service.server.url for service in site.services] == urls
