"""Each pass does to its small example what its golden shows."""

from __future__ import annotations

import pytest

from tests.architecture.sources import functions_returning, modules
from tests.compiler.goldens.golden import files, renewed

MAX_LINES = 60


@pytest.mark.parametrize("name", files())
def test_a_pass_does_what_its_golden_shows(name: str) -> None:
    text = files()[name].read_text()
    assert renewed(name, text) == text, "if this is what the pass should do: make golden, and read the diff"


@pytest.mark.parametrize("name", files())
def test_a_golden_is_short_and_shows_something(name: str) -> None:
    text = files()[name].read_text()
    assert text.count("\n") <= MAX_LINES
    assert "--- after\n" in text
    assert text.split("\n", 1)[0].strip()


def test_every_pass_has_a_golden() -> None:
    """`tests/architecture/test_lists.py` sees to it that these are the passes that run."""
    rooms = ("program", "fusion", "slicing", "rematerialisation", "placement")
    calls = functions_returning("PassResult[Program]", [name for room in rooms for name in modules(f"compiler/{room}")])
    assert set(files()) == calls | functions_returning("PassResult[Graph]", modules("compiler/passes"))
