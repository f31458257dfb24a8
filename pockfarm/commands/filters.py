"""Options of lists that say which to list: names as the API takes them, values of a closed set by their names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from device_agents.wire import MODES, MeasurementClass, VerdictKind
from pockfarm.command_line.words import WrongArgument
from pockfarm.suggestions import did_you_mean

OPEN = "open"
"""Any state in which a job or run has not ended."""
CHOICES = {
    "mode": MODES,
    "measurement-class": get_args(MeasurementClass),
    "verdict": get_args(VerdictKind),
}


class StateOrFolder(argparse.Action):
    """`--state` of a list: a state. A path is the farm's state folder, which `--state` is everywhere else."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        states = tuple(self.const)
        if values in states:
            namespace.wanted_state = values
        elif "/" in values or values.startswith(".") or Path(values).is_dir():
            namespace.state = values
        else:
            message = f"invalid choice: '{values}' (choose from {', '.join(states)})"
            raise WrongArgument(self, message, did_you_mean(values, states))


def add_state_options(command: argparse.ArgumentParser, states: Sequence[str]) -> None:
    """`--state` with these."""
    words = f"only those that are {', '.join(states[:-1])} or {states[-1]}"
    command.add_argument("--state", action=StateOrFolder, const=tuple(states), metavar="STATE", help=words)
    command.set_defaults(wanted_state=None)


def add_filter_options(command: argparse.ArgumentParser, **metavars: str) -> None:
    """An option for each name, `measurement_class` as `--measurement-class`, and `--limit`."""
    for name, metavar in metavars.items():
        option = name.replace("_", "-")
        command.add_argument(f"--{option}", dest=name, choices=CHOICES.get(option), metavar=metavar, help="only these")
    command.add_argument("--limit", type=count_of, metavar="N", help="at most so many, the newest (default: 50)")


def chosen_filters(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns the values of the options of these names, and of `--state` and `--limit`."""
    return {"state": options.wanted_state, "limit": options.limit, **{name: getattr(options, name) for name in names}}


def count_of(argument: str) -> int:
    """The value of `--limit`. Raises: ArgumentTypeError."""
    count = int(argument)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{argument} is no number from 1 on")
    return count
