"""Small line charts as SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 110, 40, 46
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a")
TICKS = 5


@dataclass(frozen=True)
class Line:
    """A named curve."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(lines: Sequence[Line], *, title: str, x: str, y: str, log2_x: bool = False) -> str:
    """An SVG document; the y axis starts at 0, the x ticks are the points of the first line."""
    xs = [place for one in lines for place, _ in one.points]
    top = _ceiling(max(value for one in lines for _, value in one.points))
    scale = math.log2 if log2_x else float
    low, high = scale(min(xs)), scale(max(xs))

    def across(value: float) -> float:
        return LEFT + (scale(value) - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [_text(WIDTH / 2, 20, title, size=14)]
    for i in range(TICKS + 1):
        value = top * i / TICKS
        parts.append(_rule(LEFT, down(value), WIDTH - RIGHT, down(value)))
        parts.append(_text(LEFT - 6, down(value) + 4, f"{value:g}", anchor="end"))
    for place, _ in lines[0].points:
        parts.append(_text(across(place), HEIGHT - BOTTOM + 16, f"{place:g}"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x))
    parts.append(_text(LEFT, TOP - 8, y, anchor="middle"))
    for number, one in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across(place), down(value)) for place, value in one.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places]
        parts.append(_text(places[-1][0] + 8, places[-1][1] + 4, one.name, anchor="start", colour=colour))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', ground, *parts, "</svg>\n"])


def _ceiling(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)


def _text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 12, colour: str = "#333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(words)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
