"""A graph before and after the plan: a column for each group of layers, a lane for the model and one for each phase of
the step; where a lane has a box, there are nodes. Arcs above lead from a group to a later one that is not its next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.layer_graph import PHASES, LayerGroup

LANES = (("the model", ""), *((phase, phase) for phase in PHASES))
LANE_HEIGHT = 26.0
LABEL_WIDTH = 74.0
ARCS_HEIGHT = 34.0
MOST_ARCS = 60
NAME_WIDTH = 110.0
"""Least width of a name below the lanes: where groups are narrower, some have none."""
LETTER_WIDTH = 6.6


def lanes(groups: Sequence[LayerGroup], width: float) -> Markup:
    """Draws the picture; its table says the same in words."""
    pitch = (width - LABEL_WIDTH - 2) / max(len(groups), 1)
    parts = _arcs(groups, pitch)
    for number, (label, phase) in enumerate(LANES):
        top = ARCS_HEIGHT + number * LANE_HEIGHT + (8 if number else 0)
        parts.append(svg.text(0, top + 15, label))
        for at, group in enumerate(groups):
            count = group.after.get(phase, 0) if phase else group.before
            if count:
                what = f"{group.name}: {fmt.plural(count, 'node')} {f'in {phase}' if phase else 'in the model'}"
                kind = f"phase-{phase}" if phase else "of-model"
                parts.append(
                    svg.rectangle(LABEL_WIDTH + at * pitch, top, max(pitch - 2, 1.5), LANE_HEIGHT - 6, kind, what)
                )
    learning = sum(1 for group in groups if group.after.get("update"))
    title = f"The graph from input to output in {fmt.plural(len(groups), 'group')} of layers; {learning} of them learn"
    bottom = ARCS_HEIGHT + len(LANES) * LANE_HEIGHT + 8
    return svg.picture(width, bottom + 20, title, "graph-lanes", *parts, *_names(groups, pitch, bottom))


def _names(groups: Sequence[LayerGroup], pitch: float, top: float) -> list[Markup]:
    """Names as many groups as there is room for, from the input on; each name begins where its group does."""
    every = math.ceil(NAME_WIDTH / pitch)
    most = max(3, int(every * pitch / LETTER_WIDTH) - 1)
    parts = []
    for at in range(0, max(len(groups) - every // 2, 1), every):
        name = groups[at].name
        left = LABEL_WIDTH + at * pitch
        parts.append(svg.line(left, top - 4, left, top + 2, "axis"))
        parts.append(svg.text(left, top + 14, name if len(name) <= most else f"{name[: most - 1]}…"))
    return parts


def _arcs(groups: Sequence[LayerGroup], pitch: float) -> list[Markup]:
    skips = [(source, at) for at, group in enumerate(groups) for source in group.sources if at - source > 1]
    return [_arc(*ends, pitch) for ends in skips[:MOST_ARCS]]


def _arc(source: int, at: int, pitch: float) -> Markup:
    left, right = (LABEL_WIDTH + (column + 0.5) * pitch for column in (source, at))
    rise = min(ARCS_HEIGHT - 6, 8 + (right - left) / 10)
    bottom = ARCS_HEIGHT - 3
    top = f"{bottom - rise:.1f}"
    shape = f"M{left:.1f} {bottom:.1f}C{left:.1f} {top} {right:.1f} {top} {right:.1f} {bottom:.1f}"
    return svg.element("path", {"d": shape, "class": "arc"})
