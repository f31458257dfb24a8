"""How the runtime uses the machine: cores, denormals, huge pages, and weights that many threads load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler.codegen.linking import link
from compiler.codegen.linking.toolchain import RUNTIME
from compiler.graph import TensorType
from compiler.program.program import BinaryImage, Placement, StateTensor, ViewOrder
from compiler.targets import load_cpu
from compiler.values import Value
from tests.compiler import tiny_images
from tests.compiler.step_process import (
    QEMU,
    Data,
    classifier_state,
    refused,
    run,
    write_weights,
)
from tests.kernel_harness.machine import runs
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("runtime")
ALLOWED = sorted(os.sched_getaffinity(0))
THREADS = 8


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_images.build(tiny_images.classifier(threads=THREADS), tmp_path_factory.mktemp("machine") / "step")


# ------------------------------------------------------------------------------------------------------------- tiles


def test_a_step_asks_for_tile_registers_where_a_kernel_uses_them(
    binary: Path, weights: Path, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = link.LINKERS["cpu"]
    kernel = "const int pf_uses_tiles = 1;\n"
    monkeypatch.setattr(
        link, "LINKERS", {"cpu": lambda sources, *others: linked({**sources, "kernel": kernel}, *others)}
    )
    using = tiny_images.build(tiny_images.classifier(threads=THREADS), tmp_path / "step")
    arguments = ("train", "--weights", weights, *data.arguments, "--steps", 1, "--threads", 1)
    done = run(using, *arguments)
    if runs(load_cpu("x86-64-v4-amx")):
        assert done.losses == run(binary, *arguments).losses
        return
    assert refused(done) == (4, "limits", "limits.tiles")
    assert "build for x86-64-v4-bf16" in done.one("error")["message"]
    assert run(binary, *arguments).losses, "no other step asks"


# ------------------------------------------------------------------------------------------------------------- cores


@pytest.fixture(scope="module")
def choose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints what `pf_cores_choose` answers."""
    program = tmp_path_factory.mktemp("cores") / "choose"
    sources = [Path(__file__).parent / "cores.c", RUNTIME / "cores.c", RUNTIME / "failure.c"]
    command = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-I", str(RUNTIME)]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True, capture_output=True)
    return program


def chosen(program: Path, system: Path, pin: str = "auto", threads: int = 0, spare: str = "no") -> list[int]:
    arguments = [str(program), str(system), pin, str(threads), str(THREADS), spare]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def machine(folder: Path, figures: Mapping[int, int], name: str = "cpu_capacity") -> Path:
    """A folder as Linux fills /sys/devices/system/cpu."""
    for core, figure in figures.items():
        file = folder / f"cpu{core}" / name
        file.parent.mkdir(parents=True)
        file.write_text(f"{figure}\n")
    return folder


@pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_threads_keep_to_the_fastest_cores(choose: Path, tmp_path: Path, name: str) -> None:
    slow, *fast = ALLOWED
    system = machine(tmp_path / "cpu", {slow: 446, **dict.fromkeys(fast, 1024)}, name)
    assert chosen(choose, system, threads=1) == [1, *fast]
    assert chosen(choose, system, threads=len(ALLOWED)) == [len(ALLOWED)], "all cores are needed: nothing to choose"
    assert chosen(choose, system, "off", threads=1) == [1]


def test_equal_or_undescribed_cores_are_left_to_the_system(choose: Path, tmp_path: Path) -> None:
    alike = machine(tmp_path / "cpu", dict.fromkeys(ALLOWED, 1024))
    assert chosen(choose, alike, threads=1) == [1]
    assert chosen(choose, tmp_path / "nowhere", threads=1) == [1]


def test_no_more_threads_than_cores_unless_asked_for(choose: Path, tmp_path: Path) -> None:
    assert chosen(choose, tmp_path) == [min(THREADS, len(ALLOWED))]
    assert chosen(choose, tmp_path, threads=THREADS) == [THREADS]
    assert chosen(choose, tmp_path, spare="spare") == [max(1, min(THREADS, len(ALLOWED) - 1))]
    assert chosen(choose, tmp_path, threads=1, spare="spare") == [1]


