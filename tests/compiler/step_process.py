"""Runs a linked `step` as a process and reads its events; writes the files it takes."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS

QEMU = ("qemu-aarch64-static",)
AARCH64_GLIBC = Path("/usr/aarch64-linux-gnu")
"""Of Debian's libc6-arm64-cross: the loader and the C library of an AArch64 board."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """Exit code and parsed events of one run."""

    code: int
    events: tuple[dict[str, Any], ...]
    stderr: str

    def all(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]

    def one(self, name: str) -> dict[str, Any]:
        (event,) = self.all(name)
        return event

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.all("step")]


def run(binary: Path, *arguments: object, runner: Sequence[str] = ()) -> Outcome:
    """Run to the end. Every line of stdout must be a JSON object with an event."""
    command = [*runner, str(binary), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    events = tuple(json.loads(line) for line in done.stdout.decode().splitlines())
    return Outcome(done.returncode, events, done.stderr.decode(errors="replace"))


def refused(outcome: Outcome) -> tuple[int, str, str]:
    """(exit code, cause, code) of a run that must have failed with one error event, told on stderr too."""
    error = outcome.one("error")
    assert error["message"] in outcome.stderr
    return outcome.code, error["cause"], error["code"]


def classifier_state(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "w": random.normal(size=(CLASSES, FEATURES)).astype("f4"),
        "b": random.normal(size=CLASSES).astype("f4"),
        "constant.spare": np.asarray([1.5, -2.5], "f4"),
    }


def table_state(seed: int = 0) -> dict[str, Array]:
    return {"table": np.random.default_rng(seed).normal(size=(ROWS, FEATURES)).astype("f4")}


def write_weights(path: Path, state: Mapping[str, Array], metadata: dict[str, str] | None = None) -> Path:
    save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, path, metadata)
    return path


@dataclass(frozen=True)
class Data:
    """A data set on disk, as arrays and as arguments."""

    x: Array
    y: Array
    arguments: tuple[str, ...]


def write_data(folder: Path, name: str, x: Array, y: Array) -> Data:
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return Data(x, y, ("--input", f"{name}={folder / 'x.npy'}", "--labels", str(folder / "y.npy")))


def classifier_data(folder: Path, samples: int = 10, seed: int = 1) -> Data:
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, FEATURES)).astype("f4")
    return write_data(folder, "x", x, random.integers(0, CLASSES, samples))


def table_data(folder: Path, samples: int = BATCH, seed: int = 1) -> Data:
    random = np.random.default_rng(seed)
    tokens = random.integers(-ROWS, ROWS, size=(samples, 2))
    return write_data(folder, "tokens", tokens, random.normal(size=(samples, 2, FEATURES)).astype("f4"))


def raw_safetensors(header: str, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file from its header text, well-formed or not."""
    text = header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body
