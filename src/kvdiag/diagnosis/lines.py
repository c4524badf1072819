"""One line of a log: what wraps it, who wrote it and when, and the message itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from kvdiag.diagnosis import clock
from kvdiag.diagnosis.text import strip_ansi

if TYPE_CHECKING:
    from collections.abc import Callable

Origin = Literal["vllm", "proxy", "native", "access", "json", "bare"]
"""Who lays the line out: a vLLM logger, a Python router's logger, NIXL or UCX, uvicorn, a JSON logger, or nobody."""

_MAX_WRAPPERS: Final = 4
_MAX_JSON: Final = 1 << 20

_PROCESSES = r"(?P<processes>(?:\([^()]{0,80}pid=\d+[^()]{0,40}\) ?)*)"
_HEADER: Final = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<day>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) "
    r"\[[^\]]{1,200}\] ?(?P<message>.*)",
    re.DOTALL,
)
# What may stand before it: processes, and VLLM_LOGGING_PREFIX on either side. A quotation never may.
_BEFORE: Final = re.compile(r"[^\"'{}()\n]{0,48}" + _PROCESSES + r"[^\"'{}()\n]{0,48}")
_MAX_BEFORE: Final = 400
# The same without anything in front, for the lines that make up nearly all of a log.
_PLAIN_HEADER: Final = re.compile(
    r"(?:\((\w{1,60}) pid=(\d{1,9})\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d) (\d\d:\d\d:\d\d) "
    r"\[[^\]]{1,200}\] ?(.*)",
    re.DOTALL,
)
_PROCESS: Final = re.compile(_PROCESSES)
_QUOTE: Final = re.compile(r"[\"'`]")
_GLUED: Final = re.compile(
    r"(?<=\S)(?:\(\w{1,60} pid=\d{1,9}\) )?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[|"
    r"(?:INFO|WARNING|ERROR): {2,}\S)"
)
_PROXY: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) \[(\w+)\] ([\w.]+): (.*)", re.DOTALL)
_PYTHON: Final = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?,? *-? *\[?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?:? "
    r"*(?:[\w.:-]+: )?(.*)",
    re.DOTALL,
)
# Rust's tracing: the module stays part of the message, as it tells whose line this is.
_RUST: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?) +(TRACE|DEBUG|INFO|WARN|ERROR) +(\w+::[\w:]+: .*)", re.DOTALL
)
_NIXL: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) NIXL \w+ +(\S+) (.*)", re.DOTALL)
_GLOG: Final = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.\d+ +\d+ (\S+:\d+)\] (.*)", re.DOTALL)
_UCX: Final = re.compile(r"\[(\d{9,11}\.\d+)\] \[[^\]]+\] +(\S+) +UCX +\w+ +(.*)", re.DOTALL)
_ACCESS: Final = re.compile(r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL): {2,}(.*)", re.DOTALL)
_TIMES: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")