def cores_of_threads(pid: int) -> set[str]:
    status = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {line.split(":")[1].strip() for text in status for line in text.splitlines() if "Cpus_allowed_list" in line}


def test_a_list_pins_each_thread_to_its_core(binary: Path, weights: Path, data: Data) -> None:
    cores = ALLOWED[::-1][:2]
    command = [
        binary,
        "train",
        "--weights",
        weights,
        *data.arguments,
        "--steps",
        "1000000000",
        "--pin",
        ",".join(map(str, cores)),
        "--threads",
        str(len(cores)),
    ]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        start = json.loads(process.stdout.readline())
        try:  # a thread settles when it first runs
            until(lambda: cores_of_threads(process.pid) == set(map(str, cores)))
        finally:
            process.kill()
    assert start["pinned_cores"] == cores


@pytest.mark.parametrize("pin", ["", "fast", "0-", "-1", "3-2", "0,0", "0;1", " 0", "99999", str(max(ALLOWED) + 1)])
def test_a_bad_list_is_told(binary: Path, weights: Path, data: Data, pin: str) -> None:
    done = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1, "--pin", pin, "--threads", 1)
    assert refused(done) == (2, "user", "user.usage")


def test_a_list_with_fewer_cores_than_threads_is_told(binary: Path, weights: Path, data: Data) -> None:
    only = ("--pin", ALLOWED[0])
    done = run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1, *only, "--threads", 2)
    assert refused(done) == (2, "user", "user.usage")
    assert run(binary, "train", "--weights", weights, *data.arguments, "--steps", 1, *only).one("start")["threads"] == 1


def test_spare_core_takes_no_value(binary: Path, weights: Path, data: Data) -> None:
    done = run(binary, "train", "--spare-core", "--weights", weights, *data.arguments, "--steps", 1)
    assert done.one("start")["threads"] == max(1, min(THREADS, len(ALLOWED) - 1))


def test_a_profile_tells_what_the_runtime_costs(binary: Path, weights: Path) -> None:
    """Of the classifier's six kernels two have a parallel loop."""
    events = {
        threads: run(binary, "profile", "--weights", weights, "--steps", 3, "--threads", threads).one("overhead")
        for threads in (1, 2)
    }
    assert [events[threads]["launches"] for threads in (1, 2)] == [0, 2]
    for event in events.values():
        assert event["calls"] == 6
        assert event["call_us"] > 0
        assert event["launch_us"] >= 0
        assert 0 < event["share"] < 1


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize(("target", "runner"), [("x86-64-v3", ()), ("raspberry-pi-4", QEMU)], ids=["x86", "aarch64"])
def test_denormals_are_flushed_in_every_thread(
    tmp_path: Path, data: Data, target: str, runner: tuple[str, ...]
) -> None:
    """With a learning rate of zero nothing but the flush changes a weight."""
    step = tiny_images.build(tiny_images.classifier(), tmp_path / "step", target)
    state = classifier_state()
    state["w"][0] = np.float32(1e-40)
    state["w"][1] = np.finfo(np.float32).tiny
    start, saved = write_weights(tmp_path / "w.safetensors", state), tmp_path / "saved.safetensors"
    run(
        step,
        "train",
        "--weights",
        start,
        *data.arguments,
        "--steps",
        1,
        "--learning-rate",
        0,
        "--save",
        saved,
        runner=runner,
    )
    after = load_file(saved)["w"]
    assert (after[0] == 0).all()
    np.testing.assert_array_equal(after[1:], state["w"][1:])


def test_memory_lies_in_huge_pages(tmp_path: Path, data: Data) -> None:
    spare = np.ones(8 << 20, "f4")
    weights = write_weights(tmp_path / "w.safetensors", {**classifier_state(), "constant.spare": spare})
    step = tiny_images.build(tiny_images.classifier(spare_elements=spare.size), tmp_path / "step")
    done = run(step, "train", "--weights", weights, *data.arguments, "--steps", 1).one("done")
    switched_off = "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    least = 0 if switched_off else 2 << 20
    assert least <= done["huge_page_bytes"] <= done["peak_rss_bytes"]


