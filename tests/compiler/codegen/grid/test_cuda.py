"""CUDA text and code of grid kernels: heads, forms, sameness, what NVIDIA's compiler says; and what the shim sees."""

from __future__ import annotations

import locale
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tvm import tirx

from compiler.codegen.api import build_kernels
from compiler.codegen.artefacts import Launch
from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import emit_kernel
from compiler.codegen.grid import cuda, nvrtc
from compiler.codegen.grid.cubin import uses_of
from compiler.codegen.grid.cuda import compile_kernel, cuda_text
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.tir import tir
from compiler.errors import BuildError, InternalError
from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Ref, Unary
from compiler.kernels.spec import GatherSpec, KernelSpec, MapSpec, MatmulSpec, signature
from compiler.targets import GridTarget, load
from tests.compiler.codegen.reference import identity
from tests.kernel_harness import cuda as cuda_harness
from tests.kernel_harness.cuda import CudaKernel
from tests.kernel_harness.launch import build_in_process, build_object

ORIN, HOPPER = "jetson-orin-nano/cuda", "x86-64-v3/cuda"
SPEC = GatherSpec("scatter_add", 1, 20, 5, 100, dtype="f32")
"""Operands: index, d_y, table, workspace. Clearing reads none, sorting no gradient, summing no index."""
_INNER = Unary("tanh", Unary("erf", Unary("sin", Ref(0))))
FUNCTIONS = MapSpec((9,), (identity(9),), (identity(9),), (Unary("exp", Binary("pow", _INNER, Ref(0))),))
ONES = MapSpec((256,), (), (identity(256),), (Const(1.0),))


def target(name: str = ORIN) -> GridTarget:
    return cast(GridTarget, load(name))


def text_of(spec: KernelSpec) -> str:
    return cuda_text(cast(Any, emit_kernel(spec, target(), 1, DEFAULT)), "pf_text", capability="sm_87")[0]


# --------------------------------------------------------------------------------------------------------- text, forms


def test_a_launch_takes_the_operands_that_it_uses() -> None:
    kernel, text = build_object(SPEC, target()), text_of(SPEC)
    assert [launch.operands for launch in kernel.launches] == [(3,), (0, 3), (1, 2, 3)]
    heads = [line for line in text.splitlines() if line.startswith('extern "C"')]
    words = ("int64_t* p_in0", "float* p_in1", "float* p_out0", "float* p_ws")
    for number, (head, launch) in enumerate(zip(heads, kernel.launches, strict=True)):
        taken = ", ".join(words[operand] for operand in launch.operands)
        bounds = f"__launch_bounds__({launch.items})"
        assert head == f'extern "C" __global__ void {bounds} pf_text_{number}({taken}) {{'


def test_the_text_needs_no_header_and_promises_nothing_of_pointers() -> None:
    texts: tuple[str, ...] = (text_of(SPEC), text_of(FUNCTIONS))
    for text in texts:
        assert "#include" not in text
        assert "restrict" not in text
        assert "pf_float_of" not in text
        assert not any(line.strip().endswith("[1];") for line in text.splitlines())


@pytest.mark.parametrize(("name", "capability"), [(ORIN, 87), (HOPPER, 90)])
def test_code_is_for_one_generation_and_ptx_for_later_ones(name: str, capability: int) -> None:
    kernel = build_object(SPEC, target(name))
    cubin, ptx = kernel.artefacts
    assert (cubin.form, ptx.form) == ("cubin", "ptx")
    machine, flags = *struct.unpack_from("<H", cubin.content, 0x12), *struct.unpack_from("<I", cubin.content, 0x30)
    assert (cubin.content[:4], machine, flags & 0xFF) == (b"\x7fELF", 190, capability)
    words = ptx.content.decode()
    assert f".target sm_{capability}\n" in words
    assert ".version 8.2\n" in words, "what the driver of JetPack 6.0 (CUDA 12.2) reads"
    assert "\0" not in words
    for launch in kernel.launches:
        assert f".visible .entry {launch.entry}(" in words


