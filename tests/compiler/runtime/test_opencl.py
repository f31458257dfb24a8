"""The runtime with OpenCL: what it says where the driver is missing, old or fails (a stub), and a run on PoCL."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compiler.api import BuildSettings, compile_training, make_image
from compiler.codegen.linking.tables import table_source
from compiler.pipeline import compile_step
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.runtime.drivers import build_stub, logged, mapped_bytes, operand_bytes, run_with
from tests.compiler.step_process import AARCH64_GLIBC, QEMU

pytestmark = pytest.mark.xdist_group("opencl")
STUB = Path(__file__).with_name("stub_opencl.c")
BOARDS = ("aarch64/opencl", "snapdragon-8-gen-2/opencl")


def settings_of(target: str) -> BuildSettings:
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "sgd", "learning_rate": 0.01}})
    return BuildSettings(SparsePlan.parse({"preset": "full"}), spec, load(target))


@pytest.fixture(scope="module")
def settings() -> BuildSettings:
    return settings_of("x86-64-v3/opencl")


@pytest.fixture(scope="module")
def built(settings: BuildSettings, tmp_path_factory: pytest.TempPathFactory) -> StepBinary:
    return StepBinary.unpack(compile_training(MODELS["mlp"](), settings), tmp_path_factory.mktemp("opencl"))


@pytest.fixture(scope="module")
def tables(settings: BuildSettings) -> str:
    step = compile_step(MODELS["mlp"](), settings)
    return table_source(make_image(step, {}, settings.target.name), step.kernels)


def stub(folder: Path, *options: str) -> Path:
    """The folder with the stub as its driver."""
    return build_stub(STUB, folder / "libOpenCL.so.1", *options)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub(tmp_path_factory.mktemp("driver"))


def run(binary: StepBinary, drivers: Path, wrong: str = "", **environment: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and events of a short profile with this driver, of which something is wrong."""
    return run_with(drivers, binary, "profile", "--steps", 2, STUB_OPENCL=wrong, **environment)


def test_the_program_asks_for_an_old_glibc_and_no_driver(built: StepBinary) -> None:
    elf = (built.folder / "bin/step").read_bytes()
    offset, size, count = (*struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54))
    kinds = [struct.unpack_from("<I", elf, offset + i * size)[0] for i in range(count)]
    assert 3 in kinds, "an interpreter: the system's C library, which can load drivers"
    versions = {word.decode() for word in elf.split(b"\0") if word.startswith(b"GLIBC_2.")}
    assert versions
    assert max(tuple(map(int, one.removeprefix("GLIBC_").split("."))) for one in versions) <= (2, 31)
    assert b"libOpenCL.so.1" in elf
    needed = subprocess.run(
        ["readelf", "-d", str(built.folder / "bin/step")], capture_output=True, text=True, check=True
    ).stdout
    assert "libOpenCL" not in needed, "loaded when it runs, not before"


def test_with_a_driver_a_run_names_the_device(built: StepBinary, driver: Path) -> None:
    code, events = run(built, driver)
    assert code == 0
    assert events[0]["event"] == "start"
    assert events[0]["device"] == "GPU stub device, OpenCL 1.2 stub, driver 7.1"
    assert [event["event"] for event in events].count("step") == 2


def test_all_memory_is_one_buffer_of_the_planned_bytes(
    built: StepBinary, driver: Path, tables: str, tmp_path: Path
) -> None:
    log, operands = tmp_path / "log", operand_bytes(tables)
    code, _ = run(built, driver, STUB_LOG=str(log))
    assert code == 0
    assert logged(log, "buffer") == [str(-(-mapped_bytes(built) // 4) * 4)], "one, rounded up to a whole word"
    offsets = {int(offset) for offset in logged(log, "argument")}
    assert offsets
    assert offsets <= operands.keys(), "every argument is an operand of the plan"
    outside = {offset for offset in offsets if offset + operands[offset] > mapped_bytes(built)}
    assert outside == set()


@pytest.mark.parametrize("target", BOARDS)
def test_a_boards_program_loads_a_driver_of_the_board(target: str, tmp_path: Path) -> None:
    """Emulated: AArch64 code under qemu, with the C library of a board's system and the stub as its driver."""
    bundle = compile_training(MODELS["mlp"](), settings_of(target))
    built = StepBinary.unpack(bundle, tmp_path / "bundle", (*QEMU, "-L", str(AARCH64_GLIBC)))
    code, events = run(built, tmp_path)
    assert (code, events[-1]["code"]) == (4, "limits.driver")
    build_stub(STUB, tmp_path / "libOpenCL.so.1", triple=load(target).library_triple)
    code, events = run(built, tmp_path)
    assert code == 0
    assert events[0]["device"] == "GPU stub device, OpenCL 1.2 stub, driver 7.1"
    assert [event["event"] for event in events].count("step") == 2


def test_without_a_driver_the_next_step_is_told(built: StepBinary, tmp_path: Path) -> None:
    (tmp_path / "libOpenCL.so.1").write_bytes(b"no library")
    (tmp_path / "libOpenCL.so").write_bytes(b"no library")
    code, events = run(built, tmp_path)
    assert (code, events[-1]["code"]) == (4, "limits.driver")
    assert "there is no OpenCL driver" in events[-1]["message"]
    assert "install the one of this board's GPU" in events[-1]["message"]


def test_an_old_driver_is_named_so(built: StepBinary, tmp_path: Path) -> None:
    code, events = run(built, stub(tmp_path, "-DSTUB_IS_OLD"))
    assert (code, events[-1]["code"]) == (4, "limits.driver")
    assert " clCreateKernel: " in events[-1]["message"]
    assert events[-1]["message"].endswith(" OpenCL 1.2")


@pytest.mark.parametrize(
    ("wrong", "exit_code", "code", "said"),
    [
        ("clGetPlatformIDs", 4, "limits.driver", "OpenCL knows no device here"),
        ("clGetDeviceIDs", 4, "limits.driver", "OpenCL knows no device here"),
        ("clCreateContext", 4, "limits.memory", "no room for this step (clCreateContext answered -5)"),
        ("allocation", 4, "limits.memory", "gives at most 64 at once"),
        ("clCreateBuffer", 4, "limits.memory", "no room for this step (clCreateBuffer answered -5)"),
        ("clBuildProgram", 5, "internal.device", "does not compile a kernel (-11): line 3: odd word"),
        ("items", 4, "limits.device", "in groups of at most 1 items"),
        ("shared", 4, "limits.device", "with 16 shared bytes; this build needs"),
        ("clSetKernelArg", 5, "internal.device", "answered -51 to clSetKernelArg"),
        ("clEnqueueMapBuffer", 5, "internal.device", "answered -12 to clEnqueueMapBuffer"),
        ("clEnqueueUnmapMemObject", 4, "limits.memory", "(clEnqueueUnmapMemObject answered -5)"),
        ("clEnqueueNDRangeKernel", 5, "internal.device", "answered -54 to clEnqueueNDRangeKernel"),
        ("clEnqueueReadBuffer", 5, "internal.device", "answered -36 to clEnqueueReadBuffer"),
        ("clFinish", 5, "internal.device", "answered -36 to clFinish"),
    ],
)
def test_what_the_driver_refuses_is_told(
    built: StepBinary, driver: Path, wrong: str, exit_code: int, code: str, said: str
) -> None:
    found, events = run(built, driver, wrong)
    assert (found, events[-1]["event"], events[-1]["code"]) == (exit_code, "error", code)
    assert said in events[-1]["message"]
