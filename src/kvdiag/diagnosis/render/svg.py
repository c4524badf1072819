"""Inline SVG: elements, scales and a frame with axes. Text is escaped by ElementTree, never by hand."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement

from kvdiag.diagnosis.render.neutral import neutral

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH: Final = 720
HEIGHT: Final = 300
LEFT: Final = 88
"""Room for the labels of the y axis; charts with words there ask for more."""
_TOP, _RIGHT, _BOTTOM = 24, 24, 44
_TICKS: Final = 8
_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to one axis. A logarithmic scale takes positive values only."""

    low: float
    high: float
    format: Callable[[float], str]
    logarithmic: bool = False
    steps: Sequence[float] = ()
    """Distances between ticks to choose from, ascending; powers of ten, doubled and halved, where empty or too small."""

    def position(self, value: float) -> float:
        """Return where `value` lies between `low` (0) and `high` (1)."""
        low, high, at = (self._linear(number) for number in (self.low, self.high, value))
        return (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return a handful of round values."""
        return self._decades() if self.logarithmic else self._steps()

    def _linear(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def _steps(self) -> list[float]:
        raw = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        candidates = (*self.steps, *(power * factor for factor in (1, 2, 5, 10)))
        step = next(candidate for candidate in candidates if candidate >= raw)
        first = math.ceil(self.low / step)
        return [at * step for at in range(first, math.floor(self.high / step) + 1)]

    def _decades(self) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        decades = [10.0**exponent for exponent in exponents]
        factors = (1, 2, 5) if self.high / self.low < 1000 else (1,)
        values = [factor * decade for decade in decades for factor in factors]
        return [value for value in values if self.low <= value <= self.high]


def linear(values: Sequence[float], text: Callable[[float], str]) -> Scale:
    """Return a scale from 0 to a little over the largest value."""
    return Scale(0, (max(values, default=0) or 1) * 1.05, text)


def logarithmic(values: Sequence[float], text: Callable[[float], str]) -> Scale:
    """Return a scale around the positive values, at least one decade wide."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive) / 1.3, max(positive) * 1.3
    return Scale(low, max(high, low * 10), text, logarithmic=True)


def time(values: Sequence[float]) -> Scale:
    """Return a scale of wall time (UTC) from the first to the last of `values`, seconds since the epoch."""
    low, high = min(values), max(values)
    margin = (high - low) * 0.02 or 1.0
    pattern = "%H:%M:%S" if high - low < 12 * 3600 else "%m-%d %H:%M"
    return Scale(low - margin, high + margin, lambda at: _utc(at).strftime(pattern), steps=_TIME_STEPS)


def _utc(seconds: float) -> datetime.datetime:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError):  # a margin beyond the last year there is
        return datetime.datetime.max


class Frame:
    """One chart: its axes, and marks placed by value."""

    def __init__(self, title: str, x: Scale, y: Scale | Sequence[str], *, x_title: str, y_title: str = "") -> None:
        self.x = x
        self.y = Scale(-0.5, len(y) - 0.5, str) if not isinstance(y, Scale) else y
        self.left = LEFT if isinstance(y, Scale) else 220
        self.root = Element("svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": neutral(title)})
        self._label(WIDTH / 2 + self.left / 2, HEIGHT - 6, x_title, anchor="middle")
        if y_title:
            middle = (HEIGHT - _BOTTOM) / 2
            self._label(14, middle, y_title, anchor="middle", transform=f"rotate(-90 14 {middle:.0f})")
        self._axes(y)

    def mark(self, x: float, y: float, shape: str, color: str, tip: str) -> None:
        """Draw one point: a "circle", "diamond" or "bar", with the text that hovering shows."""
        at = Element("path", {"d": _shape(shape, self._x(x), self._y(y)), "fill": color, "class": f"mark {shape}"})
        SubElement(at, "title").text = neutral(tip)
        self.root.append(at)

    def column(self, low: float, high: float, base: float, top: float, color: str, tip: str) -> None:
        """Draw a column from `base` to `top` over the x range `low` to `high`."""
        left, right, y = self._x(low), self._x(high), self._y(top)
        size = {"width": f"{max(right - left - 1, 1):.1f}", "height": f"{self._y(base) - y:.1f}"}
        at = SubElement(self.root, "rect", {"x": f"{left:.1f}", "y": f"{y:.1f}", **size, "fill": color})
        SubElement(at, "title").text = neutral(tip)

    def limit(self, x: float, text: str) -> None:
        """Draw a dashed vertical line with its name, if it lies on the chart."""
        if not self.x.low <= x <= self.x.high:
            return
        at = self._x(x)
        self._line(at, _TOP, at, HEIGHT - _BOTTOM, "limit")
        on_right = at > WIDTH * 0.7
        self._label(at + (4 if on_right else -4), _TOP - 8, text, anchor="end" if on_right else "start")

    def _x(self, value: float) -> float:
        return self.left + self.x.position(value) * (WIDTH - self.left - _RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y.position(value) * (HEIGHT - _TOP - _BOTTOM)

    def _axes(self, y: Scale | Sequence[str]) -> None:
        for value in self.x.ticks():
            self._line(self._x(value), _TOP, self._x(value), HEIGHT - _BOTTOM, "grid")
            self._label(self._x(value), HEIGHT - _BOTTOM + 16, self.x.format(value), anchor="middle")
        lanes = [(value, y.format(value)) for value in y.ticks()] if isinstance(y, Scale) else list(enumerate(y))
        for value, text in lanes:
            self._line(self.left, self._y(value), WIDTH - _RIGHT, self._y(value), "grid")
            self._label(self.left - 6, self._y(value) + 4, text, anchor="end")

    def _line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
        SubElement(self.root, "line", {**ends, "class": kind})

    def _label(self, x: float, y: float, text: str, *, anchor: str, **more: str) -> None:
        at = SubElement(self.root, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, **more})
        at.text = neutral(text)


def _shape(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
    if shape == "diamond":
        return f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
    return f"M{x - 1:.1f} {y - 8:.1f}h2v16h-2z"
