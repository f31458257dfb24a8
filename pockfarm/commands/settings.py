"""Options of the command line that are settings of a run: made from `RunSettings`, with its words and bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from device_agents.wire import LocalMode, ProtocolError, RunSettings, Setting, check_taken, default_of, settings_of
from pockfarm.errors import UsageError


def add_setting_options(
    command: argparse.ArgumentParser, modes: Sequence[str], kind: type[RunSettings] = RunSettings
) -> None:
    """An option for each setting that one of the modes takes; one that is not given is None."""
    for name, known in settings_of(kind).items():
        if set(known.modes) & set(modes):
            words = _help(known, modes, default_of(kind, name)).replace("%", "%%")
            if known.is_flag:
                command.add_argument(known.option, dest=name, action="store_const", const=True, help=words)
                continue
            command.add_argument(known.option, dest=name, type=_value(name, kind), metavar=known.metavar, help=words)


def given_settings(options: argparse.Namespace, mode: str, kind: type[RunSettings] = RunSettings) -> dict[str, Any]:
    """The settings that were given. Raises: UsageError for one that the mode does not take, or that does nothing."""
    found = {name: getattr(options, name, None) for name in settings_of(kind)}
    given = {name: value for name, value in found.items() if value is not None}
    try:
        check_taken(mode, given, kind)
        kind(mode, **given)  # type: ignore[arg-type]
    except ProtocolError as problem:
        raise UsageError(str(problem)) from None
    return given


def chosen_settings(options: argparse.Namespace, mode: LocalMode) -> RunSettings:
    """The settings of a run on this machine. Raises: UsageError, by its option, for what does not fit the others."""
    given = given_settings(options, mode)
    try:
        return RunSettings(mode, **given)
    except ProtocolError as problem:
        raise _by_option(problem) from None


def check_validation(settings: RunSettings, option: str, value: object) -> None:
    """What the settings say of validations goes with the option that names data for them. Raises: UsageError."""
    try:
        settings.check_validation(option, is_given=value is not None)
    except ProtocolError as problem:
        raise _by_option(problem) from None


def _by_option(problem: ProtocolError) -> UsageError:
    known = settings_of(RunSettings).get(problem.where)
    said = str(problem).removeprefix(f"{problem.where}: ")
    return UsageError(f"{known.option if known else problem.where}: {said}")


def _help(known: Setting, modes: Sequence[str], default: Any) -> str:
    some = [mode for mode in modes if mode in known.modes]
    only = f"; {' and '.join(some)} only" if len(some) < len(modes) else ""
    if known.is_flag:
        return f"{known.words}{only and f' ({only[2:]})'}"
    usual = known.absent or (f"{default:g}" if isinstance(default, float) else default)
    return f"{known.words} ({known.bounds}{only}; default: {usual})"


def _value(name: str, kind: type[RunSettings]) -> Callable[[str], Any]:
    known = settings_of(kind)[name]
    hint = get_type_hints(kind)[name]
    arms = getattr(hint, "__args__", ())
    number: Callable[[str], Any] = str if known.choices else next((arm for arm in arms if arm is not type(None)), hint)

    def read(word: str) -> Any:
        value = number(word)
        if not known.is_within(value):
            raise argparse.ArgumentTypeError(f"{word} is not within its bounds: {known.bounds}")
        return value

    read.__name__ = number.__name__  # argparse names it when the word is no such number
    return read
