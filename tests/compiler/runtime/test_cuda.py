"""The runtime with CUDA: memory, graphs, and what it says where the driver is missing, old or fails (a stub)."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler.api import BuildSettings, initial_checkpoint, make_image
from compiler.bundle.content import chunks_of
from compiler.codegen.artefacts import Artefact, CompiledKernel
from compiler.codegen.linking.link import link_binary
from compiler.codegen.linking.tables import table_source
from compiler.pipeline import compile_step
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import GridTarget, load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.runtime.drivers import build_stub, logged, mapped_bytes, operand_bytes, run_with

pytestmark = pytest.mark.xdist_group("opencl")
STUB = Path(__file__).with_name("stub_cuda.c")
KINDS = ("discrete", "integrated", "coherent")
"""Memory of its own; the host's, handed over and back; the host's, at once."""
STEPS, WARMUP = 2, 3
"""Of a profile, which then times as many steps kernel by kernel."""


SAMPLES = 8
"""Two batches."""


def as_cuda(kernel: CompiledKernel) -> CompiledKernel:
    """The kernel in CUDA's forms, as far as the stub reads them: the functions and how many operands each takes."""
    functions = "".join(f"{launch.entry} {len(launch.operands)}\n" for launch in kernel.launches).encode()
    forms = (Artefact("cubin", b"\x7fELF stub\n" + functions), Artefact("ptx", b"stub ptx\n" + functions))
    return replace(kernel, artefacts=forms)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepBinary, str]:
    """A step with the launches of OpenCL's kernels, and the source of its tables."""
    like = load("x86-64-v3/opencl")
    assert isinstance(like, GridTarget)
    target = replace(like, kind="cuda", name="x86-64-v3/cuda")
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "adam", "learning_rate": 0.01}})
    step = compile_step(MODELS["mlp"](), BuildSettings(SparsePlan.parse({"preset": "full"}), spec, like))
    kernels = {key: as_cuda(kernel) for key, kernel in step.kernels.items()}
    image, folder = make_image(step, {}, target.name), tmp_path_factory.mktemp("cuda")
    (folder / "bin").mkdir()
    (folder / "bin/step").write_bytes(link_binary(image, kernels, target, work_dir=folder))
    (folder / "bin/step").chmod(0o755)
    (folder / "weights.safetensors").write_bytes(b"".join(chunks_of(initial_checkpoint(step))))
    return StepBinary(folder), table_source(image, kernels)


@pytest.fixture(scope="module")
def built(made: tuple[StepBinary, str]) -> StepBinary:
    return made[0]


def stub(folder: Path, *options: str) -> Path:
    """The folder with the stub as its driver."""
    return build_stub(STUB, folder / "libcuda.so.1", *options)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub(tmp_path_factory.mktemp("driver"))


