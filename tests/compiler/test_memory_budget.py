"""A target's memory is a budget that refuses and never steers: what fits is built as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compiler.api import BuildSettings, compile_training
from compiler.errors import DoesNotFit
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import Target, load
from examples.models import MODELS
from pockfarm.errors import UsageError
from pockfarm.local import toolchain as local
from tests.kernel_harness.machine import native_target

FULL = SparsePlan.of_preset("full")
SMALL = 100_000
"""Bytes: less than `small_cnn` needs."""


def spec(batch: int = 4, **more: object) -> TrainingSpec:
    return TrainingSpec.parse({"batch": batch, "threads": 2, "optimizer": {"kind": "sgd", "momentum": 0.9}, **more})


def tiny() -> Target:
    return replace(load(native_target()), memory_bytes=SMALL, reserved_bytes=0)


def test_a_step_that_the_board_cannot_hold_is_refused_with_the_ways_out() -> None:
    board = load("raspberry-pi-3")
    with pytest.raises(DoesNotFit) as refused:
        compile_training(MODELS["mobilenet_v2"](), BuildSettings(FULL, spec(batch=24), board))
    error = refused.value
    assert (error.cause, error.code) == ("limits", "limits.memory")
    assert error.limit_bytes == board.budget_bytes == (512 - 160) << 20
    assert error.needed_bytes > error.limit_bytes
    numbers = f"needs {error.needed_bytes:,} bytes, the limit is {error.limit_bytes:,}"
    ways = ("lower the batch", "fewer or later layers", "repeated", "what is free there")
    for words in (numbers, board.title, f"memory_limit_bytes to {board.budget_bytes:,}", *ways):
        assert words in str(error)


def test_the_spec_s_own_limit_stands_in_place_of_the_budget(kernel_cache: Path) -> None:
    settings = BuildSettings(FULL, spec(memory_limit_bytes=1 << 30), tiny(), cache_dir=kernel_cache)
    with pytest.raises(DoesNotFit):
        compile_training(MODELS["small_cnn"](), replace(settings, spec=spec()))
    bundle = compile_training(MODELS["small_cnn"](), settings)
    assert bundle.manifest["memory"]["peak_bytes"] > SMALL


def test_a_limit_that_no_way_keeps_is_named_with_the_ways_that_were_tried() -> None:
    board = load("x86-64-v3")
    for preset, words in (("last-layer", "the only way to run it"), ("full", " ways that were tried")):
        settings = BuildSettings(SparsePlan.of_preset(preset), spec(batch=1, memory_limit_bytes=100_000), board)
        with pytest.raises(DoesNotFit) as refused:
            compile_training(MODELS["mlp"](), settings)
        assert refused.value.where == "spec.memory_limit_bytes"
        assert words in refused.value.hint
        assert "1 ways" not in refused.value.hint
        assert refused.value.limit_bytes == 100_000
        assert refused.value.needed_bytes > refused.value.limit_bytes
        assert "train fewer or later layers" in refused.value.hint
        assert "lower the batch" not in refused.value.hint


def test_the_budget_changes_no_byte_of_what_fits(kernel_cache: Path) -> None:
    model, settings = MODELS["small_cnn"](), BuildSettings(FULL, spec(), load(native_target()), cache_dir=kernel_cache)
    plenty = compile_training(model, settings)
    needed = plenty.manifest["memory"]["peak_bytes"]
    exact = replace(settings.target, memory_bytes=needed, reserved_bytes=0)
    assert compile_training(model, replace(settings, target=exact)).digest == plenty.digest


def test_host_is_a_target_with_this_machine_s_memory(
    tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert local.memory_bytes() == int(total.split()[1]) * 1024
    model = tmp_path / "net.onnx"
    model.write_bytes(MODELS["small_cnn"]())
    monkeypatch.setenv("POCKFARM_CACHE_DIR", str(kernel_cache))
    text = '{"batch": 4, "threads": 2}'
    assert local.build(model, "full", text, "host", lambda stage, fraction: None).digest
    monkeypatch.setattr(local, "memory_bytes", lambda: SMALL)
    with pytest.raises(UsageError, match=r"memory_limit_bytes.*\[limits.memory\]"):
        local.build(model, "full", text, "host", lambda stage, fraction: None)
    assert local.build(model, "full", text, native_target(), lambda stage, fraction: None).digest


@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 30, 1 << 34])
def test_half_of_the_memory_is_always_the_step_s(memory_bytes: int) -> None:
    budget = replace(load("x86-64-v4"), memory_bytes=memory_bytes).budget_bytes
    assert memory_bytes // 2 <= budget < memory_bytes
