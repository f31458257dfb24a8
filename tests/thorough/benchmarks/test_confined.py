"""`make sandbox-cost` fails when confinement is shown to slow a step, and not when it cannot be told."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import confined


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"), [(1.0, 0.02, 0), (1.009, 0.002, 0), (1.015, 0.2, 0), (1.02, 0.002, 1)]
)
def test_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float, spread: float, expected: int
) -> None:
    rng = random.Random(7)
    turns = [((1000.0, 5.0), (1000.0 * rng.gauss(ratio, spread), 9.0)) for _ in range(80)]
    monkeypatch.setattr(confined, "in_turn", lambda *_: iter(turns))
    monkeypatch.setattr(confined, "unpack", lambda *_: SimpleNamespace(threads=1))
    monkeypatch.setattr(confined, "make_executable", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["confined", str(tmp_path / "step.pfb")])
    assert confined.main() == expected