_CRI: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*) (?:stdout|stderr) [FP] ?(.*)", re.DOTALL)
_TIMESTAMPED: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)
# The stream's name that CloudWatch puts before a line, and Loki's labels.
_LABELLED: Final = re.compile(r"([^\s{\"]{1,512}) (.*)", re.DOTALL)
_LOKI: Final = re.compile(r"\{(\w+=\"[^{}]{0,1000})\} (.*)", re.DOTALL)
_POD_LABEL: Final = re.compile(r"\bpod=\"([^\"]{1,253})\"")
_RFC5424: Final = re.compile(
    r"<\d{1,3}>1 (\S{1,40}) (\S{1,255}) (\S{1,48}) \S{1,128} \S{1,32} (?:-|\[.{0,1000}?\]) ?(.*)", re.DOTALL
)
_SHORT_FULL: Final = re.compile(
    r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*) ([A-Z]{3,5}) (\S+) ([\w@./:-]+)\[\d+\]: (.*)", re.DOTALL
)
_FIELD: Final = re.compile(r"\s+\"(?:log|MESSAGE|textPayload|line|message|msg)\": (\".*\"),?\s*$", re.DOTALL)
"""A message in JSON that is laid out over several lines."""
_SYSLOG: Final = re.compile(
    r"(?:([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d)(?:\.\d+)?|(\d{4}-\d\d-\d\dT\S+)|\d{9,11}\.\d+) "
    r"(\S+) ([\w@./:-]+)\[\d+\]: (.*)",
    re.DOTALL,
)
_BRACKETED: Final = re.compile(r"\[(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\s\]]{0,16})\] (.*)", re.DOTALL)
_REPEATED: Final = re.compile(r"message repeated (\d+) times: \[ ?(.*)\]\s*$", re.DOTALL)
_COMPOSE: Final = re.compile(r"([\w.-]{1,80}) +\| ?(.*)", re.DOTALL)
_KUBECTL: Final = re.compile(
    r"\[?(?:pod/)?([a-z0-9][a-z0-9.-]{0,250})(?:/|[ \t])([a-z0-9][a-z0-9.-]{0,100})\]?[ \t](.*)", re.DOTALL
)
_GREP: Final = re.compile(r"([\w./@-]{1,200}\.(?:log|txt|out|err|json)(?:\.\d+)?)[:-](?:\d+[:-])?(.*)", re.DOTALL)
_LOOKS_LIKE_LOG: Final = re.compile(
    r"\(\w[^()]{0,80}pid=\d+|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::| \d\d-)|\{|20\d\d-|[IWEF]\d{4} |\[\d|\x1b"
)
_POD: Final = re.compile(r".+-[a-z0-9]{3,10}$")


class Line(NamedTuple):
    """One line, taken apart. `stamp` is in seconds, see `clock`; `repeated` counts further copies left out."""

    origin: Origin
    message: str
    label: str = ""
    """Pod and container, service or unit, where the file mixes several."""
    process: str = ""
    pid: int | None = None
    level: str = ""
    stamp: float | None = None
    repeated: int = 0
    record: dict[str, Any] | None = None
    """The object, where the line is JSON of a schema that is read as such."""


class _Wrapping(NamedTuple):
    text: str
    label: str = ""
    stamp: float | None = None
    repeated: int = 0


def parse_line(raw: str) -> Line:
    """Return `raw` taken apart; a line that nothing matches comes back as `bare`, whole."""
    text = strip_ansi(raw).rstrip("\r\n")
    if match := _PLAIN_HEADER.match(text):
        process, pid, level, day, time, message = match.groups()
        stamp = clock.header_stamp(day, time)
        return Line("vllm", message, "", process or "", int(pid) if pid else None, level, stamp)
    if text.startswith("20") and (match := _PROXY.match(text)):
        stamp = clock.iso_stamp(match[1])
        return Line("proxy", match[4], "", match[3], None, match[2], stamp)
    wrapping, record = _unwrap(text)
    line = _structured(record) if record is not None else _layout(wrapping.text)
    return line._replace(
        label=wrapping.label,
        stamp=_best_stamp(wrapping.stamp, line.stamp),
        repeated=wrapping.repeated,
    )


def unglue(line: Line) -> list[Line]:
    """Return the records of a line that several processes wrote at once, each right behind the other.

    A quotation may go on behind what looks like the end of its record: from there on nothing is split.
    """
    records = []
    while line.origin == "vllm":
        quoted = _QUOTE.search(line.message)
        match = _GLUED.search(line.message, 0, quoted.start() if quoted else len(line.message))
        if match is None:
            break
        records.append(line._replace(message=line.message[: match.start()]))
        line = parse_line(line.message[match.start() :])._replace(label=line.label)
    return [*records, line]


def _best_stamp(outer: float | None, inner: float | None) -> float | None:
    """Prefer the stamp that names a year; of two such, the wrapper's, which also names the zone."""
    if outer is None or (inner is not None and clock.dated(inner) and not clock.dated(outer)):
        return inner
    return outer


def _unwrap(text: str) -> tuple[_Wrapping, dict[str, Any] | None]:
    """Peel wrappers off, outermost first. A JSON object that is no wrapper comes back as the record."""
    found = _Wrapping(text)
    for _ in range(_MAX_WRAPPERS):
        if found.text.startswith("{"):
            inner = _json_object(found.text)
            if inner is None:
                return found, None
            peeled = _json_wrapper(inner)
            if peeled is None:
                return found, inner
        else:
            peeled = _text_wrapper(found.text)
            if peeled is None:
                return found, None
        found = _Wrapping(
            strip_ansi(peeled.text),
            "/".join(filter(None, (found.label, peeled.label))),
            found.stamp if found.stamp is not None else peeled.stamp,
            found.repeated + peeled.repeated,
        )
    return found, None


