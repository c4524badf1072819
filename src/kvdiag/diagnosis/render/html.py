"""The report as one self-contained HTML page: no script, no request, opens offline.

The tree is built with ElementTree, which escapes every text and attribute; the content security policy allows the
page's own style sheet (by its digest) and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, tostring

from kvdiag.causes import OUTCOMES
from kvdiag.diagnosis.render import charts, wording
from kvdiag.diagnosis.render.neutral import neutral

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvdiag.diagnosis.render import Style
    from kvdiag.diagnosis.render.svg import Frame
    from kvdiag.diagnosis.report import Finding, Report, TurnReport

_CSS: Final = """
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#5f6670;--line:#dcdfe4;--page:#fff;--card:#f6f7f9;--bad:#b3261e;
--good:#136c43;--unsure:#8a5a00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa3ad;--line:#363b42;--page:#16181c;--card:#1f2329;
--bad:#ff8a80;--good:#7fd6a8;--unsure:#f2c14e}}
*{box-sizing:border-box}body{overflow-wrap:anywhere}
body{margin:0 auto;max-width:1180px;padding:24px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:22px;line-height:1.3;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px}h3{font-size:15px;margin:20px 0 0}
p{margin:4px 0}.soft,figcaption{color:var(--soft)}
.verdict{border-left:5px solid var(--bad);padding:2px 0 2px 16px}
.verdict.healthy{border-color:var(--good)}.verdict.inconclusive{border-color:var(--unsure)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{white-space:nowrap}th{color:var(--soft);font-weight:600;white-space:nowrap}.number{text-align:right;white-space:nowrap}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
ul{margin:4px 0;padding-left:20px}.evidence{list-style:none;padding:8px 12px;background:var(--card);border-radius:6px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));gap:20px}
figure{margin:0;background:var(--card);border-radius:8px;padding:12px}figcaption{font-size:13px}
figcaption b{display:block;color:var(--ink);font-size:15px}
svg{display:block;width:100%;height:auto;margin-top:6px}svg text{fill:var(--soft);font-size:12px}
.grid{stroke:var(--line)}.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4}
.mark{stroke:var(--card);stroke-width:.8;fill-opacity:.9}.mark.bar{stroke:none}.mark:hover{stroke:var(--ink);stroke-width:2}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend svg{display:inline-block;width:14px;height:14px;margin:0 5px 0 0;vertical-align:-2px}
summary{cursor:pointer;font-size:17px;font-weight:600;margin-top:32px}
@media print{body{max-width:none}details{display:block}}
"""
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def render(report: Report, style: Style) -> str:
    """Return the page. Charts show the turns wherever the report has them, the table of turns only on request."""
    body = _el("body", *_parts(report, turns=style.turns))
    return (
        "<!DOCTYPE html>\n"
        + tostring(_el("html", _head(report), body, lang="en"), encoding="unicode", method="html")
        + "\n"
    )


def _el(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element; strings become neutral text, a trailing underscore in an attribute's name is dropped."""
    element = Element(tag, {name.rstrip("_").replace("_", "-"): neutral(value) for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + neutral(child)
        else:
            element.text = (element.text or "") + neutral(child)
    return element


def _head(report: Report) -> Element:
    digest = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    sheet = Element("style")
    sheet.text = _CSS
    return _el(
        "head",
        _el("meta", charset="utf-8"),
        _el("meta", http_equiv="Content-Security-Policy", content=_POLICY.format(digest)),
        _el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _el("meta", name="referrer", content="no-referrer"),
        _el("title", f"kvdiag: {report.verdict.cause}"),
        sheet,
    )


def _parts(report: Report, *, turns: bool) -> Iterator[Element]:
    verdict = report.verdict
    name = wording.cause_name(verdict.cause, verdict.detail)
    yield _el(
        "header",
        _el("h1", name, _el("span", wording.sureness(verdict), class_="soft")),
        _el("p", verdict.summary),
        _el("p", _el("b", wording.notice(report))),
        _el("p", wording.turns_line(report.turns), class_="soft"),
        _el("p", wording.window_line(report.window), class_="soft"),
        class_=f"verdict {verdict.cause}",
    )
    if report.findings:
        yield _el("h2", "Causes")
        yield _table(wording.FINDING_HEADINGS, map(wording.finding_cells, report.findings))
        yield from map(_finding, report.findings)
    yield from _charts(report)
    if report.latency.averages:
        yield _el("h2", "Times that only counters tell")
        yield _el("ul", *(_el("li", wording.average_line(average)) for average in report.latency.averages))
    if report.not_evaluated:
        yield _el("h2", "Not judged, for want of input")
        yield _table(("Rule", "Needs"), ((rule.rule, rule.needs) for rule in report.not_evaluated))
    yield _el("h2", "Inputs")
    yield _el("ul", *(_el("li", _el("code", wording.input_line(source))) for source in report.inputs))
    if turns and report.per_turn:
        rows = map(wording.turn_cells, report.per_turn)
        yield _el("details", _el("summary", "Turns"), _table(wording.TURN_HEADINGS, rows))
    if report.per_turn and report.latency.needs:
        yield _el("h2", "Parts of the time that are not known of every turn")
        yield _el("ul", *(_el("li", line) for line in wording.needed(report.latency.needs)))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Element:
    kinds = ["number" if heading in wording.NUMERIC else "text" for heading in headings]
    head = _el("tr", *(_el("th", text, class_=kind) for text, kind in zip(headings, kinds, strict=True)))
    body = (_el("tr", *(_el("td", text, class_=kind) for text, kind in zip(row, kinds, strict=True))) for row in rows)
    return _el("div", _el("table", _el("thead", head), _el("tbody", *body)), class_="wide")


def _finding(finding: Finding) -> Element:
    parts = [
        _el("h3", wording.cause_name(finding.cause, finding.detail)),
        _el("p", wording.meaning(finding.cause, finding.detail), class_="soft"),
    ]
    if finding.next_step:
        parts.append(_el("p", _el("b", "Next step: "), finding.next_step))
    if finding.runbook:
        parts.append(_el("p", _el("b", "More: "), _el("code", wording.more(finding))))
    if finding.evidence:
        lines = (_el("li", _el("code", _el("b", wording.place(item)), f" {item.text}")) for item in finding.evidence)
        parts.append(_el("ul", *lines, class_="evidence"))
    return _el("section", *parts)


def _charts(report: Report) -> Iterator[Element]:
    turns = report.per_turn or []
    drawn = [
        _figure(
            "TTFT by turn and cause",
            "Healthy conversations stay flat as they grow. Prefill time stands in where TTFT is unknown.",
            charts.ttft_by_turn(turns),
        ),
        _spent(turns),
        _figure("Time line of causes", "Faults that cluster share a trigger.", charts.time_line(turns)),
        _figure(
            "Gaps against TTL",
            "Turns right of the line come too late to be read back.",
            charts.gaps(turns, report.settings.decoder_kv_blocks_ttl),
        ),
        _figure("Transfer time by size", "Points far above the trend are slow transfers.", charts.transfers(turns)),
    ]
    figures = [figure for figure in drawn if figure is not None]
    if figures:
        yield _el("h2", "Turns over time")
        yield _el("ul", *(_key(cause) for cause in charts.causes_in(turns)), class_="legend")
        yield _el("div", *figures, class_="charts")


def _figure(title: str, caption: str, frame: Frame | None) -> Element | None:
    if frame is None:
        return None
    return _el("figure", _el("figcaption", _el("b", title), caption), frame.root)


def _spent(turns: Sequence[TurnReport]) -> Element | None:
    colors = charts.part_colors(turns)
    caption = "The parts of the time to first token, of the slowest turns; grey is time that no input divides."
    figure = _figure("Where the time went", caption, charts.spent(turns))
    if figure is not None:
        figure.append(_el("ul", *(_patch(name, color) for name, color in colors.items()), class_="legend"))
    return figure


def _patch(name: str, color: str) -> Element:
    swatch = _el("svg", _el("path", d="M1 1h12v12h-12z", fill=color), viewBox="0 0 14 14", aria_hidden="true")
    return _el("li", swatch, name)


def _key(cause: str) -> Element:
    path = "M7 1l6 6l-6 6l-6 -6z" if cause not in OUTCOMES else "M2 7a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"
    swatch = _el("svg", _el("path", d=path, fill=charts.color(cause)), viewBox="0 0 14 14", aria_hidden="true")
    return _el("li", swatch, cause)
