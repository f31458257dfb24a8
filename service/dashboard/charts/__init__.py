"""Charts as pure functions from values to SVG. Colours and fonts come from the style sheet by class.

Every chart is drawn twice, for a wide and for a narrow screen, so that its text keeps its size; the style sheet
shows one.
"""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from service.dashboard.charts import svg

FULL_WIDTH = 1198.0
HALF_WIDTH = 566.0
NARROW_WIDTH = 340.0


def for_screens(draw: Callable[[float], Markup], wide: float = HALF_WIDTH) -> Markup:
    """Returns the chart at its wide and at its narrow width."""
    return Markup("").join(
        (
            svg.element("div", {"class": "on-wide"}, draw(wide)),
            svg.element("div", {"class": "on-narrow"}, draw(NARROW_WIDTH)),
        )
    )