def _text_wrapper(text: str) -> _Wrapping | None:
    if match := _REPEATED.match(text):
        return _Wrapping(match[2], repeated=int(match[1][:4]) - 1)
    if _TIMES.match(text):
        return _timed_wrapper(text)
    if match := _FIELD.match(text):
        return _Wrapping(_json_string(match[1]))
    if (match := _BRACKETED.match(text)) and (_PLAIN_HEADER.match(match[2]) or _PROXY.match(match[2])):
        return _Wrapping(match[2], stamp=clock.iso_stamp(match[1]))
    return _syslog_wrapper(text) or _named_wrapper(text) or _prefixed_json(text)


def _syslog_wrapper(text: str) -> _Wrapping | None:
    """Peel off what syslog and journald put before a line, in each of their layouts."""
    if match := _SYSLOG.match(text):
        month, day, time, iso, host, unit, rest = match.groups()
        dated = clock.iso_stamp(iso) if iso else None
        return _Wrapping(rest, f"{host} {unit}", clock.syslog_stamp(month, day, time) if month else dated)
    if match := _SHORT_FULL.match(text):
        written, zone, host, unit, rest = match.groups()
        return _Wrapping(rest, f"{host} {unit}", clock.iso_stamp(written) if zone == "UTC" else None)
    if match := _RFC5424.match(text):
        return _Wrapping(match[4], f"{match[2]} {match[3]}", clock.iso_stamp(match[1]))
    return None


def _named_wrapper(text: str) -> _Wrapping | None:
    """Peel off who wrote the line: compose's service, grep's file, kubectl's or stern's pod and container."""
    for pattern in (_COMPOSE, _GREP):
        if (match := pattern.match(text)) and _LOOKS_LIKE_LOG.match(match[2]):
            return _Wrapping(match[2], match[1])
    match = _KUBECTL.match(text)
    if match and (_LOOKS_LIKE_LOG.match(match[3]) or _POD.match(match[1])):
        return _Wrapping(match[3], f"{match[1]}/{match[2]}")
    return None


def _timed_wrapper(text: str) -> _Wrapping | None:
    if match := _CRI.match(text):
        return _Wrapping(match[2], stamp=clock.iso_stamp(match[1]))
    if wrapping := _syslog_wrapper(text):
        return wrapping
    match = _TIMESTAMPED.match(text)
    if match is None:
        return None
    stamp, rest = clock.iso_stamp(match[1]), match[2]
    if (named := _LABELLED.match(rest)) and _LOOKS_LIKE_LOG.match(named[2]) and not _LOOKS_LIKE_LOG.match(named[1]):
        return _Wrapping(named[2], named[1], stamp)
    if (loki := _LOKI.match(rest)) and _LOOKS_LIKE_LOG.match(loki[2]):
        pod = _POD_LABEL.search(loki[1])
        return _Wrapping(loki[2], pod[1] if pod else "", stamp)
    return _Wrapping(rest, stamp=stamp) if _LOOKS_LIKE_LOG.match(rest) else None


def _prefixed_json(text: str) -> _Wrapping | None:
    """Up to 0.30 the process prefix belongs to the stream, so that JSON records carry it as well."""
    match = _PROCESS.match(text)
    if match is None or not match[0] or not text.startswith("{", match.end()):
        return None
    return _Wrapping(text[match.end() :])


