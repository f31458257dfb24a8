"""Names that a caller gives: keywords, which must exist, and devices, which must be meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

from device_agents.wire import RunSettings, settings_of
from pockfarm.errors import UsageError
from pockfarm.suggestions import did_you_mean
from pockfarm.values import Device

Function = TypeVar("Function", bound=Callable[..., Any])


class UnknownKeyword(UsageError, TypeError):
    """An argument that a call does not have."""


def refuse_unknown(call: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raises: UnknownKeyword, with the name that is nearest."""
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed) or f"it takes {', '.join(allowed)}"
            raise UnknownKeyword(f"{call}() has no argument {name!r}", hint=hint)


def with_known_keywords(function: Function) -> Function:
    """The function, which names what is nearest to a keyword that it does not have. Where it takes any (`**training`),
    those are settings of mode train."""
    parameters = inspect.signature(function).parameters.values()
    keywords = [
        parameter.name
        for parameter in parameters
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        keywords += [name for name, setting in settings_of(RunSettings).items() if "train" in setting.modes]

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        refuse_unknown(function.__name__, named, keywords)
        return function(*given, **named)

    return cast(Function, checked)


def target_named(devices: Callable[[], Sequence[Device]], name: str) -> str:
    """The target itself; for `host`, the best one of the farm's own machine. Raises: UsageError."""
    if name != "host":
        return name
    for device in devices():
        if device.measurement_class == "host" and device.targets:
            return device.targets[0]
    raise UsageError("the farm has no agent on its own machine, so there is no target `host`", hint="name one")


def is_meant(device: Device, pattern: str) -> bool:
    """Whether the pattern is its id, name or class, or one of its targets or tags (`key` or `key=value`)."""
    tags = device.raw.get("tags")
    pairs = tags.items() if isinstance(tags, dict) else ()
    names = (device.id, device.name, device.device_class, *device.targets)
    words = [*names, *(str(key) for key, _ in pairs), *(f"{key}={value}" for key, value in pairs)]
    return any(fnmatchcase(word.lower(), pattern.lower()) for word in words)
