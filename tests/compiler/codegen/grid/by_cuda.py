"""Families' tests that were written for OpenCL, over CUDA's text as C++ on this CPU: in two orders of items and groups.

A module that imports such tests and the fixture `by_cuda` runs them so. The text is that of a Jetson's GPU; no GPU runs
anything here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from compiler.graph import Array
from compiler.kernels.spec import KernelSpec
from compiler.targets import GridTarget, load
from tests.compiler.codegen.grid import (
    test_attention,
    test_contraction,
    test_depthwise,
    test_gather,
    test_movement,
    test_norm_grad,
    test_pool,
    test_recurrence,
    test_reduce,
    test_row,
    test_text,
)
from tests.kernel_harness.cuda import CudaKernel
from tests.kernel_harness.launch import run_kernel

CUDA = "jetson-orin-nano/cuda"
IN_PLACE = (test_contraction, test_depthwise, test_gather, test_norm_grad, test_pool, test_reduce, test_row)
BY_NAME = (*IN_PLACE, test_movement, test_text)
"""What names its target `OPENCL`."""


def run_in_place(spec: KernelSpec, inputs: Sequence[Array], takes_over: Sequence[int]) -> list[Array]:
    """The outputs, of which the one numbered k has the storage of input `takes_over[k]`; the same in both orders."""
    kernel, runs = CudaKernel(spec, cast(GridTarget, load(CUDA))), []
    for kernel.is_backwards in (False, True):
        storages = kernel.storages()
        for storage, tensor, array in zip(storages, kernel.types.inputs, inputs, strict=False):
            storage.view(tensor)[...] = array
        outputs = slice(len(inputs), len(inputs) + len(kernel.types.outputs))
        for output, number in enumerate(takes_over):
            storages[len(inputs) + output] = storages[number]
        kernel.call(storages)
        for number, storage in enumerate(storages):
            storage.check(f"operand {number}")
        made = zip(storages[outputs], kernel.types.outputs, strict=True)
        runs.append([storage.view(tensor).copy() for storage, tensor in made])
    assert [one.tobytes() for one in runs[0]] == [one.tobytes() for one in runs[1]]
    return runs[0]


def as_cuda(target: GridTarget) -> GridTarget:
    """A target of a test's own with its figures, whose kernels are of CUDA."""
    return replace(target, kind="cuda", capability="sm_87")


def run_layer(spec: KernelSpec, target: GridTarget, *inputs: Array) -> tuple[Array, ...]:
    return run_kernel(spec, inputs, target=as_cuda(target))


def run_attention(target: GridTarget, spec: KernelSpec, inputs: list[Array]) -> tuple[Array, ...]:
    return run_kernel(spec, inputs, target=as_cuda(target))


@pytest.fixture(autouse=True)
def by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own words for where they run mean CUDA's text."""
    for module in BY_NAME:
        monkeypatch.setattr(module, "OPENCL", CUDA)
    for module in IN_PLACE:
        monkeypatch.setattr(module, "run_in_place", run_in_place)
    monkeypatch.setattr(test_attention, "TARGET", CUDA)
    monkeypatch.setattr(test_attention, "run_on", run_attention)
    monkeypatch.setattr(test_recurrence, "run", run_layer)
