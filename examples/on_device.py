"""A training step without a farm, in C and in Python: `python -m examples.on_device`.

Builds a bundle with a shared library for this machine, unpacks it, compiles the C example that is in it, trains ten
steps with that, and the same ten steps with `pockfarm.ondevice` in this process. An app needs what `main` does from
the second half on, and no compiler of ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.models import MODELS
from pockfarm.ondevice import Step

STEPS = 10
SPEC = "{batch: 8, threads: 1, optimizer: {kind: sgd, learning_rate: 0.05}}"


def build(folder: Path) -> Path:
    """A bundle with a library, as `pockfarm build --library` makes it."""
    (folder / "net.onnx").write_bytes(MODELS["small_cnn"]())
    command = [
        sys.executable,
        "-m",
        "pockfarm.cli",
        "build",
        "net.onnx",
        "--spec",
        SPEC,
        "--library",
        "--out",
        "net.pfb",
    ]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "net.pfb"


def train_in_c(bundle: Path, x: NDArray[np.float32], y: NDArray[np.int64]) -> list[float]:
    """Losses of the bundle's own example program, compiled by this machine's C compiler."""
    folder = bundle.parent
    with tarfile.open(bundle) as archive:
        for name in ("include/pockfarm.h", "example/train.c", "lib/libpockfarm_step.so", "weights.safetensors"):
            source = archive.extractfile(name)
            assert source is not None
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(source.read())
    command = [
        "cc",
        "-O2",
        "-I",
        "include",
        "example/train.c",
        "-L",
        "lib",
        "-lpockfarm_step",
        "-o",
        "train",
        f"-Wl,-rpath,{folder / 'lib'}",
    ]
    subprocess.run(command, cwd=folder, check=True)
    x.tofile(folder / "input.raw")
    y.tofile(folder / "labels.raw")
    words = ["./train", "weights.safetensors", "trained.safetensors", str(STEPS), "input.raw", "labels.raw"]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def train_in_python(bundle: Path, x: NDArray[np.float32], y: NDArray[np.int64]) -> list[float]:
    """Losses of the same step in this process."""
    with Step(bundle) as step:
        losses = [step.train(x, y) for _ in range(STEPS)]
        score = step.evaluate(x, y)
        print(
            f"after {step.steps_done} steps: loss {score.loss:.3g}, accuracy {score.accuracy:.3g}, "
            f"{step.memory_bytes:,} bytes"
        )
    return losses


def main() -> None:
    """Print the loss of each step, from C and from Python."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="pockfarm-example-") as name:
        bundle = build(Path(name))
        with Step(bundle) as step:
            shape = (step.samples, *step.inputs[0].shape)
        random = np.random.default_rng(0)
        x = random.normal(size=shape).astype(np.float32)
        y = random.integers(0, 4, step.samples)
        in_c, in_python = train_in_c(bundle, x, y), train_in_python(bundle, x, y)
    print("step       C  Python")
    for number, both in enumerate(zip(in_c, in_python, strict=True), 1):
        print(f"{number:4} {both[0]:7.4f} {both[1]:7.4f}")


if __name__ == "__main__":
    main()
