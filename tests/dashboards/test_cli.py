"""`kvdiag dashboards`: files on disk, boards in a Grafana, and clear words when neither can be done."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from kvdiag.cli.dashboards import command
from kvdiag.errors import InputError, KvdiagError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Grafana:
    """Enough of Grafana's HTTP API to notice what is sent; answers `code` to everything but folders that exist."""

    def __init__(self, code: int) -> None:
        self.received: list[tuple[str, str, dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.received.append((self.path, self.headers["authorization"], body))
                self.send_response(412 if self.path == "/api/folders" and code == 200 else code)
                self.end_headers()
                self.wfile.write(b'{"message":"said by grafana"}')

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def grafana(request: pytest.FixtureRequest) -> Iterator[Grafana]:
    fake = Grafana(getattr(request, "param", 200))
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def run(*arguments: str) -> str:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False).output


def test_write_gives_everything_that_grafana_and_prometheus_read(tmp_path: Path) -> None:
    output = run("write", str(tmp_path), "--grafana-url", "https://grafana.example", "--ttft-objective", "1")
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert {"boards/overview.json", "runbooks/suspect_kv.json", "kvdiag.rules.yaml", "prometheus.yaml"} <= written
    assert f"{len(written)} files" in output
    text = (tmp_path / "kvdiag.rules.yaml").read_text()
    assert "https://grafana.example/d/kvdiag-runbook-suspect_kv" in text
    assert 'le="1.0"' in text


def test_provisioning_links_exemplars_to_traces_and_finds_the_boards(tmp_path: Path) -> None:
    run("write", str(tmp_path))
    sources = yaml.safe_load((tmp_path / "provisioning/datasources/kvdiag.yaml").read_text())["datasources"]
    prometheus, tempo = sources
    assert prometheus["jsonData"]["exemplarTraceIdDestinations"] == [
        {"name": "trace_id", "datasourceUid": tempo["uid"]}
    ]
    providers = yaml.safe_load((tmp_path / "provisioning/dashboards/kvdiag.yaml").read_text())["providers"]
    for provider in providers:
        folder = provider["options"]["path"].replace("${KVDIAG_DASHBOARDS}", str(tmp_path))
        assert list(Path(folder).glob("*.json"))


def test_push_creates_folders_and_replaces_boards(grafana: Grafana) -> None:
    output = run("push", grafana.url + "/", "--token", "secret")
    folders = [body["uid"] for path, _, body in grafana.received if path == "/api/folders"]
    boards = [body for path, _, body in grafana.received if path == "/api/dashboards/db"]
    assert folders == ["kvdiag-boards", "kvdiag-runbooks"]
    assert {body["folderUid"] for body in boards} == set(folders)
    assert all(body["overwrite"] and body["dashboard"]["id"] is None for body in boards)
    assert all(header == "Bearer secret" for _, header, _ in grafana.received)
    assert f"{len(boards)} dashboards pushed" in output


@pytest.mark.parametrize(
    ("grafana", "error", "message"),
    [
        (401, InputError, "set GRAFANA_TOKEN"),
        (403, InputError, "role Editor"),
        (500, UnavailableError, "said by grafana"),
    ],
    indirect=["grafana"],
)
def test_a_grafana_that_refuses_is_named_with_the_remedy(
    grafana: Grafana, error: type[KvdiagError], message: str
) -> None:
    with pytest.raises(error, match=message):
        run("push", grafana.url, "--token", "secret")


def test_a_grafana_that_is_not_there_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:9 does not answer .* check the URL"):
        run("push", "http://127.0.0.1:9", "--token", "x")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .* choose another directory"):
        run("write", str(tmp_path / "file" / "below"))
