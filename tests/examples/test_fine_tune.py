"""The example as its reader runs it."""

from __future__ import annotations

import pytest

from examples.fine_tune import story


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_reader_learns_what_it_sees_sideways(capsys: pytest.CaptureFixture[str]) -> None:
    upright, before, after = story(epochs=6)
    assert upright > 0.9
    assert before < 0.5
    assert after > before + 0.3
    assert "tensors changed" in capsys.readouterr().out
