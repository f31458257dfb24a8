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
    for name, setting in settings_of(kind).items():
        if set(setting.modes) & set(modes):
            words = _help(setting, modes, default_of(kind, name)).replace("%", "%%")
            if setting.is_flag:
                command.add_argument(setting.option, dest=name, action="store_const", const=True, help=words)
                continue
            command.add_argument(
                setting.option, dest=name, type=_value(name, kind), metavar=setting.metavar, help=words
            )


def given_settings(options: argparse.Namespace, mode: str, kind: type[RunSettings] = RunSettings) -> dict[str, Any]:
    """The settings that were given. Raises: UsageError for one that the mode does not take, or that does nothing."""
    arguments = {name: getattr(options, name, None) for name in settings_of(kind)}
    settings = {name: value for name, value in arguments.items() if value is not None}
    try:
        check_taken(mode, settings, kind)
        kind(mode, **settings)  # type: ignore[arg-type]
    except ProtocolError as problem:
        raise UsageError.of_protocol(problem) from None
    return settings


def chosen_settings(options: argparse.Namespace, mode: LocalMode) -> RunSettings:
    """The settings of a run on this machine. Raises: UsageError, by its option, for what does not fit the others."""
    settings = given_settings(options, mode)
    try:
        return RunSettings(mode, **settings)
    except ProtocolError as problem:
        raise _by_option(problem) from None


def check_validation(settings: RunSettings, option: str, value: object) -> None:
    """Checks that settings of validation come with the option that names data for it, and the other way round. Raises:
    UsageError.
    """
    try:
        settings.check_validation(option, is_given=value is not None)
    except ProtocolError as problem:
        raise _by_option(problem) from None


def _by_option(problem: ProtocolError) -> UsageError:
    setting = settings_of(RunSettings).get(problem.where)
    error = UsageError.of_protocol(problem)
    error.where = setting.option if setting else problem.where
    return error


def _help(setting: Setting, modes: Sequence[str], default: Any) -> str:
    some = [mode for mode in modes if mode in setting.modes]
    only = f"; {' and '.join(some)} only" if len(some) < len(modes) else ""
    if setting.is_flag:
        return f"{setting.words}{only and f' ({only[2:]})'}"
    usual = setting.absent or (f"{default:g}" if isinstance(default, float) else default)
    return f"{setting.words} ({setting.bounds}{only}; default: {usual})"


def _value(name: str, kind: type[RunSettings]) -> Callable[[str], Any]:
    setting = settings_of(kind)[name]
    hint = get_type_hints(kind)[name]
    arms = getattr(hint, "__args__", ())
    number: Callable[[str], Any] = (
        str if setting.choices else next((arm for arm in arms if arm is not type(None)), hint)
    )

    def read(word: str) -> Any:
        value = number(word)
        if not setting.is_within(value):
            raise argparse.ArgumentTypeError(f"{word} is not within its bounds: {setting.bounds}")
        return value

    read.__name__ = number.__name__  # argparse names it when the word is no such number
    return read
