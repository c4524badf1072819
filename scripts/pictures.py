#!/usr/bin/env python3
"""Draw the README's pictures of a report, from the logs of a real run: `scripts/pictures.py kvdiag-demo`."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from kvdiag.diagnosis import Options, Report, classify
from kvdiag.diagnosis.render import render

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLUMNS = 132
PAGE = {"width": 1280, "height": 1400}


def terminal_page(report: Report, command: str) -> str:
    """Return what a terminal of `COLUMNS` columns shows, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(render(report, "terminal", turns=True, color=True, width=COLUMNS)))
    return console.export_svg(title=command)


def draw(page: str, suffix: str, target: Path) -> None:
    """Let Chromium draw a page or drawing into `target`, a PNG file."""
    source = target.with_suffix(suffix)
    source.write_text(page, encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        window = browser.new_page(viewport=PAGE, device_scale_factor=1.5)
        window.goto(source.as_uri())
        shown = window.locator("svg").first if suffix == ".svg" else window
        shown.screenshot(path=target)
        browser.close()
    source.unlink()


def main(folder: str) -> None:
    """Draw the terminal and the HTML report of the logs in `folder`."""
    logs = [str(log) for kind in ("*.log", "*.jsonl") for log in sorted(Path(folder).glob(kind))]
    report = classify(logs, Options(turns=True))
    command = f"kvdiag classify --turns {folder}/*.log {folder}/*.jsonl"
    draw(terminal_page(report, command), ".svg", IMAGES / "terminal.png")
    draw(render(report, "html", turns=True), ".html", IMAGES / "report.png")


if __name__ == "__main__":
    main(sys.argv[1])
