"""`make recipes`: each recipe in an environment of its own, under build/recipes, made once for its constraints."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "keras": ("tensorflow-cpu", "keras", "tf2onnx"),
    "flax": ("jax", "flax", "jax2onnx"),
}
OURS = (
    "apache-tvm",
    "apache-tvm-ffi",
    "cryptography",
    "httpx",
    "onnx",
    "onnxruntime",
    "pyyaml",
    "ziglang",
)
"""What `pockfarm` itself needs to build and train, and what the result is compared with."""


def environment_of(name: str) -> Path:
    """The Python of the recipe's environment, which is made if it is not there or has other constraints."""
    folder, constraints = ROOT / "build" / "recipes" / name, Path(__file__).parent / f"constraints-{name}.txt"
    python, stamp = folder / "bin" / "python", folder / "made-for"
    wanted = hashlib.sha256(constraints.read_bytes()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == wanted):
        print(f"installing {', '.join(PACKAGES[name])}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        words = ["install", "--quiet", "--constraint", str(constraints), *PACKAGES[name], *OURS]
        subprocess.run([str(python), "-m", "pip", *words], check=True)
        stamp.write_text(wanted)
    return python


def main() -> int:
    codes = []
    for name in PACKAGES:
        command = [str(environment_of(name)), "-m", f"examples.recipes.{name}_families"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
