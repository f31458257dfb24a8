"""Two builds of the same model, in processes, folders and caches of their own, are the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from compiler.cache_folder import KERNELS, LINKER, cache_folder
from service.boards.canary.building import HEALTH
from tests.architecture.sources import ROOT

MODEL = ROOT / "service/boards/canary/model.onnx"


def built(folder: Path, seed: int, zone: str) -> bytes:
    """The bundle of a build that shares nothing with another but the sources."""
    libc = cache_folder() / LINKER
    libc.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / LINKER).symlink_to(libc)  # its C library takes minutes to build, and is none of ours
    shutil.copy(MODEL, folder / "model.onnx")
    (folder / "spec.json").write_text(json.dumps(HEALTH.spec))
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "TZ": zone,
        "POCKFARM_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    program = "import sys; from pockfarm.cli import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        program,
        "build",
        "--no-tuning",
        "model.onnx",
        "--plan",
        "full",
        "--spec",
        "spec.json",
        "--target",
        "x86-64-v3",
        "--out",
        "made.pfb",
    ]
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert list((folder / "cache" / KERNELS).glob("??/*")), "the kernels were compiled here, and not found elsewhere"
    return (folder / "made.pfb").read_bytes()


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    one = built(tmp_path / "one", 1, "UTC")
    two = built(tmp_path / "a longer name of a folder", 77, "Asia/Kolkata")
    assert one == two