def test_the_same_spec_gives_the_same_bytes_in_any_process() -> None:
    """Also in a worker, which loads less of TVM."""
    first = [build_in_process(one, target()) for one in (SPEC, FUNCTIONS)]
    built = build_kernels([SPEC, FUNCTIONS], target(), threads=1, cache_dir=None, jobs=1)
    assert [build_in_process(one, target()) for one in (SPEC, FUNCTIONS)] == first
    assert [built[signature(one)] for one in (SPEC, FUNCTIONS)] == first


@pytest.mark.parametrize(("items", "elements"), [(257, 1), (64, 12_289)])
def test_a_group_that_is_too_large_is_refused(items: int, elements: int) -> None:
    def write(here: Here) -> None:
        shared = here.shared(elements)
        here.block.store(shared, 0, tir.literal(1.0, "float32"))
        here.block.store(here.operands.outputs[0], here.item, tir.load(shared, 0))

    grid = Grid(ONES)
    grid.launch(1, items, write)
    with pytest.raises(InternalError, match=f"{items} items and {4 * elements} shared bytes are more than 256 and"):
        compile_kernel(grid, target(), symbol="pf_large", workspace_bytes=0)


# ---------------------------------------------------------------------------------------------------- NVIDIA's compiler


def test_the_compiler_is_of_the_oldest_driver_that_the_boards_have() -> None:
    assert nvrtc.version() == (12, 2)


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.library.cache_clear()
    for module in ("nvidia.missing", "missing.cuda_nvrtc"):
        monkeypatch.setattr(nvrtc, "_MODULE", module)
        with pytest.raises(BuildError, match="package nvidia-cuda-nvrtc-cu12") as caught:
            nvrtc.compile_text("", "sm_87", where="pf_none")
        assert "pip install -c constraints.txt '.[cuda]'" in caught.value.hint


def test_a_compiler_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_text("no library")
    nvrtc.library.cache_clear()
    monkeypatch.setattr(nvrtc, "_path", lambda: broken)
    with pytest.raises(BuildError, match="NVRTC cannot be loaded") as caught:
        nvrtc.compile_text("", "sm_87", where="pf_none")
    assert str(broken) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "capability", "words"),
    [('extern "C" __global__ void k() { missing(); }', "sm_87", "missing"), ("", "sm_1", "gpu-architecture")],
)
def test_what_the_compiler_refuses_it_says_why(text: str, capability: str, words: str) -> None:
    with pytest.raises(BuildError, match="NVRTC refuses the text of pf_bad") as caught:
        nvrtc.compile_text(text, capability, where="pf_bad")
    assert words in str(caught.value)


PLAIN = 'extern "C" __global__ void near(float* p) {}'
INDEXED = """
extern "C" __global__ void far(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i * n & 63] = p[i];
  p[n] = a[n & 63] + a[n / 2 & 63];
}"""
CROWDED = f"""
extern "C" __global__ void __launch_bounds__(1024) crowded(float* p, int n) {{
  {" ".join(f"float x{i} = p[{i}];" for i in range(120))}
  __syncthreads();
  {" ".join(f"p[{i} + n] = x{i};" for i in range(120))}
}}"""


@pytest.mark.parametrize("capability", ["sm_87", "sm_90"])
def test_what_registers_do_not_hold_is_seen_in_the_code(capability: str) -> None:
    """An array that is indexed as the program runs; and more values than a thousand items have registers for."""
    uses = uses_of(nvrtc.compile_text(PLAIN + INDEXED + CROWDED, capability, where="pf_far").cubin)
    assert {name: use.stack_bytes > 0 for name, use in uses.items()} == {"near": False, "far": True, "crowded": True}
    assert uses["far"].stack_bytes == 64 * 4
    assert uses["crowded"].registers == 64


