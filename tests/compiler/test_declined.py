"""The compile report says where rewrites did not fire, the same in every build."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.kernel_harness.machine import native_target


def build(cache: Path) -> bytes:
    settings = BuildSettings(
        plan=SparsePlan.parse("full"),
        spec=TrainingSpec.parse({"batch": 4, "threads": 2}),
        target=load(native_target()),
        cache_dir=cache,
    )
    return compile_training(MODELS["small_cnn"](), settings).data


def report_of(bundle: bytes) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        member = archive.extractfile("report.json")
        assert member is not None
        found: dict[str, Any] = json.loads(member.read())
        return found


def test_a_report_counts_reasons_with_an_example_each(kernel_cache: Path) -> None:
    first, second = build(kernel_cache), build(kernel_cache)
    assert first == second
    declined = report_of(first)["declined"]
    keys = [(one["pass"], one["code"]) for one in declined]
    assert keys == sorted(set(keys))
    assert all(one["count"] > 0 and one["where"].isprintable() and one["needs"] for one in declined)
    convolutions = next(one for one in declined if one["code"] == "update.no_product")
    assert convolutions["pass"] == "fuse_updates"
    assert len(json.dumps(declined)) < 4000
