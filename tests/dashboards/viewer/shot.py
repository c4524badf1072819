"""Take pictures of dashboards: Grafana's own panels, in Chromium, with data from a Prometheus.

Set up once in this folder: npm ci && node build.mjs
Usage: shot.py --prometheus URL --job REGEX --out DIRECTORY DASHBOARD.json...
Prints one JSON object a dashboard: {"dashboard", "picture", "panels": [{title, type, series, empty, error}], "noise"}.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE: Final = Path(__file__).resolve().parent
ICONS: Final = HERE / "node_modules/@grafana/ui/dist"
PAGE: Final = {
    "/": (HERE / "src/index.html", "text/html"),
    "/bundle.css": (HERE / "dist/bundle.css", "text/css"),
    "/bundle.js": (HERE / "dist/bundle.js", "text/javascript"),
}
WIDTH: Final = 1600


class Server(ThreadingHTTPServer):
    """Serves the page, one dashboard at a time, and Prometheus under its own address."""

    def __init__(self, prometheus: str, config: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prometheus = prometheus
        self.config = json.dumps(config).encode()
        self.dashboard = b""
        self.report: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the base
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in PAGE:
            file, kind = PAGE[path]
            self._reply(file.read_bytes(), kind)
        elif path == "/dashboard.json":
            self._reply(self.server.dashboard)
        elif path == "/config.json":
            self._reply(self.server.config)
        elif path.startswith("/prom/"):
            self._reply(self._ask(self.path.removeprefix("/prom")))
        else:
            icon = ICONS / path.replace("/public/build/", "/public/").lstrip("/")
            self._reply(icon.read_bytes() if icon.is_file() and ".." not in path else b"", "image/svg+xml")

    def do_POST(self) -> None:
        self.server.report = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._reply(b"{}")

    def _ask(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(self.server.prometheus + path) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return bytes(error.read())

    def _reply(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)


def take(browser: Browser, server: Server, dashboard: Path, picture: Path) -> dict[str, Any]:
    """Draw one dashboard and return what its panels reported."""
    server.dashboard, server.report = dashboard.read_bytes(), []
    noise: list[str] = []
    page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
    page.wait_for_function("document.title === 'done'", timeout=180_000)
    page.screenshot(path=str(picture), full_page=True)
    page.close()
    return {"dashboard": dashboard.name, "picture": str(picture), "panels": server.report, "noise": noise}


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dashboards", nargs="+", type=Path)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--job", default=".*")
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--step", type=int, default=30, help="seconds between two points")
    parser.add_argument("--rate-interval", default="4m", help="what $__rate_interval stands for")
    parser.add_argument("--to", type=int, default=int(time.time()), help="end of the window, seconds since the epoch")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed; run: apt-get install chromium fonts-inter")
    span = round(options.hours * 3600)
    variables = {"job": options.job, "prefill": ".*", "decode": ".*", "model": ".*", "datasource": "prometheus"}
    variables |= {"__rate_interval": options.rate_interval, "__range": f"{span}s"}
    window = {"from": (options.to - span) * 1000, "to": options.to * 1000, "step": options.step * 1000}
    server = Server(options.prometheus, {"range": window, "variables": variables})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for dashboard in options.dashboards:
            print(json.dumps(take(browser, server, dashboard, options.out / f"{dashboard.stem}.png")), flush=True)
        browser.close()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
