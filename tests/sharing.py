"""Tests that read the same thing, made once in each process, stay on one worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def sharing(what: str, cases: Iterable[Sequence[Any]]) -> list[Any]:
    """The cases for `parametrize`, as they are: those of one case make `what` of it once, in whichever test."""
    return [
        pytest.param(
            *case, id="-".join(map(str, case)), marks=pytest.mark.xdist_group(" ".join(map(str, (what, *case))))
        )
        for case in cases
    ]