# ----------------------------------------------------------------------------------------------------------- weights

LAYOUTS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "dense": ((700, 300), (1, 0)),
    "convolution": ((37, 21, 3, 3), (2, 3, 1, 0)),
    "depth-wise": ((1, 50, 1, 3), (1, 3, 2, 0)),
    "long rows": ((3, 2, 90_000), (2, 1, 0)),
    "whole": ((500, 400), (0, 1)),
    "one element": ((1, 1), (1, 0)),
    "dense, chosen": ((700, 300), (1, 0)),
    "convolution, chosen": ((37, 21, 3, 3), (2, 3, 1, 0)),
    "long rows, chosen": ((3, 2, 90_000), (2, 1, 0)),
}


ORDERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "dense": ((0, 1),),
    "convolution": ((1, 1), (3, 1)),
    "long rows": ((0, 2),),
}
"""View axes that are kept in another order: the first of them, and how many are one axis."""


def ordered(state: StateTensor) -> StateTensor:
    """The same tensor with channels in a random order along some of its axes."""
    random = np.random.default_rng(7)
    extents = {axis: int(np.prod(state.view_shape[axis : axis + count])) for axis, count in ORDERS[state.name]}
    orders = (
        ViewOrder(axis, count, tuple(map(int, random.permutation(extents[axis])))) for axis, count in ORDERS[state.name]
    )
    return replace(state, name=f"{state.name}, chosen", orders=tuple(orders))


def with_parameters(layouts: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> BinaryImage:
    """The classifier with more parameters, which no kernel reads."""
    image = tiny_images.classifier()
    plan = image.plan
    states, places, end = list(image.state), dict(plan.placements), plan.weights_bytes
    for number, (name, (shape, perm)) in enumerate(layouts.items(), start=200):
        inside = TensorType("f32", tuple(shape[axis] for axis in perm))
        plain = StateTensor(Value(number), name.removesuffix(", chosen"), inside, "parameter", shape, shape, perm)
        states.append(ordered(plain) if name.endswith(", chosen") else plain)
        size_bytes = -(-inside.size_bytes // 64) * 64
        places["train", Value(number)] = places["forward", Value(number)] = Placement("weights", end, size_bytes)
        end += size_bytes
    return replace(image, state=tuple(states), plan=replace(plan, placements=places, weights_bytes=end))


@pytest.mark.parametrize(("target", "runner"), [("x86-64-v3", ()), ("raspberry-pi-4", QEMU)], ids=["x86", "aarch64"])
def test_weights_of_every_layout_come_back_bit_for_bit(tmp_path: Path, target: str, runner: tuple[str, ...]) -> None:
    """Loading goes by threads, chunks and memory's order; saving walks one by one in the file's: they must agree."""
    step = tiny_images.build(with_parameters(LAYOUTS), tmp_path / "step", target)
    random = np.random.default_rng(0)
    extra = {name: random.normal(size=shape).astype("f4") for name, (shape, _) in LAYOUTS.items()}
    start = write_weights(tmp_path / "w.safetensors", {**classifier_state(), **extra})
    out = tmp_path / "out.safetensors"
    assert run(step, "export", "--weights", start, "--out", out, runner=runner).code == 0
    exported = load_file(out)
    for name, array in extra.items():
        np.testing.assert_array_equal(exported[name], array, err_msg=name)


def test_the_first_bad_tensor_is_named_whatever_the_threads_do(tmp_path: Path) -> None:
    step = tiny_images.build(with_parameters(LAYOUTS), tmp_path / "step")
    extra = {name: np.ones(shape, "f4") for name, (shape, _) in LAYOUTS.items()}
    for name in ("dense", "long rows", "whole"):
        extra[name].flat[-1] = np.inf
    start = write_weights(tmp_path / "w.safetensors", {**classifier_state(), **extra})
    done = run(step, "export", "--weights", start, "--out", tmp_path / "out.safetensors")
    assert refused(done) == (3, "weights", "weights.not_finite")
    assert "'dense'" in done.one("error")["message"]
