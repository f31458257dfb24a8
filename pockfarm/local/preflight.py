"""Checks before a bundle runs on this machine, so that nobody waits for a run to hear of a slip.

Bundle, data and places to write to are looked at by the rule that the farm goes by (`device_agents.wire.data_fit`);
what is found says the caller's own names of files and arrays. What may be meant is a warning.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_agents.wire import RunSettings, data_fit, settings_fit
from pockfarm.errors import BELOW, IN_PARENTHESES, UsageError
from pockfarm.suggestions import suggestion
from pockfarm.values import CompileWarning

MADE_BY: Mapping[str, str] = {"out": "infer", "save": "train", "export": "train", "checkpoint": "train"}
"""By the option that says where to: the mode that writes it."""
HINT = "write one with numpy.savez(file, x=inputs, y=labels)"
IGNORED = -100


def check_places(mode: str, places: Mapping[str, Path | None]) -> None:
    """`places`: by the names of options, where results go. Raises: UsageError for one that cannot be written, or that
    the mode does not make."""
    if mode == "infer" and places.get("out") is None:
        raise UsageError("infer has nowhere to put its answers: say where with --out F.npy")
    for name, path in places.items():
        if path is None:
            continue
        if MADE_BY.get(name, mode) != mode:
            raise UsageError(
                f"mode {mode} makes no such file, {MADE_BY[name]} does", where=f"--{name} {path}", hint="leave it out"
            )
        check_place(f"--{name}", path)


def check_place(option: str, path: Path) -> None:
    """Before the work of which it takes the result. Raises: UsageError for what cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise UsageError("that is a folder", where=f"{option} {path}", hint="name a file in it")
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder {folder}", where=f"{option} {path}", hint=f"make it first (mkdir -p {folder})"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError("it may not be written by you", where=f"{option} {path}", hint="name another place")


def check_file(path: Path, what: str, made_by: str) -> None:
    """Raises: UsageError for what is no file, with the command that makes one."""
    if not path.is_file():
        problem = f"that is a folder, not {what}" if path.is_dir() else "no such file"
        raise UsageError(problem, where=path, hint=f"{made_by} makes one")


def check_class(device_class: str | None, classes: Iterable[str]) -> None:
    """Raises: UsageError for a class that no target is of."""
    names = sorted(set(classes))
    if device_class is not None and device_class not in names:
        raise UsageError(
            "no device is of this class",
            where=f"--class {device_class}",
            hint=f"there are: {', '.join(names)}{suggestion(device_class, names)}",
        )


def check_data(
    settings: RunSettings, manifest: Mapping[str, Any], data: Path | None, validation: Path | None
) -> tuple[CompileWarning, ...]:
    """Returns warnings about the data. Raises: UsageError for data that do not fit the bundle, or that are missing."""
    if data is None and settings.needs_data:
        raise UsageError(
            f"mode {settings.mode} needs data: name them with --data F.npz", hint=HINT, hint_form=IN_PARENTHESES
        )
    reads_labels = settings.mode != "infer"
    warnings: list[CompileWarning] = []
    for path in (data, validation):
        warnings += _looked_at(path, manifest, reads_labels=reads_labels) if path is not None else ()
    return tuple(warnings)


def settings_remarks(
    settings: RunSettings, manifest: Mapping[str, Any], *, goes_on: bool = False
) -> tuple[CompileWarning, ...]:
    """Returns warnings about settings that are odd for the bundle; `goes_on`: the run starts from weights that have
    steps behind them.
    """
    remarks = settings_fit.remarks(settings, manifest, goes_on=goes_on)
    return tuple(CompileWarning(odd.code, odd.array, odd.message, odd.hint) for odd in remarks)


