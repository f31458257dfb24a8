"""The chart library's description of a chart: which columns of which JSON tables are drawn, and how.

`static/charts.js` reads it from the attribute `data-chart` of the picture that the server has drawn, fetches the tables
and draws them in its place. A chart says nothing that the picture and its table do not say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or one kind of point. `ink` is a colour of the style sheet (`series-1` is `--series-1`)."""

    label: str
    ink: str
    column: str = ""
    """Column of the table that holds its y."""
    points: tuple[Point, ...] = ()
    """Instead of a column."""
    labels: tuple[str, ...] = ()
    """Labels of the points, one for each."""
    kind: Literal["line", "dots"] = "line"
    source: str = ""
    """Address of its JSON table; empty: the chart's."""
    x: str = ""
    """Its column of x; empty: the chart's."""
    only: tuple[str, str] | None = None
    """(column, value): the rows that it shows."""
    factor: float = 1.0
    """Factor from the table's unit to the chart's."""
    is_dashed: bool = False
    is_smoothed: bool = False
    """Drawn beside its running mean, whose reach the reader chooses."""
    names: str = ""
    """Column that says what a point is."""


@dataclass(frozen=True, slots=True)
class Chart:
    """An interactive chart: `marks` are (x, label) of vertical lines, `band` two lines, shaded between."""

    lines: tuple[Line, ...]
    x_title: str
    y_title: str
    source: str = ""
    x: str = ""
    x_factor: float = 1.0
    x_shift: float = 0.0
    """Added to the table's x before its factor."""
    sync: str = ""
    """Charts of one name share cursor and zoom."""
    is_log: tuple[bool, bool] = (False, False)
    """Whether the axes (x, y) are logarithmic."""
    can_be_log: bool = False
    """Whether the reader may switch y to a logarithmic scale."""
    band: tuple[int, int] | None = None
    marks: tuple[tuple[float, str], ...] = ()
    height: int = 260
    has_tools: bool = True
    """Buttons to zoom; of several that share their zoom one has them. Keys work in each."""
    range_x: Point | None = None
    """Range of x before anybody zooms; None: the range of the data."""
    range_y: Point | None = None
    """Range of y before anybody zooms; None: the range of the data. A single point far away would flatten all
    others.
    """

    @property
    def text(self) -> str:
        """JSON for the attribute; what is left out is the default."""
        document = {**_set_fields(self), "lines": [_set_fields(line) for line in self.lines]}
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _set_fields(value: Chart | Line) -> Mapping[str, object]:
    fields = type(value).__dataclass_fields__
    return {
        name: getattr(value, name)
        for name, field in fields.items()
        if name != "lines" and getattr(value, name) != field.default
    }
