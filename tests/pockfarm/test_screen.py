"""What a terminal gets, and what a pipe gets: colours, widths, bars. In real pseudo-terminals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from device_agents.figures.digits import rounded
from pockfarm import screen
from pockfarm.output.table import bytes_text, moment, text_table
from pockfarm.screen import Meaning, Screen, by_word, painted, painted_words
from pockfarm.screen.tables import drawn
from tests.pockfarm.terminal import CONTROL, in_terminal, plain

HEADER = ("run", "state", "model", "step", "why")
ROWS = [
    ("run_01", "failed", "mobilenet", "97.1 us", "device: device.lost"),
    ("run_02", "succeeded", "a model with a name of many words", "1.23 ms", ""),
]
FIGURES = [False, False, False, True, False]
PRINTS = "from pockfarm.output.table import text_table; print(text_table(('run', 'state'), [('run_1', 'failed')]))"
WAITS = """
import time
from pockfarm.screen.progress import Waiting
with Waiting() as waiting:
    for n in range(20):
        waiting.show("kernels", n / 20, f"step {n}, 97.1 us")
        time.sleep(0.03)
print("sha256:1")
"""


def test_a_terminal_has_colours_and_a_pipe_has_none() -> None:
    code, seen = in_terminal(["-c", PRINTS])
    assert code == 0
    assert "\x1b[1;31mfailed\x1b[0m" in seen
    piped = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in piped
    assert piped.splitlines() == [line.rstrip() for line in plain(seen).splitlines()]


@pytest.mark.parametrize(
    ("environment", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_who_wants_no_colours_gets_none(environment: dict[str, str], has_colours: bool) -> None:
    _, seen = in_terminal(["-c", PRINTS], environment=environment)
    assert bool(CONTROL.search(seen)) is has_colours
    assert "failed" in seen


@pytest.mark.parametrize(("asked", "is_painted"), [("always", True), ("never", False), ("auto", False)])
def test_an_option_says_more_than_the_place(asked: str, is_painted: bool) -> None:
    words = [sys.executable, "-m", "pockfarm.cli", "devices", "--color", asked, "--state-folder", "/nowhere"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin"})
    assert done.returncode == 2
    assert done.stderr.startswith("\x1b[1;31mpockfarm:\x1b[0m" if is_painted else "pockfarm:")


def test_words_mean_the_same_with_and_without_colours() -> None:
    coloured = Screen(has_colours=True)
    assert CONTROL.sub("", painted("failed", by_word("failed"), coloured)) == "failed"
    assert painted("failed", Meaning.BAD, Screen()) == "failed"
    assert (
        painted_words("it is valid, not invalid", coloured)
        == "it is \x1b[32mvalid\x1b[0m, not \x1b[1;31minvalid\x1b[0m"
    )
    assert by_word("net") is None


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_a_table_is_no_wider_than_the_window_and_loses_nothing_in_silence(width: int | None) -> None:
    text = drawn(HEADER, ROWS, FIGURES, Screen(width=width), least=("model",))
    if width is not None:
        assert max(map(len, text.splitlines())) <= width
    said = " ".join(text.split())
    for cell in ("run_01", "failed", "97.1 us", "run_02", "succeeded", "1.23 ms", "device: device.lost"):
        assert cell in said, (width, cell)
    assert ("mobilenet" in said) or "model: in a wider window, or with --json" in said


def test_what_fits_no_table_is_a_block_of_lines_for_each_row() -> None:
    text = drawn(HEADER, ROWS, FIGURES, Screen(width=40))
    assert text.splitlines()[:3] == ["run_01", "  state  failed", "  model  mobilenet"]


def test_a_pipes_table_is_as_wide_as_it_is() -> None:
    assert max(map(len, text_table(HEADER, ROWS).splitlines())) > 80
    assert screen.output().width is None


def test_a_terminal_has_a_bar_that_is_gone_afterwards_and_a_pipe_has_lines() -> None:
    _, seen = in_terminal(["-c", WAITS])
    assert "\x1b[2K" in seen, "the line is written over"
    for part in ("kernels", "━", "%", "left", "step", "97.1 us"):
        assert part in seen
    assert seen.rstrip().endswith("sha256:1")
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, check=True)
    assert done.stdout == "sha256:1\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 10, "one for each tenth"
    assert lines[0].split()[2:] == ["0%", "kernels", "step", "0,", "97.1", "us"]
    assert "\x1b" not in done.stderr


def test_figures_have_three_digits_and_the_unit_that_fits() -> None:
    assert [bytes_text(size_bytes) for size_bytes in (None, 0, 512, 1536, 9.996 * 1024, 1.94 * (1 << 20), 1 << 30)] == [
        "-",
        "0 B",
        "512 B",
        "1.50 KiB",
        "10.0 KiB",
        "1.94 MiB",
        "1.00 GiB",
    ]
    assert [rounded(value) for value in (0, 2.3456, 0.0123456, 1234.5, -3.14159)] == [
        "0",
        "2.35",
        "0.0123",
        "1,230",
        "-3.14",
    ]
    assert moment("2026-11-27T02:53:11.123456Z") == "2026-11-27 02:53:11"