def _looked_at(path: Path, manifest: Mapping[str, Any], *, reads_labels: bool) -> Iterator[CompileWarning]:
    inputs, labels = data_fit.inputs_of(manifest), data_fit.labels_of(manifest)
    if not inputs:
        return
    arrays = _arrays(path)
    try:
        data_fit.check_fit(arrays, inputs, labels, reads_labels=reads_labels)
    except data_fit.Misfit as misfit:
        raise UsageError(misfit.message, where=path, hint=misfit.hint, code=misfit.code, hint_form=BELOW) from None
    batch = int(manifest.get("batch", 0))
    for remark in data_fit.remarks(arrays, inputs, labels, batch=batch if reads_labels else 0):
        yield CompileWarning(remark.code, str(path), remark.message, remark.hint)


def _arrays(path: Path) -> dict[str, data_fit.ArraySummary]:
    """Every array of an npz, read once. Raises: UsageError."""
    return {name: _describe(path, name, array) for name, array in arrays_in(path)}


def arrays_in(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of an npz by name, one after the other. Raises: UsageError."""
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise UsageError("one array (.npy), and not several by name", where=path, hint=HINT, hint_form=BELOW)
        with opened as file:
            if not file.files:
                raise UsageError("an npz without arrays", where=path, hint=HINT, hint_form=BELOW)
            for name in file.files:
                yield name, file[name]
    except OSError as problem:
        if problem.strerror:
            raise UsageError(problem.strerror, where=path, hint=HINT, hint_form=BELOW) from None
        raise UsageError(f"not a readable npz ({problem})", where=path, hint=HINT, hint_form=BELOW) from None
    except (ValueError, EOFError):
        raise UsageError(
            "no npz of arrays of numbers, as numpy.savez writes it", where=path, hint=HINT, hint_form=BELOW
        ) from None
    except zipfile.BadZipFile as problem:
        raise UsageError(
            f"not a readable npz ({problem}); is the file cut off?", where=path, hint=HINT, hint_form=BELOW
        ) from None
    except NotImplementedError as problem:  # what zipfile says of a compression that it has not
        raise UsageError(
            f"its parts are packed as no npz is ({problem})", where=path, hint=HINT, hint_form=BELOW
        ) from None


def _describe(path: Path, name: str, array: NDArray[Any]) -> data_fit.ArraySummary:
    if array.ndim < 1 or not array.size:
        raise UsageError(
            (f"array {name!r} has shape {list(array.shape)}; samples are its first axis, and there must be some"),
            where=path,
            hint="give it some: what it holds was perhaps filtered away",
            hint_form=BELOW,
        )
    if not array.flags.c_contiguous and array.flags.f_contiguous:
        raise UsageError(
            f"array {name!r} is column-major",
            where=path,
            hint=f"save numpy.ascontiguousarray({name})",
            code="data.layout",
            hint_form=BELOW,
        )
    if array.dtype.kind == "f":
        _check_numbers(path, name, array)
    return seen_of(array)


def seen_of(array: NDArray[Any]) -> data_fit.ArraySummary:
    """Returns the properties that the rules read, of an array that has elements."""
    if array.dtype.kind not in "fiub":
        return data_fit.ArraySummary(str(array.dtype), array.shape)
    is_whole = array.dtype.kind != "f" or bool((array == np.trunc(array)).all())
    counted = array[array != IGNORED] if array.dtype.kind == "i" else array
    if not counted.size:
        return data_fit.ArraySummary(str(array.dtype), array.shape)
    return data_fit.ArraySummary(str(array.dtype), array.shape, float(counted.min()), float(counted.max()), is_whole)


def _check_numbers(path: Path, name: str, array: NDArray[Any]) -> None:
    """Checks an array's numbers; one that is the same for all samples, such as a mask, may hold infinities."""
    odd = np.isnan(array) if array.shape[0] == 1 else ~np.isfinite(array)
    if odd.any():
        place = [int(index) for index in np.unravel_index(int(np.argmax(odd)), array.shape)]
        others = int(odd.sum()) - 1
        more = f", and {others:,} more are no finite numbers" if others else ""
        raise UsageError(
            f"array {name!r}, element {place} is {array[tuple(place)]}{more}",
            where=path,
            hint="clean NaN and Inf first",
            code="data.not-finite",
            hint_form=BELOW,
        )
