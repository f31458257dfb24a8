"""Steps that are carried to a GPU: built here, checked and measured on one that is played, by what a real one runs."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.build import Asked, Exported, build
from benchmarks.gpu.carried import Carried, NotAsBuilt
from benchmarks.gpu.check import check, check_all
from benchmarks.gpu.compare import Comparison, SideFound, compare
from benchmarks.gpu.device import NoGpu
from benchmarks.gpu.fingerprint import fingerprint
from benchmarks.gpu.ready import Workshop
from benchmarks.gpu.seeded import Drawn, Weight
from benchmarks.gpu.sides import OURS, SPARSE, VARIANTS, groups_of, other, ours
from benchmarks.gpu.tables import page
from benchmarks.processes import SideFailed, started
from tests.compiler.agreement.played_gpu import PlayedGpu, build_driver

BATCH = 4
GPU = {"accelerator": "a GPU (gpu)", "accelerator_api": "CUDA 12.2", "compute_capability": "sm_90"}


@pytest.fixture(scope="module")
def asked(kernel_cache: Path) -> Asked:
    return Asked(command.TARGET, ("mlp",), (BATCH,), ("full", "sparse"), ("f32",), kernel_cache)


@pytest.fixture(scope="module")
def carried(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """As it is found where it was carried to."""
    folder = tmp_path_factory.mktemp("built") / "bench-gpu"
    build(folder, asked)
    return Carried.load(shutil.move(folder, tmp_path_factory.mktemp("carried")) / Path())


@pytest.fixture(scope="module")
def gpu(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> PlayedGpu:
    folder = tmp_path_factory.mktemp("gpu")
    played, exported = PlayedGpu(build_driver(folder), folder / "kernels"), Exported.of("mlp")
    for plan in asked.plans:
        played.play(exported.onnx, exported.settings(BATCH, plan, "f32", asked))
    return played


@pytest.fixture
def workshop(carried: Carried, gpu: PlayedGpu, tmp_path: Path) -> Workshop:
    return Workshop(carried, tmp_path, gpu.runner())


def test_carried_steps_do_what_autograd_does_in_float64(workshop: Workshop) -> None:
    checked = list(check_all(workshop, workshop.carried.steps))
    assert [str(one.step.name) for one in checked] == [f"mlp-b{BATCH}-full-f32", f"mlp-b{BATCH}-sparse-f32"]
    assert [one.problems for one in checked] == [[], []]
    assert all(one.loss_error is not None and one.loss_error < 1e-6 for one in checked)
    assert all(one.error is not None and one.error < 1e-5 for one in checked)
    assert all(str(one).startswith("agrees") for one in checked)


def test_a_step_that_does_other_work_is_told(workshop: Workshop, tmp_path: Path) -> None:
    full, sparse = workshop.carried.steps
    folder = shutil.copytree(workshop.carried.folder, tmp_path / "other")
    elsewhere = replace(workshop.carried, folder=folder)
    shutil.copy(elsewhere.step_path(full.name), elsewhere.step_path(sparse.name))
    (found,) = check_all(Workshop(elsewhere, tmp_path, workshop.runner), [sparse])
    assert "0.weight is frozen and changed" in found.problems
    assert str(found).startswith("DIFFERS")
    elsewhere.step_path(full.name).write_bytes(b"cut off")
    (broken,) = check_all(Workshop(elsewhere, tmp_path, workshop.runner), [full])
    assert "carry the whole folder" in broken.problems[0]
    assert str(broken).startswith("FAILS")


def test_without_a_driver_a_step_says_so(workshop: Workshop) -> None:
    found = check(replace(workshop, runner=("env", "LD_LIBRARY_PATH=/nowhere")), workshop.carried.steps[0])
    # On a machine with a GPU the step runs on that.
    assert not found.problems or "CUDA" in found.problems[0]


def test_other_weights_than_the_builders_are_refused(workshop: Workshop, tmp_path: Path) -> None:
    model = replace(workshop.carried.models["mlp"], weights_digest="other")
    elsewhere = replace(workshop.carried, models={"mlp": model})
    with pytest.raises(NotAsBuilt, match="makes other weights from the seed"):
        Workshop(elsewhere, tmp_path).weights("mlp")


def test_sides_take_turns_once_they_are_seen_to_do_the_same(workshop: Workshop, tmp_path: Path) -> None:
    (group,) = groups_of(workshop.carried)
    eager = other(workshop, group.steps["full"], VARIANTS["PyTorch eager"], "cpu")
    wrong = other(workshop, group.steps["sparse"], VARIANTS["PyTorch eager"], "cpu")
    wrong = replace(wrong, course=eager.course)
    sides = [*ours(workshop, group), eager, wrong]
    found = compare(group, sides, turns=2, seconds=0.05, logs=tmp_path / "logs", gpu=GPU, commit="abc")
    found.save(tmp_path / "found.json")
    assert Comparison.load(tmp_path / "found.json") == found
    mine, other_side = found.side(OURS), found.fastest_other("full")
    assert mine is not None
    assert other_side is not None
    assert other_side.name == "PyTorch eager"
    assert len(mine.rounds_ms) == len(other_side.rounds_ms) == 2
    assert mine.device_bytes == group.steps["full"].device_bytes > 0
    assert not found.ours_failed()
    assert "takes other steps than ours" in found.sides[-1].error
    assert "| PyTorch eager |" in page([found])


def test_a_framework_that_fails_says_why(workshop: Workshop, tmp_path: Path) -> None:
    (group,) = groups_of(workshop.carried)
    side = other(workshop, group.steps["full"], VARIANTS["PyTorch eager, CUDA graph"], "cuda")
    task = {**json.loads(side.command[-1]), "model": "no such"}
    with (
        pytest.raises(SideFailed, match="KeyError: 'no such'"),
        started(replace(side, command=(*side.command[:-1], json.dumps(task))), tmp_path / "log"),
    ):
        pass


def test_without_a_gpu_nothing_is_measured(
    carried: Carried, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise NoGpu("libcuda.so.1: cannot open")

    monkeypatch.setattr(command, "gpu", none)
    for word, code in (("run", command.NOTHING_DONE), ("check", command.NOTHING_DONE), ("bench", 0)):
        monkeypatch.setattr(sys, "argv", ["gpu", word, str(carried.folder)])
        assert command.main() == code
        told = capsys.readouterr()
        assert "no GPU: libcuda.so.1: cannot open; nothing measured" in told.out + told.err
        assert "|" not in told.out
    assert f"python3 -m benchmarks.gpu check {carried.folder}" in told.out


def test_goals_are_met_or_missed() -> None:
    sides = [
        SideFound(OURS, "full", True, [[2.0]], [2.1], 1e-7, 40_000_000),
        SideFound(SPARSE, "sparse", True, [[1.0]], [1.1], 1e-7, 20_000_000),
        SideFound("PyTorch eager", "full", False, [[6.0]], [], 1e-7, 90_000_000),
        SideFound("torch.compile", "full", False, [[1.5]], [], 1e-7, 70_000_000),
        SideFound("wrong", "full", False, [[1.0]], [], 0.5, 10, error="takes other steps than ours"),
    ]
    text = page([Comparison("m", 8, "f32", GPU, "abc", sides)], ["llama-b8-f32 is not measured"])
    (row,) = (line for line in text.splitlines() if line.startswith("| m b8 f32 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:6] == ["torch.compile", "1.500", "0.75x", "**missed**"]
    assert cells[6:8] == ["2.00x", "met"]
    assert cells[8:] == ["40.0", "70.0", "0.57", "**missed**"]
    assert "- wrong is left out: takes other steps than ours" in text


def test_fingerprints_are_as_far_apart_as_arrays() -> None:
    rng = np.random.default_rng(0)
    one = rng.standard_normal((300, 70))
    for scale in (1e-6, 1.0):
        two = one + scale * rng.standard_normal(one.shape)
        apart = np.linalg.norm(fingerprint("w", one) - fingerprint("w", two))
        assert apart == pytest.approx(np.linalg.norm(one - two), rel=0.3)


def test_what_is_drawn_is_spread_as_asked() -> None:
    weight = Weight((200, 50), 0.5, 0.2).made("w")
    assert weight.mean() == pytest.approx(0.5, abs=0.01)
    assert weight.std() == pytest.approx(0.2, rel=0.02)
    tokens = Drawn((128,), below=7, low=3).batch("ids", 8)
    assert sorted(set(tokens.reshape(-1).tolist())) == [3, 4, 5, 6]
