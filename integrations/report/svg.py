"""Plots as inline SVG, made by hand: no scripts, no fonts, no requests. Colours are the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH: Final = 680
HEIGHT: Final = 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 40
_INNER: Final = (WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM)

Point = tuple[float, float]


def bars(
    labels: Sequence[str], values: Sequence[float], *, x: str, y: str, notes: Sequence[str] = (), top: float = 0.0
) -> str:
    """One bar per label; ``notes`` are shown where the pointer rests. ``top``: the scale reaches at least there."""
    scale = _Scale(0.0, max([top, *values], default=0.0))
    slot = _INNER[0] / max(1, len(values))
    every = math.ceil(len(labels) / 16)
    parts = []
    for index, (label, value) in enumerate(zip(labels, values)):
        left, height = _LEFT + index * slot, scale.length(value)
        note = notes[index] if notes else f"{label}: {value:.3g}"
        parts.append(
            f'<rect class="bar" x="{left + 0.1 * slot:.1f}" y="{HEIGHT - _BOTTOM - height:.1f}" '
            f'width="{0.8 * slot:.1f}" height="{height:.1f}"><title>{escape(note)}</title></rect>'
        )
        if index % every == 0:
            parts.append(_text(left + slot / 2, HEIGHT - _BOTTOM + 14, label, "middle"))
    return _frame(scale, x, y, "".join(parts))


def lines(series: Sequence[tuple[str, Sequence[Point]]], *, x: str, y: str, ends: Point | None = None) -> str:
    """One line per series through its points, at most four; ``ends`` are the least (right, top) of the axes."""
    points = [point for _, line in series for point in line]
    right, top = (max([end, *values], default=1.0) for end, values in zip(ends or (0.0, 0.0), zip(*points)))
    right, scale = right or 1.0, _Scale(0.0, top)
    parts = []
    for number, (name, line) in enumerate(series):
        at = [(_LEFT + _INNER[0] * px / right, HEIGHT - _BOTTOM - scale.length(py)) for px, py in line]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in at)
        parts.append(f'<polyline class="line s{number}" points="{path}"/>')
        for (px, py), (cx, cy) in zip(line, at):
            note = escape(f"{name}: {px:.4g}, {py:.4g}")
            parts.append(
                f'<circle class="dot s{number}" cx="{cx:.1f}" cy="{cy:.1f}" r="3"><title>{note}</title></circle>'
            )
        parts.append(
            f'<text class="key s{number}" x="{_LEFT + 10}" y="{_TOP + 12 + 15 * number}">{escape(name)}</text>'
        )
    parts += [_text(_LEFT + _INNER[0] * t / right, HEIGHT - _BOTTOM + 14, f"{t:g}", "middle") for t in _ticks(right)]
    return _frame(scale, x, y, "".join(parts))


def stack(parts: Sequence[tuple[str, float]], *, unit: str) -> str:
    """One bar cut into named shares."""
    total = sum(value for _, value in parts) or 1.0
    drawn, left = [], 0.0
    for number, (name, value) in enumerate(parts):
        width = WIDTH * value / total
        note = escape(f"{name}: {value:.4g} {unit}, {value / total:.1%}")
        drawn.append(
            f'<rect class="share p{number % 6}" x="{left:.1f}" y="0" width="{width:.1f}" height="34">'
            f"<title>{note}</title></rect>"
        )
        left += width
    return f'<svg viewBox="0 0 {WIDTH} 34" role="img" aria-label="shares of the time">{"".join(drawn)}</svg>'


class _Scale:
    """The upright axis: from 0 to a round number at or above the largest value."""

    def __init__(self, low: float, high: float) -> None:
        self.ticks = _ticks(high if high > low else 1.0)
        self.top = max(self.ticks[-1], high) or 1.0

    def length(self, value: float) -> float:
        """Pixels above the ground."""
        return _INNER[1] * max(value, 0.0) / self.top


def _ticks(high: float) -> list[float]:
    """About five round numbers from 0 to ``high``."""
    raw = high / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= raw * 0.999)
    return [round(step * k, 10) for k in range(int(high / step + 1e-9) + 1)]


def _frame(scale: _Scale, x: str, y: str, inside: str) -> str:
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        + _text(_LEFT - 6, at + 4, f"{tick:g}", "end")
        for tick in scale.ticks
        for at in [HEIGHT - _BOTTOM - scale.length(tick)]
    )
    names = _text(_LEFT + _INNER[0] / 2, HEIGHT - 6, x, "middle", "axis") + (
        f'<text class="axis" text-anchor="middle" transform="translate(13 {_TOP + _INNER[1] / 2}) rotate(-90)">'
        f"{escape(y)}</text>"
    )
    label = escape(f"{y} by {x}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{grid}{inside}{names}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