def run(
    binary: StepBinary, drivers: Path, wrong: str = "", gpu: str = "discrete", **environment: str
) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and events of a short profile with this driver, of which something is wrong."""
    settings = {"STUB_CUDA": wrong, "STUB_CUDA_GPU": gpu, **environment}
    return run_with(drivers, binary, "profile", "--steps", STEPS, "--warmup", WARMUP, **settings)


def data(binary: StepBinary) -> list[object]:
    """The options of zeros for every input and the labels."""
    (info,) = binary.run("info")
    (own,), (labels,) = info["inputs"], info["labels"]
    feed = np.zeros((SAMPLES, *own["shape"][1:]), np.float32)
    return binary.write_data({own["name"]: feed}, np.zeros((SAMPLES, *labels["shape"][1:]), np.int64))


def test_the_program_needs_no_driver_to_start(built: StepBinary) -> None:
    needed = subprocess.run(["readelf", "-d", built.folder / "bin/step"], capture_output=True, text=True, check=True)
    assert "libcuda" not in needed.stdout, "loaded when it runs, not before"
    assert mapped_bytes(built) > 0


@pytest.mark.parametrize("gpu", KINDS)
def test_with_a_driver_a_run_names_the_gpu(built: StepBinary, driver: Path, gpu: str) -> None:
    code, events = run(built, driver, gpu=gpu)
    assert code == 0
    assert events[0]["event"] == "start"
    assert events[0]["device"] == "GPU stub, compute capability 8.7, driver CUDA 12.2"
    assert [event["event"] for event in events].count("step") == STEPS
    assert events[-2]["event"] == "overhead"
    assert events[-2]["call_us"] > 0


@pytest.mark.parametrize(("gpu", "call"), [("discrete", "memory"), ("integrated", "managed"), ("coherent", "managed")])
def test_all_memory_is_one_allocation_of_the_planned_bytes(
    made: tuple[StepBinary, str], driver: Path, tmp_path: Path, gpu: str, call: str
) -> None:
    built, tables = made
    log, operands, planned = tmp_path / "log", operand_bytes(tables), mapped_bytes(built)
    assert run(built, driver, gpu=gpu, STUB_LOG=str(log))[0] == 0
    assert logged(log, "memory") + logged(log, "managed") == logged(log, call) == [str(planned)]
    offsets = {int(offset) for offset in logged(log, "argument")}
    assert offsets
    assert offsets <= operands.keys(), "every argument is an operand of the plan"
    assert {offset for offset in offsets if offset + operands[offset] > planned} == set()


@pytest.mark.parametrize("gpu", KINDS)
def test_a_step_is_one_graph_of_its_launches(
    made: tuple[StepBinary, str], driver: Path, tmp_path: Path, gpu: str
) -> None:
    """Captured on the first run of a program, launched on each; kernels are started singly only to be timed."""
    built, _ = made
    log = tmp_path / "log"
    assert run(built, driver, gpu=gpu, STUB_LOG=str(log))[0] == 0
    captured, graphs = logged(log, "captured"), logged(log, "graph")
    assert captured
    assert graphs == [str(len(captured))] * (WARMUP + STEPS)
    assert [name for name in logged(log, "launched") if name != "pf_nothing"] == captured * STEPS


def test_buffers_of_a_step_are_pinned_once_and_those_of_state_let_go(
    built: StepBinary, driver: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert run(built, driver, STUB_LOG=str(log))[0] == 0
    (info,) = built.run("info")
    pinned = list(map(int, logged(log, "pinned")))
    state_bytes = pinned[0]
    assert state_bytes >= info["weights_bytes"] + info["optimizer_bytes"], "the weights are loaded first"
    tensors = [*info["inputs"], *info["labels"]]
    sizes = {"f32": 4, "i64": 8, "i32": 4, "bool": 1}
    assert sorted(pinned[1:]) == sorted(sizes[own["dtype"]] * int(np.prod(own["shape"])) for own in tensors)
    lines = log.read_text().splitlines()
    assert lines[lines.index(f"pinned {state_bytes}") + 1] == "unpinned"


@pytest.mark.parametrize("gpu", ["integrated", "coherent"])
def test_unified_memory_is_handed_over_where_it_must_be_and_not_copied(
    built: StepBinary, driver: Path, tmp_path: Path, gpu: str
) -> None:
    log = tmp_path / "log"
    assert run(built, driver, gpu=gpu, STUB_LOG=str(log))[0] == 0
    assert logged(log, "pinned") == []
    handed = logged(log, "to")
    assert handed[:4] == (["the host", "the GPU"] * 2 if gpu == "integrated" else [])
    assert handed[::2] == ["the host"] * (len(handed) // 2)
    assert handed[1::2] == ["the GPU"] * (len(handed) // 2)


@pytest.mark.parametrize("gpu", KINDS)
def test_what_is_loaded_is_saved(built: StepBinary, driver: Path, tmp_path: Path, gpu: str) -> None:
    """Through the device's memory, in which no kernel of the stub changes anything."""
    saved = tmp_path / "saved.safetensors"
    code, _ = run_with(driver, built, "train", "--steps", 1, "--save", saved, *data(built), STUB_CUDA_GPU=gpu)
    assert code == 0
    before, after = load_file(built.weights), load_file(saved)
    assert set(before) <= set(after)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.parametrize("gpu", KINDS)
def test_training_and_inference_have_a_graph_each(built: StepBinary, driver: Path, tmp_path: Path, gpu: str) -> None:
    log = tmp_path / "log"
    settings = {"STUB_CUDA_GPU": gpu, "STUB_LOG": str(log)}
    inputs = data(built)[:2]
    assert run_with(driver, built, "infer", "--out", tmp_path / "out.npy", *inputs, **settings)[0] == 0
    forward = logged(log, "graph")
    assert forward == [str(len(logged(log, "captured")))] * 2, "of two batches"
    assert np.load(tmp_path / "out.npy").shape[0] == SAMPLES
    code, _ = run_with(driver, built, "train", "--steps", 2, "--validation", 0.5, *data(built), **settings)
    assert code == 0
    assert len(set(logged(log, "graph"))) == 2, "and one of a step"
    assert logged(log, "launched") == []


