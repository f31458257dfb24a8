"""One virtual environment per foreign framework, made on demand under `build/bench/envs`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENTS = Path("build/bench/envs")
REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow-cpu==2.21.0", "numpy==2.4.6"),
    "jax": ("jax==0.10.2", "numpy==2.4.6"),
    # ONNX Runtime Training 1.19.2 reads models of IR version 10 at most, which onnx 1.17 writes.
    "onnxruntime": ("onnxruntime-training==1.19.2", "onnx==1.17.0", "numpy==2.4.6"),
}
INSTALL_S = 1800


class EnvironmentFailed(Exception):
    """A framework could not be installed; the message is pip's last line."""


def python_of(framework: str) -> Path:
    """The interpreter that has `framework`; the environment is made if it is not there. PyTorch lives in our own.

    Raises: EnvironmentFailed.
    """
    if framework not in REQUIREMENTS:
        return Path(sys.executable)
    folder = ENVIRONMENTS / framework
    python, stamp = folder / "bin" / "python", folder / "requirements"
    wanted = "\n".join(REQUIREMENTS[framework])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"  installing {wanted.splitlines()[0]} (once, a few minutes)", flush=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *REQUIREMENTS[framework]])
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentFailed(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
