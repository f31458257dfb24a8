"""Instructions that a training step executes on AArch64 boards, beside the figures that were kept: a regression shows.

    python -m benchmarks.instructions [--update] [--only TEXT]

Each model's full step is built for a board and run on one thread by `qemu-aarch64` (Debian package qemu-user) with a
plugin that counts; a step is half of what two more steps cost. Exits with 1 if a count is more than 3% above the one
kept in `instructions.json`; `--update` keeps the new ones.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from pathlib import Path

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS

KEPT = Path(__file__).parent / "instructions.json"
PLUGIN = Path(__file__).parent / "count_instructions.c"
TOLERANCE = 0.03
BOARDS = ("raspberry-pi-4",)
STEPS = {
    "mobilenet_v2 0.35 64px": partial(MODELS["mobilenet_v2"], width=0.35, resolution=64, classes=10),
    "mcunet 64px": partial(MODELS["mcunet"], resolution=64),
    "resnet50 16 32px": partial(MODELS["resnet50"], resolution=32, classes=10, width=16),
    "transformer_encoder": partial(MODELS["transformer_encoder"], tokens=100, positions=32, width=64),
}


def main() -> None:
    """Count, print beside what was kept, store or judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", default="", help="only steps whose name contains this")
    parser.add_argument("--cache", type=Path, default=Path(".cache/kernels"))
    arguments = parser.parse_args()
    kept: dict[str, int] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory(prefix="pockfarm-instructions-") as name:
        found = count_all(Path(name), arguments.cache, arguments.only, kept)
    if arguments.update:
        KEPT.write_text(json.dumps({**kept, **found}, indent=1, sort_keys=True) + "\n")
        return
    worse = regressions(kept, found)
    print(f"{len(worse)} of {len(found)} steps execute more than {TOLERANCE:.0%} more than was kept")
    sys.exit(1 if worse else 0)


def regressions(kept: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Steps whose count grew by more than the tolerance."""
    return [name for name, count in found.items() if count > kept.get(name, count) * (1 + TOLERANCE)]


def count_all(folder: Path, cache: Path, only: str, kept: Mapping[str, int]) -> dict[str, int]:
    """Instructions of every step by name, printed as they come."""
    plugin = build_plugin(folder)
    found = {}
    for board in BOARDS:
        for name, make in STEPS.items():
            key = f"{name} on {board}"
            if only not in key:
                continue
            found[key] = instructions_of_a_step(make(), board, folder / key.replace(" ", "-"), cache, plugin)
            change = f"{found[key] / kept[key] - 1:+.2%}" if key in kept else "new"
            print(f"{found[key]:14,}  {change:>8}  {key}", flush=True)
    return found


def build_plugin(folder: Path) -> Path:
    """The counting plugin as a shared library. Raises: SystemExit if QEMU is missing."""
    if shutil.which("qemu-aarch64") is None:
        sys.exit("qemu-aarch64 with plugins is not installed: apt-get install qemu-user")
    path = folder / "count_instructions.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-O2", "-shared", "-fPIC", "-Wl,--allow-shlib-undefined"]
    subprocess.run([*command, "-o", str(path), str(PLUGIN)], check=True, cwd=folder)
    return path


def instructions_of_a_step(model: bytes, board: str, folder: Path, cache: Path, plugin: Path) -> int:
    """Build the full step of `model` for `board`, and count."""
    spec = TrainingSpec.parse({"batch": 1, "optimizer": {"kind": "sgd", "learning_rate": 1e-4, "momentum": 0.9}})
    bundle = compile_training(
        model, BuildSettings(plan=SparsePlan.parse("full"), spec=spec, target=load(board), cache_dir=cache)
    )
    with tarfile.open(fileobj=BytesIO(bundle.data)) as archive:
        archive.extractall(folder, filter="data")
    few, more = (executed(folder, plugin, warmup) for warmup in (1, 3))
    return (more - few) // 2


def executed(folder: Path, plugin: Path, warmup: int) -> int:
    """Instructions of a whole profile of `warmup` steps and a few more."""
    command = ["qemu-aarch64", "-plugin", str(plugin), str(folder / "bin/step"), "profile", "--threads", "1"]
    options = ["--weights", str(folder / "weights.safetensors"), "--steps", "1", "--warmup", str(warmup)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    match = re.search(r"^instructions (\d+)$", done.stderr, re.MULTILINE)
    if match is None:
        sys.exit(f"the plugin counted nothing: {done.stderr[-300:]}")
    return int(match[1])


if __name__ == "__main__":
    main()
