"""The HTML page in a real Chromium: opens offline, asks for nothing, runs nothing."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

from kvdiag.diagnosis.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from kvdiag.diagnosis.report import Report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def seen() -> list[str]:
    """Whatever a harmless page never does: requests beyond the file itself, console messages, errors, dialogs."""
    return []


@pytest.fixture
def page(browser: Browser, report: Report, tmp_path: Path, seen: list[str]) -> Iterator[Page]:
    file = tmp_path / "report.html"
    file.write_text(render(report, "html", turns=True))
    page = browser.new_page(viewport={"width": 1240, "height": 1600}, offline=True)
    page.on("request", lambda request: seen.append(request.url) if request.url != file.as_uri() else None)
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("dialog", lambda dialog: seen.append(dialog.message))
    page.goto(file.as_uri())
    yield page
    page.close()


def test_asks_for_nothing_and_runs_nothing(page: Page, seen: list[str]) -> None:
    page.wait_for_load_state("networkidle")
    assert seen == []
    assert page.locator("script, img, iframe, object, link, a").count() == 0


def test_shows_verdict_causes_and_charts(page: Page) -> None:
    assert page.locator("h1").inner_text() == "expired_remote_read/declined (certain)"
    assert page.locator("figure svg").count() == 4
    assert page.get_by_text("raise decoder_kv_blocks_ttl").is_visible()
    assert page.get_by_text("queueing").is_visible()


def test_its_style_sheet_is_let_in_by_the_policy(page: Page) -> None:
    border = page.locator(".verdict").evaluate("node => getComputedStyle(node).borderLeftWidth")
    assert border == "5px"


def test_the_policy_stops_what_was_not_written_here(page: Page, seen: list[str]) -> None:
    page.evaluate("""() => {
        const image = document.createElement('img'); image.src = 'http://e.example/x'; document.body.append(image);
        const script = document.createElement('script'); script.textContent = 'window.ran = 1'; document.body.append(script);
    }""")
    assert page.evaluate("window.ran === undefined")
    assert any("Content Security Policy" in message for message in seen)


def test_hostile_text_is_shown_as_text(page: Page) -> None:
    assert "<script>alert(1)</script>" in page.locator(".evidence").nth(1).inner_text()


def test_nothing_overflows_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_turns_are_folded_away_until_asked_for(page: Page) -> None:
    row = page.get_by_text("chatcmpl-r4", exact=True)
    assert not row.is_visible()
    page.get_by_text("Turns", exact=True).last.click()
    assert row.is_visible()


def test_tags_are_balanced(report: Report) -> None:
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012 - one parser, one list

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(render(report, "html", turns=True))
    assert parser.open == []


def test_a_report_without_turns_has_no_empty_charts(healthy: Report) -> None:
    text = render(healthy, "html")
    assert "<figure" not in text
    assert "healthy" in text
