"""The engine that ran the kernels of a run: its target's name says it, `<board>/<engine>`, or a board alone for its
CPU.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement

from service.store.database.models import Run

CPU = "cpu"
ENGINES = (CPU, "opencl", "cuda")
"""A test holds them to the kinds of the compiler's targets."""


def engine_of(target: str) -> str:
    """Returns the engine of a target."""
    return target.partition("/")[2] or CPU


def ran_on(engine: str) -> ColumnElement[bool]:
    """Returns the condition on runs that this engine ran them."""
    return Run.target.not_like("%/%") if engine == CPU else Run.target.like(f"%/{engine}")
