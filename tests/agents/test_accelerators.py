"""Engines beside the CPU: what their drivers tell, what an agent for one says, and what its jobs see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compiler import targets
from compiler.api import BuildSettings, compile_training
from compiler.codegen.linking.toolchain import RUNTIME
from compiler.spec.documents import SparsePlan, TrainingSpec
from device_agents.devices.accelerator import ENGINES, Accelerator, accelerator_of, engine_targets
from device_agents.devices.describe import describe_device
from device_agents.errors import EnrolmentError
from device_agents.execute import run_bundle
from device_agents.job.sandbox import probe
from device_agents.wire import RunSettings
from examples.models import MODELS
from tests.agents.test_sandbox import SHOWN, shell
from tests.compiler.runtime.drivers import build_stub
from tests.compiler.runtime.test_cuda import STUB

CPU = {
    "kind": "cpu",
    "name": "played",
    "version": "OpenCL 3.0",
    "driver": "3.1",
    "memory_bytes": 1 << 33,
    "unified": True,
    "capability": "",
    "extensions": "cl_khr_fp64",
}
GPU = {**CPU, "kind": "gpu", "name": "Mali-G610", "memory_bytes": 1 << 32}
ORIN = {**GPU, "name": "Orin", "version": "CUDA 12.2", "driver": "12.2", "capability": "sm_87", "extensions": ""}


def told(*rows: object) -> Callable[[str], str]:
    return lambda name: "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def test_every_target_of_an_engine_is_one_that_an_agent_may_offer() -> None:
    offered = {f"{target}/{one.name}" for one in ENGINES.values() for target in one.targets}
    there = {name for name in targets.names() if "/" in name}
    assert there <= offered
    assert {name.split("/")[1] for name in there} <= set(ENGINES)


def test_a_gpu_goes_before_what_plays_one() -> None:
    assert accelerator_of("opencl", told(CPU, GPU)).name == "Mali-G610"
    assert accelerator_of("opencl", told(CPU)).is_played


@pytest.mark.parametrize(
    "odd",
    ["", "not JSON", "[1]", {}, {**GPU, "kind": "toaster"}, {**GPU, "memory_bytes": 0}, {**GPU, "memory_bytes": "x"}],
)
def test_what_a_driver_says_wrongly_is_no_device(odd: object) -> None:
    assert accelerator_of("opencl", told(odd, CPU)).name == "played"
    with pytest.raises(EnrolmentError, match=r"OpenCL knows no device here.*pocl-opencl-icd"):
        accelerator_of("opencl", told(odd))


def test_facts_hold_nothing_that_a_terminal_would_act_on() -> None:
    facts = accelerator_of("opencl", told({**GPU, "name": "\x1b[31m" + 5000 * "x"})).facts()
    assert "\x1b" not in facts["accelerator"]
    assert len(facts["accelerator"]) <= 1000


def test_an_engine_that_nobody_knows_is_refused_with_those_there_are() -> None:
    with pytest.raises(EnrolmentError, match=r"^--engine vulkan: .*opencl, cuda$"):
        accelerator_of("vulkan", told(GPU))
    with pytest.raises(EnrolmentError, match=r"^--engine cuda: [^()]* GPU$"):
        accelerator_of("cuda", told())


def test_why_there_is_no_device_is_said() -> None:
    with pytest.raises(EnrolmentError, match=r"\(\\x1b\[31mcuInit answers 100\)"):
        accelerator_of("cuda", told({"none": "\x1b[31mcuInit answers 100"}))


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("cuInit", "(cuInit answers 100: CUDA_ERROR_NO_DEVICE)"),
        ("cuDeviceGetCount", "knows no device here. Install"),
        ("", "/libcuda.so.1: file too short)"),
    ],
)
def test_a_driver_that_gives_no_device_is_heard(
    failing: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libcuda.so.1"
    library.touch()
    if failing:
        build_stub(STUB, library, "-I", str(RUNTIME / "devices"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("STUB_CUDA", failing)
    with pytest.raises(EnrolmentError, match=re.escape(said)):
        accelerator_of("cuda")


def describe(accelerator: Accelerator) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    found = describe_device(accelerator=accelerator).description
    return found.measurement_class, found.targets, found.features


def test_an_agent_for_an_engine_offers_nothing_but_the_engine() -> None:
    machine = describe_device().description
    played = describe(accelerator_of("opencl", told(CPU)))
    real = describe(accelerator_of("opencl", told(GPU)))
    assert played[0] == "emulated"
    assert real[0] == machine.measurement_class
    assert played[1] == real[1] == engine_targets(ENGINES["opencl"], machine.targets)
    assert all(target.endswith("/opencl") for target in real[1])
    assert set(real[2]) == {*machine.features, "opencl"}


def test_a_bundle_may_require_a_generation_of_gpus() -> None:
    assert accelerator_of("cuda", told(ORIN)).features == ("cuda", "sm_87")


def test_memory_of_its_own_is_what_counts() -> None:
    own = accelerator_of("opencl", told({**GPU, "unified": False}))
    assert describe_device(accelerator=own).description.memory_bytes == 1 << 32
    machine = describe_device().description
    assert (
        describe_device(accelerator=accelerator_of("opencl", told(GPU))).description.memory_bytes
        == machine.memory_bytes
    )


def test_jobs_of_an_engine_open_its_nodes_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSTICL_ENABLE", "panfrost")
    monkeypatch.setenv("RUSTICL_DEBUG", "all")
    folder = tmp_path / "job"
    (folder / "out").mkdir(parents=True)
    sandbox = probe(with_cgroup=False, readable_paths=SHOWN, nodes=("/dev/null",))
    assert sandbox.level == 1, "there is no list of system calls"
    assert sandbox.facts["no_network"]
    assert sandbox.facts["empty_root"] or SHOWN
    script = (
        "test -e /dev/zero || echo no other >&2; echo x > /dev/null && echo wrote >&2; "
        "echo x > /tmp/y && echo kept >&2; echo $POCL_CACHE_DIR $RUSTICL_ENABLE$RUSTICL_DEBUG >&2"
    )
    _, words, _ = shell(folder, script, sandbox=sandbox)
    assert words == ["no other", "wrote", "kept", "/tmp/pocl panfrost"]
    _, words, _ = shell(folder, f"{script}; echo $HOME >&2", sandbox=replace(sandbox, nodes=(), drives=False))
    assert words[-1] == "/nonexistent"
    assert not {"wrote", "kept"} & set(words)


@pytest.mark.xdist_group("opencl")
def test_a_step_trains_through_the_driver_of_this_machine(tmp_path: Path) -> None:
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "sgd", "learning_rate": 0.01}})
    settings = BuildSettings(SparsePlan.parse("full"), spec, targets.load("x86-64-v3/opencl"))
    bundle = tmp_path / "mlp.pfb"
    bundle.write_bytes(compile_training(MODELS["mlp"](), settings).data)
    report = run_bundle(bundle, RunSettings("profile", steps=2, warmup=0)).report
    assert report.outcome.state == "succeeded", report.outcome
    assert report.measurement_class == "emulated"
    assert report.verdict is not None
    assert report.verdict.kind == "function"
    assert report.environment["engine"] == "opencl"
    assert "(cpu)" in report.environment["accelerator"]
    assert report.isolation_level == 1
    assert report.kernels


def test_without_the_engine_a_bundle_for_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "sgd", "learning_rate": 0.01}})
    settings = BuildSettings(SparsePlan.parse("full"), spec, targets.load("x86-64-v3/opencl"))
    bundle = tmp_path / "mlp.pfb"
    bundle.write_bytes(compile_training(MODELS["mlp"](), settings).data)
    monkeypatch.setattr("device_agents.devices.accelerator._ask_drivers", lambda name: "")
    outcome = run_bundle(bundle, RunSettings("profile", steps=2, warmup=0)).report.outcome
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "user", "bundle.engine")
    assert outcome.message.startswith("OpenCL knows no device here")
