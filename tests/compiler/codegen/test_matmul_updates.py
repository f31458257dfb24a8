"""Products whose epilogue is an optimizer's update: weight and state are read and written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.choice import choose
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary
from compiler.kernels.spec import MatmulSpec
from compiler.targets import load
from tests.compiler.codegen.contractions import distance, expected, random_inputs
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target

RATE, MOMENTUM, BETA1, BETA2, EPS = 0.125, 0.875, 0.75, 0.5, 1e-3
Step = Callable[[Array, list[Array]], list[Array]]


def product(m: int, n: int, k: int) -> MatmulSpec:
    return MatmulSpec(1, m, n, k, a_transposed=True, dtype="f32")


def state(spec: MatmulSpec, tensors: int) -> tuple[Access, ...]:
    """The weight and `tensors` - 1 more tensors like it, then the learning rate."""
    like_c = Access(TensorType("f32", (spec.m, spec.n)), (Affine(((1, 1),)), Affine(((2, 1),))))
    return (like_c,) * tensors + (Access(TensorType("f32", ()), ()),)


def times(factor: float, x: Expr) -> Expr:
    return Binary("mul", Const(factor), x)


def with_momentum(spec: MatmulSpec) -> MatmulSpec:
    moment = Binary("add", times(MOMENTUM, Ref(2)), Ref(0))
    weight = Binary("sub", Ref(1), Binary("mul", Ref(3), moment))
    return replace(spec, epilogue=weight, epilogue_inputs=state(spec, 2), extra_outputs=(moment,))


def momentum_step(gradient: Array, given: list[Array]) -> list[Array]:
    weight, moment, rate = given
    moment = MOMENTUM * moment + gradient
    return [weight - rate * moment, moment]


def with_adam(spec: MatmulSpec) -> MatmulSpec:
    first = Binary("add", times(BETA1, Ref(2)), times(1 - BETA1, Ref(0)))
    second = Binary("add", times(BETA2, Ref(3)), times(1 - BETA2, Binary("mul", Ref(0), Ref(0))))
    root = Binary("add", Unary("sqrt", second), Const(EPS))
    weight = Binary("sub", Ref(1), Binary("mul", Ref(4), Binary("div", first, root)))
    return replace(spec, epilogue=weight, epilogue_inputs=state(spec, 3), extra_outputs=(first, second))


def adam_step(gradient: Array, given: list[Array]) -> list[Array]:
    weight, first, second, rate = given
    first = BETA1 * first + (1 - BETA1) * gradient
    second = BETA2 * second + (1 - BETA2) * gradient**2
    return [weight - rate * first / (np.sqrt(second) + EPS), first, second]


RULES = [(with_momentum, momentum_step), (with_adam, adam_step)]
PRODUCTS = {
    "in registers": product(37, 150, 40),
    "in registers, long": product(70, 130, 500),
    "waiting in memory": product(66, 100, 700),
    "split": product(24, 40, 2100),
    "one row tile": product(5, 600, 30),
}


def operands(spec: MatmulSpec) -> list[Array]:
    """Random ones; squares (the last tensor but one) and the rate are positive."""
    given = random_inputs(spec)
    return [*given[:-2], abs(given[-2]), np.full((), RATE, np.float32)]


def wanted(spec: MatmulSpec, given: list[Array], step: Step) -> list[Array]:
    plain = replace(spec, epilogue=Ref(0), epilogue_inputs=(), extra_outputs=())
    return step(expected(plain, given[:2])[0], [array.astype(np.float64) for array in given[2:]])


@pytest.mark.parametrize(("change", "step"), RULES, ids=["momentum", "adam"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_in_place(name: str, change: Callable[[MatmulSpec], MatmulSpec], step: Step) -> None:
    """Weight and state share storage with the outputs, as in a training step."""
    spec = change(PRODUCTS[name])
    kernel, given = Kernel(spec, load(native_target()), 2), operands(spec)
    storages = kernel.storages()
    for storage, tensor, array in zip(storages, kernel.types.inputs, given, strict=False):
        storage.view(tensor)[...] = array
    for output, tensor in enumerate(kernel.types.outputs):
        storages[len(given) + output] = storages[2 + output]
        assert tensor.shape == (1, spec.m, spec.n)
    kernel.call(storages)
    for number, want in enumerate(wanted(spec, given, step)):
        storages[2 + number].check(f"output {number}")
        got = storages[2 + number].view(kernel.types.outputs[number])[0]
        assert distance(got, want) <= 3e-6, f"output {number}"


@pytest.mark.parametrize("strategy", ["rows", "columns", "split"])
def test_bias_gradient_comes_last(strategy: str) -> None:
    """The sums of the columns of B are the last output; blocks of the reduction leave them whole."""
    spec = replace(with_momentum(product(48, 80, 300)), sums=True)
    given = operands(spec)
    chosen = choose(strategy=strategy, order="columns", k_block=100)
    weight, moment, sums = Kernel(spec, load(native_target()), 2, chosen).run(*given)
    for got, want in zip((weight[0], moment[0]), wanted(spec, given, momentum_step), strict=True):
        assert distance(got, want) <= 3e-6
    assert distance(sums, given[1].astype(np.float64).reshape(-1, spec.n).sum(axis=0)) <= 6e-7
