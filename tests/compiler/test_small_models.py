"""Small models that are hard to compile: the compiler's own work grows with their nodes, and not with their tricks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import LimitExceeded
from compiler.explain import explain_plan
from compiler.frontend.file.source import free_name
from compiler.kernels.canonical import canonical
from compiler.kernels.expressions import MOST_NODES, Binary, Expr, Ref, Unary, size, substitute_refs
from compiler.pipeline import walk
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load

Links = Callable[[str, int], list[onnx.NodeProto]]
Build = Callable[[int], bytes]
RNG = numpy.random.default_rng(0)
SQUARE, LAST = (
    numpy_helper.from_array((0.1 * RNG.standard_normal(shape)).astype(numpy.float32), name)
    for name, shape in (("square", (4, 4)), ("last", (4, 2)))
)


def model(
    nodes: Sequence[onnx.NodeProto],
    hidden: str,
    *,
    constants: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    width: int = 4,
) -> bytes:
    """A model of `x` [2, width] that ends with `hidden` [2, 4] in a linear layer."""
    node = helper.make_node("MatMul", [hidden, "last"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n]) for name, n in (("x", width), ("y", 2)))
    graph = helper.make_graph([*nodes, node], "small", [x], [y], [SQUARE, LAST, *constants])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("functions", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)
    return bytes(proto.SerializeToString())


def constant(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(numpy.asarray(array), name)


def chain(links: Links, count: int, constants: Sequence[onnx.TensorProto] = ()) -> bytes:
    """`count` links, each of which reads the one before."""
    nodes, x = [], "x"
    for link in range(count):
        nodes += links(x, link)
        x = f"h{link}"
    return model(nodes, x, constants=constants)


def tanh_plus_sigmoid(x: str, link: int) -> list[onnx.NodeProto]:
    """Each link reads the one before twice."""
    return [
        helper.make_node("Tanh", [x], [f"tanh{link}"]),
        helper.make_node("Sigmoid", [x], [f"sigmoid{link}"]),
        helper.make_node("Add", [f"tanh{link}", f"sigmoid{link}"], [f"h{link}"]),
    ]


def swish(x: str, link: int) -> list[onnx.NodeProto]:
    """As people write it by hand."""
    return [
        helper.make_node("Sigmoid", [x], [f"gate{link}"]),
        helper.make_node("Mul", [x, f"gate{link}"], [f"h{link}"]),
    ]


def tanh(x: str, link: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Tanh", [x], [f"h{link}"])]


def matmul(x: str, link: int) -> list[onnx.NodeProto]:
    return [helper.make_node("MatMul", [x, "square"], [f"h{link}"])]


def residual(x: str, link: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [x, "square"], [f"product{link}"]),
        helper.make_node("Tanh", [f"product{link}"], [f"tanh{link}"]),
        helper.make_node("Add", [x, f"tanh{link}"], [f"h{link}"]),
    ]


def einsum(x: str, link: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Einsum", [x, "square"], [f"h{link}"], equation="bi,ij->bj")]


def transposed_twice(x: str, link: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Transpose", [x], [f"turned{link}"], perm=[1, 0]),
        helper.make_node("Reshape", [f"turned{link}", "flat"], [f"flat{link}"]),
        helper.make_node("Tanh", [f"flat{link}"], [f"tanh{link}"]),
        helper.make_node("Reshape", [f"tanh{link}", "turned"], [f"back{link}"]),
        helper.make_node("Transpose", [f"back{link}"], [f"h{link}"], perm=[1, 0]),
    ]


def resize(x: str, link: int) -> list[onnx.NodeProto]:
    """Twice as large and back, by interpolation."""
    return [
        helper.make_node("Reshape", [x, "image"], [f"image{link}"]),
        helper.make_node("Resize", [f"image{link}", "", "double"], [f"large{link}"], mode="linear"),
        helper.make_node("Resize", [f"large{link}", "", "half"], [f"small{link}"], mode="linear"),
        helper.make_node("Reshape", [f"small{link}", "rows"], [f"h{link}"]),
    ]


SHAPES = (
    constant("flat", [8]),
    constant("turned", [4, 2]),
    constant("image", [2, 1, 2, 2]),
    constant("rows", [2, 4]),
    constant("double", numpy.array([1, 1, 2, 2], numpy.float32)),
    constant("half", numpy.array([1, 1, 0.5, 0.5], numpy.float32)),
)


def fan_out(count: int) -> bytes:
    """One value that many read, and their sum."""
    products = [helper.make_node("MatMul", ["x", "square"], [f"product{i}"]) for i in range(count)]
    nonlinear = [
        helper.make_node(("Tanh", "Sigmoid", "Exp", "Relu")[i % 4], ["x"], [f"nonlinear{i}"]) for i in range(count)
    ]
    names = [node.output[0] for node in (*products, *nonlinear)]
    return model([*products, *nonlinear, helper.make_node("Sum", names, ["h"])], "h")


def split(count: int) -> bytes:
    names = [f"part{i}" for i in range(count)]
    nodes = [helper.make_node("Split", ["x"], names, axis=1), helper.make_node("Sum", names, ["h"])]
    return model(nodes, "h", width=4 * count)


def constants(count: int) -> bytes:
    """A product of weights, without `x`."""
    nodes = [helper.make_node("MatMul", [f"c{i}" if i else "square", "square"], [f"c{i + 1}"]) for i in range(count)]
    return model([*nodes, helper.make_node("MatMul", ["x", f"c{count}"], ["h"])], "h")


def cell(name: str, steps: Sequence[onnx.NodeProto], scanned: bool) -> onnx.GraphProto:
    """The body of a Loop or a Scan over `state` [2, 4]."""
    state, new_state = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in ("state", "new_state"))
    if scanned:
        row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [2, 4])
        return helper.make_graph(steps, name, [state, row], [new_state])
    number = helper.make_tensor_value_info("number", TensorProto.INT64, [])
    goes_on, still = (helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("goes_on", "still"))
    again = helper.make_node("Identity", ["goes_on"], ["still"])
    return helper.make_graph([*steps, again], name, [number, goes_on, state], [still, new_state])


def loop(count: int) -> bytes:
    """A few hundred bytes, whatever the count."""
    steps = [
        helper.make_node("MatMul", ["state", "square"], ["product"]),
        helper.make_node("Tanh", ["product"], ["new_state"]),
    ]
    node = helper.make_node("Loop", ["count", "yes", "x"], ["h"], body=cell("loop", steps, scanned=False))
    return model([node], "h", constants=[constant("count", numpy.int64(count)), constant("yes", True)])


def nested_loops(count: int) -> bytes:
    inner = cell("inner", [helper.make_node("Tanh", ["state"], ["new_state"])], scanned=False)
    outer = cell("outer", [helper.make_node("Loop", ["count", "yes", "state"], ["new_state"], body=inner)], False)
    node = helper.make_node("Loop", ["count", "yes", "x"], ["h"], body=outer)
    return model([node], "h", constants=[constant("count", numpy.int64(count)), constant("yes", True)])


def scan(count: int) -> bytes:
    steps = [
        helper.make_node("MatMul", ["state", "square"], ["product"]),
        helper.make_node("Add", ["product", "row"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["new_state"]),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "rows_first"], ["by_sample"]),
        helper.make_node("Transpose", ["by_sample"], ["by_row"], perm=[1, 0, 2]),
        helper.make_node("Scan", ["zero", "by_row"], ["h"], body=cell("scan", steps, True), num_scan_inputs=1),
    ]
    shapes = [constant("rows_first", [2, count, 4]), constant("zero", numpy.zeros((2, 4), numpy.float32))]
    return model(nodes, "h", constants=shapes, width=4 * count)


def functions_in_functions(levels: int) -> bytes:
    """Each calls the one below twice: 2^levels nodes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("functions", 1)]
    lowest = helper.make_function("functions", "F0", ["a"], ["b"], [helper.make_node("Tanh", ["a"], ["b"])], opsets)
    others = [
        helper.make_function(
            "functions",
            f"F{level}",
            ["a"],
            ["b"],
            [
                helper.make_node(f"F{level - 1}", ["a"], ["middle"], domain="functions"),
                helper.make_node(f"F{level - 1}", ["middle"], ["b"], domain="functions"),
            ],
            opsets,
        )
        for level in range(1, levels + 1)
    ]
    return model([helper.make_node(f"F{levels}", ["x"], ["h"], domain="functions")], "h", functions=[lowest, *others])


