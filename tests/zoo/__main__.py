"""Measures the whole zoo, a process for each model, and writes docs/coverage.md.

python -m tests.zoo                          # everything, and the page (hours on a small machine)
python -m tests.zoo --keep                   # only what build/coverage does not hold yet
python -m tests.zoo --models vit,lstm --trials "unfolded 18 full"
python -m tests.zoo --trips                  # only what fine_tune brings home
python -m tests.zoo --page                   # the page, from what is there
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.zoo.catalogue import ENTRIES
from tests.zoo.measure import Measured, measure
from tests.zoo.page import TRIP, write_page
from tests.zoo.trials import TRIALS, Trial
from tests.zoo.trips import Travelled, travelled

FOLDER = Path("build/coverage")
CACHE = Path(".cache/kernels")
LIMIT_S = 1800.0


def main() -> None:
    """Parse the command line and do as it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="names, separated by commas")
    parser.add_argument("--trials", default="", help="such as 'unfolded 18 full', separated by commas")
    parser.add_argument("--keep", action="store_true", help="measure only what is not there yet")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--gradients", action="store_true", help="compile nothing: gradients of the training graph")
    parser.add_argument("--trips", action="store_true", help="only the round trips by fine_tune")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    names = chosen.models.split(",") if chosen.models else list(ENTRIES)
    unknown = [name for name in names if name not in ENTRIES]
    if unknown:
        parser.error(f"no model {', '.join(unknown)} in the zoo")
    trials = [trial for trial in TRIALS if not chosen.trials or str(trial) in chosen.trials.split(",")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if chosen.here:
        _here(names[0], trials, is_trip=chosen.trips)
        return
    if chosen.gradients:
        for name in names:
            _gradients_here(name, [trial for trial in trials if not (chosen.keep and _file(name, trial).exists())])
    elif not chosen.page:
        if not chosen.trips:
            _measure_all(names, trials, keep=chosen.keep)
        if chosen.trips or not chosen.trials:
            _bring_home(names, keep=chosen.keep)
    write_page(FOLDER, Path("docs/coverage.md"))


def _here(name: str, trials: Sequence[Trial], *, is_trip: bool) -> None:
    """In a process of its own."""
    if is_trip:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _write(_trip_file(name), travelled(name))
        return
    for trial in trials:
        _measure_here(name, trial)


def _measure_all(names: Sequence[str], trials: Sequence[Trial], *, keep: bool) -> None:
    for name in names:
        wanted = [trial for trial in trials if not (keep and _file(name, trial).exists())]
        if not wanted:
            continue
        for trial in wanted:
            _file(name, trial).unlink(missing_ok=True)
        why = _in_process(name, "--trials", ",".join(map(str, wanted)))
        for trial in wanted:
            if not _file(name, trial).exists():
                failed = Measured(name, trial.exporter, trial.opset, trial.plan, "failed", why)
                _write(_file(name, trial), failed)
            print(name, trial, *_told(name, trial), flush=True)


def _bring_home(names: Sequence[str], *, keep: bool) -> None:
    for name in names:
        file = _trip_file(name)
        if keep and file.exists():
            continue
        file.unlink(missing_ok=True)
        why = _in_process(name, "--trips")
        if not file.exists():
            _write(file, Travelled(name, "failed", why))
        found = json.loads(file.read_text())
        print(name, "round trip", found["status"], found["why"][:200].replace("\n", " "), flush=True)


def _in_process(name: str, *options: str) -> str:
    """A process of its own; what it died of or that it took too long, empty if neither."""
    command = [sys.executable, "-m", "tests.zoo", "--here", "--models", name, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S:g} s"
    return "" if done.returncode == 0 else done.stderr[-1500:]


def _gradients_here(name: str, trials: Sequence[Trial]) -> None:
    """In this process; what ends in an unforeseen exception is a trial that failed."""
    for trial in trials:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = measure(ENTRIES[name], trial, CACHE, compiled=False)
        except Exception:
            why = traceback.format_exc()[-1500:]
            found = Measured(name, trial.exporter, trial.opset, trial.plan, "failed", why)
        _write(_file(name, trial), found)
        print(name, trial, *_told(name, trial), flush=True)


def _measure_here(name: str, trial: Trial) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(ENTRIES[name], trial, CACHE)
    _write(_file(name, trial), found)


def _write(file: Path, found: Measured | Travelled) -> None:
    file.write_text(json.dumps(found.to_json(), indent=1))


def _trip_file(name: str) -> Path:
    return FOLDER / f"{name}{TRIP}"


def _file(name: str, trial: Trial) -> Path:
    return FOLDER / f"{name}.{trial.exporter}.{trial.opset}.{trial.plan}.json"


def _told(name: str, trial: Trial) -> tuple[str, ...]:
    found = json.loads(_file(name, trial).read_text())
    return found["status"], f"{found['compile_s']} s", found["why"][:200].replace("\n", " ")


if __name__ == "__main__":
    main()
