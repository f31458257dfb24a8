"""The runtime with OpenCL: what it says where the driver is missing, old or fails (a stub), and a run on PoCL."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS
from tests.compiler.agreement.step_binary import StepBinary

pytestmark = pytest.mark.xdist_group("opencl")
STUB = Path(__file__).with_name("stub_opencl.c")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> StepBinary:
    spec = TrainingSpec.parse({"batch": 4, "optimizer": {"kind": "sgd", "learning_rate": 0.01}})
    settings = BuildSettings(SparsePlan.parse({"preset": "full"}), spec, load("x86-64-v3/opencl"))
    return StepBinary.unpack(compile_training(MODELS["mlp"](), settings), tmp_path_factory.mktemp("opencl"))


def stub(folder: Path, *options: str) -> Path:
    """The folder with the stub as its driver."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.31", "-shared", "-fPIC", "-O1",
               "-Wall", "-Wextra", "-Werror", *options, str(STUB), "-o", str(folder / "libOpenCL.so.1")]  # fmt: skip
    subprocess.run(command, check=True, env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder)})
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub(tmp_path_factory.mktemp("driver"))


def run(binary: StepBinary, drivers: Path, wrong: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Exit code and events of a short profile with the drivers of a folder before the system's."""
    command = [str(binary.folder / "bin/step"), "profile", "--weights", str(binary.weights), "--steps", "2"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers), "STUB_OPENCL": wrong}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


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
    assert "has no clCreateKernel: it is older than OpenCL 1.2" in events[-1]["message"]


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