SETTINGS = BuildSettings(plan=SparsePlan.parse("full"), spec=TrainingSpec.parse({"batch": 2}), target=load("x86-64-v3"))


def calls_and_lines(model: bytes) -> int:
    """Functions that are called and lines that run until the step's memory is planned: work that no other load on the
    machine changes."""
    events = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal events
        events += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        explain_plan(model, SETTINGS)
    finally:
        sys.settrace(before)
    return events


LINKS: tuple[Links, ...] = (tanh_plus_sigmoid, swish, tanh, matmul, residual, einsum, transposed_twice, resize)
BUILDS: tuple[Build, ...] = (fan_out, split, constants, loop, scan)


def chained(links: Links) -> Build:
    return lambda count: chain(links, count, SHAPES)


@pytest.mark.parametrize(
    "build",
    [
        *(pytest.param(chained(links), id=links.__name__) for links in LINKS),
        *BUILDS,
    ],
)
def test_work_grows_with_the_nodes(build: Build) -> None:
    calls_and_lines(build(4))  # what is read once
    once, twice = (calls_and_lines(build(count)) for count in (40, 80))
    assert twice < 2.4 * once, (once, twice)


def test_functions_in_functions_are_worth_the_nodes_that_they_become() -> None:
    calls_and_lines(functions_in_functions(2))
    once, twice = (calls_and_lines(functions_in_functions(levels)) for levels in (6, 7))
    assert twice < 2.4 * once, (once, twice)


