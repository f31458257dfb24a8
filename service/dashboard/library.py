"""The chart library: uPlot, as its npm package has it (`package.json` beside this file; decision 79).

Where it is not installed pages do without: each chart is a picture that the server has drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PACKAGES = Path(__file__).parent / "node_modules"
"""Folder of the chart library: `npm ci` installs it there in a checkout and in images, scripts/release.py in a
wheel.
"""
FILES: Mapping[str, str] = {
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
}
"""Files of the library that pages load, by the name under which they are served."""


def library_file(name: str) -> Path | None:
    """Returns the path of one of `FILES` where it is installed; None for anything else."""
    path = PACKAGES / FILES[name] if name in FILES else None
    return path if path is not None and path.is_file() else None


def has_library() -> bool:
    """Whether all of it is installed."""
    return all(library_file(name) is not None for name in FILES)