def test_other_files_are_no_code() -> None:
    for content in (b"", b"\x7fELF\x01\x01 of 32 bits"):
        with pytest.raises(BuildError, match="no ELF file of 64 bits"):
            uses_of(content)


# ------------------------------------------------------------------------------------------------------------- the shim


def run_written(monkeypatch: pytest.MonkeyPatch, write: Callable[[Here], None], groups: int = 1) -> Array:
    """The 256 numbers that a launch of 64 items leaves, whose function a test wrote."""
    grid = Grid(ONES)
    grid.launch(groups, 64, write)
    monkeypatch.setattr(cuda_harness, "emit_kernel", lambda *_: grid)
    return CudaKernel(ONES, target()).run(initial=[np.zeros(256, np.float32)])[0]


def store_neighbour(here: Here, *, waits: bool) -> None:
    """Each item's number through shared memory to the item before it."""
    shared, block = here.shared(64), here.block
    block.store(shared, here.item, tirx.Cast("float32", here.item))
    if waits:
        here.barrier(block)
    next_one = tirx.truncmod(here.item + 1, tir.index(64))
    block.store(here.operands.outputs[0], here.item, tir.load(shared, next_one))


def test_items_meet_at_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    got = run_written(monkeypatch, lambda here: store_neighbour(here, waits=True))
    np.testing.assert_array_equal(got[:64], np.roll(np.arange(64), -1))


def test_a_missing_barrier_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="output 0 depends on the order"):
        run_written(monkeypatch, lambda here: store_neighbour(here, waits=False))


@pytest.mark.parametrize("left_out", range(3))
def test_each_barrier_of_a_product_is_missed(left_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_one(emitted: Grid, symbol: str, *, capability: str) -> tuple[str, tuple[Launch, ...]]:
        text, launches = cuda_text(emitted, symbol, capability=capability)
        parts = text.split("__syncthreads();")
        assert len(parts) == 4
        return "__syncthreads();".join(parts[: left_out + 1]) + "__syncthreads();".join(parts[left_out + 1 :]), launches

    monkeypatch.setattr(cuda, "cuda_text", without_one)
    spec, generator = MatmulSpec(1, 150, 140, 70, dtype="f32"), np.random.default_rng(0)
    kernel = CudaKernel(spec, target())
    with pytest.raises(AssertionError, match="output 0 depends on the order"):
        kernel.run(*(generator.normal(size=tensor.shape) for tensor in kernel.types.inputs))


def test_groups_that_write_the_same_place_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(here: Here) -> None:
        here.block.store(here.operands.outputs[0], here.item, tirx.Cast("float32", here.group))

    with pytest.raises(AssertionError, match="depends on the order"):
        run_written(monkeypatch, write, groups=2)


def test_a_barrier_that_some_items_do_not_come_by_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(here: Here) -> None:
        here.block.when(tirx.LT(here.item, tir.index(7)), lambda inner: here.barrier(inner))

    with pytest.raises(AssertionError, match="wait at a barrier that others do not come by"):
        run_written(monkeypatch, write)


def test_shared_memory_starts_as_anything_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(here: Here) -> None:
        shared = here.shared(64)
        here.block.store(here.operands.outputs[0], here.number, tir.load(shared, here.item))
        here.block.store(shared, here.item, tir.literal(1.0, "float32"))

    assert np.isnan(run_written(monkeypatch, write, groups=4)).all()


def test_what_is_written_beyond_an_operand_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="written past its end"):
        run_written(
            monkeypatch,
            lambda here: here.block.store(here.operands.outputs[0], here.item + 200, tir.literal(1.0, "float32")),
        )


def test_a_compile_leaves_the_threads_locale_as_it_was() -> None:
    """NVRTC sets C, in which Python would read files as ASCII from then on."""
    before = locale.getencoding()
    nvrtc.compile_text('extern "C" __global__ void k(float* x) { x[0] = 1.0f; }', "sm_87", where="k")
    assert locale.getencoding() == before