def _json_object(text: str) -> dict[str, Any] | None:
    if len(text) > _MAX_JSON:
        return None
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _json_string(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return ""


def _json_wrapper(record: dict[str, Any]) -> _Wrapping | None:
    """Return the line inside docker's json-file, fluent-bit or a shipper's JSON."""
    if "levelname" in record or "schema" in record:
        return None
    for key in ("log", "MESSAGE", "textPayload", "line", "message", "msg"):
        inner = record.get(key)
        if isinstance(inner, str) and (key == "log" or _is_line(inner)):
            return _Wrapping(inner.rstrip("\r\n"), _json_label(record), _json_stamp(record))
    return None


def _is_line(text: str) -> bool:
    return _LOOKS_LIKE_LOG.match(strip_ansi(text)) is not None


def _json_label(record: dict[str, Any]) -> str:
    kubernetes = record.get("kubernetes")
    source = kubernetes if isinstance(kubernetes, dict) else record
    names = (source.get(key) for key in ("pod_name", "pod", "container_name", "container"))
    return "/".join(dict.fromkeys(name for name in names if isinstance(name, str)))


def _json_stamp(record: dict[str, Any]) -> float | None:
    for key in ("time", "ts", "timestamp", "@timestamp", "asctime"):
        value = record.get(key)
        if isinstance(value, str) and (stamp := clock.iso_stamp(value)) is not None:
            return stamp
        if isinstance(value, int | float) and 1e9 < value < 1e10:
            return float(value)
    return None


def _structured(record: dict[str, Any]) -> Line:
    """Return a JSON log record as a line: vLLM's own formatter, our records, a Go or Rust router's."""
    stamp = _json_stamp(record)
    if isinstance(record.get("schema"), str):
        return Line("json", "", stamp=stamp, record=record)
    text = record.get("message", record.get("msg"))
    message = text if isinstance(text, str) else ""
    if isinstance(target := record.get("target"), str) and "::" in target:
        message = f"{target}: {message}"
    level = str(record.get("levelname", record.get("level", ""))).upper()
    name = str(record.get("name", ""))
    if "levelname" not in record:
        return Line("json", message, level=level, stamp=stamp, record=record)
    if isinstance(trace := record.get("exc_info"), str):
        message = f"{message}\n{trace}"
    origin: Origin = "access" if name.startswith("uvicorn") else "vllm"
    if name in {"disagg_proxy", "httpx"}:
        origin = "proxy"
    process = record.get("process")
    return Line(
        origin,
        message,
        process=str(record.get("vllm_process_name", ""))[:60],
        pid=process if isinstance(process, int) else None,
        level=level,
        stamp=stamp,
    )


def _layout(text: str) -> Line:
    """Take apart a line that nothing wraps any more."""
    header = _HEADER.search(text, 0, _MAX_BEFORE) and _HEADER.search(text)
    if header and (before := _BEFORE.fullmatch(text, 0, header.start())):
        process, pid = _process(before["processes"])
        stamp = clock.header_stamp(header["day"], header["time"])
        return Line("vllm", header["message"], "", process, pid, header["level"], stamp)
    if prefix := _PROCESS.match(text):
        process, pid = _process(prefix[0])
        return _other_layout(text[prefix.end() :])._replace(process=process, pid=pid)
    return _other_layout(text)


def _process(prefix: str) -> tuple[str, int | None]:
    """Return name and pid of the innermost of the process prefixes."""
    if not prefix:
        return "", None
    last = prefix.rstrip().rpartition("(")[2].rstrip(")")
    name, _, pid = last.rpartition("pid=")
    digits = re.match(r"\d+", pid)
    return name.strip()[:60], int(digits[0]) if digits and len(digits[0]) < 10 else None


def _other_layout(text: str) -> Line:
    for pattern, build in _LAYOUTS:
        if match := pattern.match(text):
            return build(match)
    return Line("bare", text)


_LAYOUTS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Line]], ...]] = (
    (_ACCESS, lambda m: Line("access", m[1])),
    (_PROXY, lambda m: Line("proxy", m[4], process=m[3], level=m[2], stamp=clock.iso_stamp(m[1]))),
    (_NIXL, lambda m: Line("native", m[3], stamp=clock.iso_stamp(m[1]))),
    (_GLOG, lambda m: Line("native", m[5], level=m[0][0], stamp=clock.header_stamp(f"{m[1]}-{m[2]}", m[3]))),
    (_UCX, lambda m: Line("native", m[3], stamp=float(m[1]))),
    (_RUST, lambda m: Line("proxy", m[3], level=m[2], stamp=clock.iso_stamp(m[1]))),
    (_PYTHON, lambda m: Line("proxy", m[3], level=m[2], stamp=clock.iso_stamp(m[1]))),
)