@pytest.mark.parametrize(
    "bomb", [functions_in_functions(20), loop(10**6), nested_loops(10**3)], ids=["functions", "loop", "nested loops"]
)
def test_a_few_bytes_that_become_too_many_nodes_are_refused(bomb: bytes) -> None:
    assert len(bomb) < 2_500
    with pytest.raises(LimitExceeded, match="50,000"):
        explain_plan(bomb, SETTINGS)


def test_many_values_that_want_one_name_look_for_it_briefly() -> None:
    class Names(set[str]):
        lookups = 0

        def __contains__(self, name: object) -> bool:
            self.lookups += 1
            return super().__contains__(name)

    names = Names()
    assert [free_name("x", names) for _ in range(5)] == ["x", "x'", "x'2", "x'3", "x'4"]
    for _ in range(3_000):
        free_name("x", names)
    assert len(names) == 3_005
    assert names.lookups < 30 * len(names)


def test_what_reads_itself_twice_is_not_fused_for_ever() -> None:
    programs: Any = next(
        stage.product for stage in walk(chain(tanh_plus_sigmoid, 40), SETTINGS) if stage.name == "fuse"
    )
    sizes = [size(expr) for program in programs for call in program.calls for expr in getattr(call.spec, "exprs", ())]
    assert max(sizes) <= MOST_NODES
    assert max(sizes) > MOST_NODES // 4, "fusion goes as far as it may"


def test_an_expression_that_shares_its_parts_is_measured_and_renumbered_once_each() -> None:
    expr: Expr = Ref(0)
    for _ in range(200):
        expr = Binary("add", expr, expr)
    assert size(expr) == 2**201 - 1
    moved = substitute_refs(expr, lambda operand: Ref(operand + 1))
    assert size(moved) == size(expr)


def test_a_deep_expression_has_a_text() -> None:
    expr: Expr = Ref(0)
    for _ in range(MOST_NODES):
        expr = Unary("tanh", expr)
    assert canonical(expr).count("Unary") == MOST_NODES
