"""The report tells what every launch takes of an accelerator, as far as the compiler knows."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS


def launches(target: str, cache: Path) -> list[dict[str, Any]] | None:
    spec = TrainingSpec.parse({"batch": 4})
    settings = BuildSettings(SparsePlan.parse("full"), spec, load(target), cache_dir=cache)
    with tarfile.open(fileobj=io.BytesIO(compile_training(MODELS["mlp"](), settings).data)) as archive:
        report = archive.extractfile("report.json")
        assert report is not None
        found: list[dict[str, Any]] | None = json.load(report).get("launches")
    return found


def test_of_a_gpu_registers_spills_and_occupancy_are_told(kernel_cache: Path) -> None:
    found = launches("jetson-orin-nano/cuda", kernel_cache)
    assert found
    assert all(row["spill_bytes"] == 0 and 0 < row["registers"] <= 255 for row in found)
    assert all(0 < row["occupancy"] <= 1 for row in found)
    assert any(row["shared_bytes"] > 0 and row["groups"] > 1 for row in found)


@pytest.mark.parametrize(("target", "wanted"), [("x86-64-v3/opencl", {"kernel", "groups", "items", "shared_bytes"})])
def test_what_only_a_driver_knows_is_left_out(target: str, wanted: set[str], kernel_cache: Path) -> None:
    found = launches(target, kernel_cache)
    assert found
    assert all(set(row) == wanted for row in found)


def test_a_cpus_report_has_no_launches(kernel_cache: Path) -> None:
    assert launches("x86-64-v3", kernel_cache) is None