def test_a_gpu_that_does_not_take_the_code_is_given_ptx(built: StepBinary, driver: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, _ = run(built, driver, "cubin", STUB_LOG=str(log))
    assert code == 0
    assert "ptx" in log.read_text().splitlines()


def test_without_a_driver_the_next_step_is_told(built: StepBinary, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    code, events = run(built, tmp_path)
    assert (code, events[-1]["code"]) == (4, "limits.driver")
    assert "there is no CUDA driver" in events[-1]["message"]
    assert "libcuda.so.1" in events[-1]["message"]
    assert "install NVIDIA's driver" in events[-1]["message"]


def test_an_old_driver_is_named_so(built: StepBinary, tmp_path: Path) -> None:
    code, events = run(built, stub(tmp_path, "-DSTUB_IS_OLD"))
    assert (code, events[-1]["code"]) == (4, "limits.driver")
    assert " cuGraphInstantiateWithFlags: " in events[-1]["message"]
    assert events[-1]["message"].endswith(" CUDA 11.4")


@pytest.mark.parametrize(
    ("wrong", "exit_code", "code", "message"),
    [
        ("cuInit", 4, "limits.driver", "CUDA knows no GPU here (CUDA_ERROR_NO_DEVICE)"),
        ("cuDeviceGetCount", 4, "limits.driver", "CUDA knows no GPU here (it counts none)"),
        ("cuDevicePrimaryCtxRetain", 4, "limits.memory", "(cuDevicePrimaryCtxRetain answered CUDA_ERROR_OUT"),
        ("cuStreamCreate", 5, "internal.device", "answered CUDA_ERROR_INVALID_VALUE (1) to cuStreamCreate"),
        ("memory", 4, "limits.memory", "driver CUDA 12.2 has 64; use a sparser plan"),
        ("cuMemAlloc_v2", 4, "limits.memory", "no room for this step (cuMemAlloc_v2 answered"),
        ("cuMemsetD8Async", 5, "internal.device", "(1) to cuMemsetD8Async"),
        (
            "code",
            4,
            "limits.device",
            "(code: CUDA_ERROR_NO_BINARY_FOR_GPU; PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION: line 3: odd word)",
        ),
        ("cuModuleLoadData", 4, "limits.memory", "(cuModuleLoadData answered CUDA_ERROR_OUT_OF_MEMORY)"),
        ("cuModuleGetFunction", 5, "internal.device", "answered an unknown error (500) to cuModuleGetFunction"),
        ("items", 4, "limits.device", "of at most 1 items"),
        ("shared", 4, "limits.device", "with 16 shared bytes; this build needs"),
        ("groups", 4, "limits.device", "in at most 0 groups"),
        ("cuMemHostAlloc", 4, "limits.memory", "(cuMemHostAlloc answered CUDA_ERROR_OUT_OF_MEMORY)"),
        ("cuMemcpyHtoDAsync_v2", 5, "internal.device", "(1) to cuMemcpyHtoDAsync_v2"),
        ("cuMemcpyDtoHAsync_v2", 5, "internal.device", "(1) to cuMemcpyDtoHAsync_v2"),
        ("cuMemFreeHost", 5, "internal.device", "(1) to cuMemFreeHost"),
        ("cuStreamBeginCapture_v2", 5, "internal.device", "(1) to cuStreamBeginCapture_v2"),
        ("cuLaunchKernel", 5, "internal.device", "answered CUDA_ERROR_LAUNCH_FAILED (719) to cuLaunchKernel"),
        ("cuStreamEndCapture", 5, "internal.device", "an unknown error (900) to cuStreamEndCapture"),
        ("cuGraphInstantiateWithFlags", 4, "limits.memory", "(cuGraphInstantiateWithFlags answered"),
        ("cuGraphLaunch", 5, "internal.device", "answered CUDA_ERROR_LAUNCH_FAILED (719) to cuGraphLaunch"),
        ("cuStreamSynchronize", 5, "internal.device", "answered CUDA_ERROR_LAUNCH_FAILED (719) to cuStreamSynchronize"),
    ],
)
def test_what_the_driver_refuses_is_told(
    built: StepBinary, driver: Path, wrong: str, exit_code: int, code: str, message: str
) -> None:
    status, events = run(built, driver, wrong)
    assert (status, events[-1]["event"], events[-1]["code"]) == (exit_code, "error", code)
    assert message in events[-1]["message"]


@pytest.mark.parametrize(
    ("wrong", "exit_code", "code", "said"),
    [
        ("cuMemAllocManaged", 4, "limits.memory", "(cuMemAllocManaged answered CUDA_ERROR_OUT_OF_MEMORY)"),
        ("cuStreamAttachMemAsync", 5, "internal.device", "(1) to cuStreamAttachMemAsync"),
    ],
)
def test_what_the_driver_of_an_integrated_gpu_refuses_is_told(
    built: StepBinary, driver: Path, wrong: str, exit_code: int, code: str, said: str
) -> None:
    found, events = run(built, driver, wrong, "integrated")
    assert (found, events[-1]["event"], events[-1]["code"]) == (exit_code, "error", code)
    assert said in events[-1]["message"]
