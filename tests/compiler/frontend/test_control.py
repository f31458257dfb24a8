"""Control flow that the file decides is put in place and agrees with ONNX Runtime; what data decides is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import LimitExceeded, ModelError, SpecError, UnsupportedOperator
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.importer import import_model
from compiler.frontend.source_passes import Wishes
from compiler.graph import Array
from tests.compiler.frontend.onnx_graphs import Shape, assert_agrees, feeds_for, imported, model_of, node, run_onnx
from tests.compiler.named import evaluate_named

X: dict[str, tuple[str, Shape]] = {"x": ("f32", ("batch", 3))}
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def body(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    inputs: Sequence[tuple[str, int]] = (),
    stored: Mapping[str, Array] | None = None,
) -> onnx.GraphProto:
    """A sub-graph; its outputs named `c...` are conditions, the others float."""
    return helper.make_graph(
        list(nodes),
        "body",
        [helper.make_tensor_value_info(name, kind, [] if kind != FLOAT else None) for name, kind in inputs],
        [helper.make_tensor_value_info(name, BOOL if name[0] == "c" else FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (stored or {}).items()],
    )


def scale(by: str, output: str, x: str = "x") -> onnx.NodeProto:
    return node("Mul", [x, by], [output])


def weights(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def chosen(rank: int) -> bytes:
    """Scales by `a` if x has `rank` axes, else by `b`, which both branches store themselves."""
    then = body([scale("a", "p"), node("Relu", ["p"], ["u"])], ["u"], stored={"a": weights(3, 1)})
    other = body([scale("b", "v")], ["v"], stored={"b": weights(3, 2)})
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Size", ["s"], ["n"]),
        node("Equal", ["n", "rank"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    return model_of(nodes, X, initializers={"rank": np.asarray(rank)}, infer_shapes=False)


@pytest.mark.parametrize(("rank", "learns"), [(2, "a"), (5, "b")])
def test_a_branch_is_taken_and_its_parameters_keep_their_names(rank: int, learns: str) -> None:
    graph = imported(chosen(rank))
    assert_agrees(chosen(rank), graph)
    assert list(graph.named_parameters()) == [learns]


def counted(trips: int, *, stop: int = 100) -> bytes:
    """`trips` times h = tanh(h w) + i, ended once the next i reaches `stop`; every h is kept too."""
    nodes = [
        scale("w", "p", "h"),
        node("Tanh", ["p"], ["t"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Add", ["t", "f"], ["g"]),
        node("Add", ["i", "one"], ["j"]),
        node("Less", ["j", "stop"], ["c1"]),
        node("Identity", ["g"], ["kept"]),
    ]
    inside = body(nodes, ["c1", "g", "kept"], [("i", INT), ("c0", BOOL), ("h", FLOAT)])
    loop = node("Loop", ["trips", "go", "x"], ["y", "all"], body=inside)
    stored = {
        "w": weights(3, 3),
        "trips": np.asarray(trips),
        "go": np.asarray(True),
        "one": np.asarray(1),
        "stop": np.asarray(stop),
    }
    return model_of([loop], X, ("y", "all"), stored, infer_shapes=False)


@pytest.mark.parametrize(("trips", "stop"), [(3, 100), (50, 4), (1, 0)])
def test_loops_are_unrolled(trips: int, stop: int) -> None:
    model = counted(trips, stop=stop)
    graph = imported(model)
    assert_agrees(model, graph)
    assert sum(made.op == "tanh" for made in graph) == min(trips, max(stop, 1))
    assert list(graph.named_parameters()) == ["w"]


def test_loops_in_branches_in_loops() -> None:
    inner = body(
        [scale("w", "q", "h1"), node("Identity", ["c2"], ["c3"])],
        ["c3", "q"],
        [("i2", INT), ("c2", BOOL), ("h1", FLOAT)],
    )
    repeat = body([node("Loop", ["two", "go", "h0"], ["r"], body=inner)], ["r"])
    once = body([node("Neg", ["h0"], ["s"])], ["s"])
    outer = [
        node("Less", ["i1", "one"], ["first"]),
        node("If", ["first"], ["z"], then_branch=repeat, else_branch=once),
        node("Identity", ["c0"], ["c1"]),
    ]
    loop = node(
        "Loop", ["three", "", "x"], ["y"], body=body(outer, ["c1", "z"], [("i1", INT), ("c0", BOOL), ("h0", FLOAT)])
    )
    stored = {"w": weights(3, 4), "go": np.asarray(True), "one": np.asarray(1), "two": np.asarray(2)}
    model = model_of([loop], X, initializers={**stored, "three": np.asarray(3)}, infer_shapes=False)
    graph = imported(model)
    assert_agrees(model, graph)
    assert [made.op for made in graph] == ["mul", "mul", "neg", "neg"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scan_input_directions": [1, 0], "scan_output_directions": [1, 0]},
        {"scan_input_axes": [0, 1], "scan_output_axes": [1, 0]},
    ],
)
def test_scans_are_unrolled(settings: dict[str, list[int]]) -> None:
    nodes = [
        node("Mul", ["h", "w"], ["p"]),
        node("Add", ["p", "a"], ["q"]),
        node("Sub", ["q", "b"], ["g"]),
        node("Identity", ["g"], ["kept"]),
        node("Neg", ["a"], ["turned"]),
    ]
    inside = body(nodes, ["g", "kept", "turned"], [("h", FLOAT), ("a", FLOAT), ("b", FLOAT)])
    scan = node("Scan", ["start", "x", "z"], ["y", "all", "back"], body=inside, num_scan_inputs=2, **settings)
    inputs: dict[str, tuple[str, Shape]] = {"x": ("f32", (3, 3)), "z": ("f32", (3, 3))}
    stored = {"w": weights(3, 3), "start": weights(3, 5)}
    model = model_of([scan], inputs, ("y", "all", "back"), stored, infer_shapes=False)
    assert_agrees(model, imported(model, batch=3))


def _loop(trips: str, go: str, **more: tuple[str, Shape]) -> bytes:
    inside = body(
        [scale("x", "g", "h"), node("Identity", ["c0"], ["c1"])], ["c1", "g"], [("i", INT), ("c0", BOOL), ("h", FLOAT)]
    )
    stored = {"many": np.asarray(1 << 40), "true": np.asarray(True), "none": np.asarray(0)}
    return model_of(
        [node("Loop", [trips, go, "x"], ["y"], body=inside)], {**X, **more}, initializers=stored, infer_shapes=False
    )


def _run_time_if(then: onnx.NodeProto, other: onnx.NodeProto, shape: Shape = ()) -> bytes:
    """Whether the sum of x is negative decides; `shape` is the condition's."""
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Expand", ["sum", "shape"], ["s"]),
        node("Less", ["s", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=body([then], ["u"]), else_branch=body([other], ["v"])),
    ]
    stored: dict[str, Array] = {"zero": np.asarray(0, np.float32), "shape": np.asarray(shape, np.int64)}
    return model_of(nodes, X, initializers=stored, infer_shapes=False)


def _reading(name: str, outputs: Sequence[str] = ("u",)) -> bytes:
    branch = body([node("Neg", [name], ["u"])], outputs)
    made = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return model_of([made], X, initializers={"c": np.asarray(True)}, infer_shapes=False)


REFUSED = {
    "run-time shape": (
        _run_time_if(node("Neg", ["x"], ["u"]), node("Transpose", ["x"], ["v"])),
        UnsupportedOperator,
        r"'make_y' \(If\): input 'x' decides .* f32\[2, 3\] or f32\[3, 2\]",
    ),
    "run-time condition of each sample": (
        _run_time_if(node("Neg", ["x"], ["u"]), node("Relu", ["x"], ["v"]), (2,)),
        ModelError,
        r"'make_y' \(If\): its condition must be one element, has shape \[2\]",
    ),
    "run-time draw": (
        _run_time_if(node("Neg", ["x"], ["u"]), node("RandomNormalLike", ["x"], ["v"])),
        UnsupportedOperator,
        r"'make_y' \(If\): input 'x' decides .*RandomNormalLike",
    ),
    "run-time trip count": (
        _loop("n", "true", n=("i64", ("batch",))),
        UnsupportedOperator,
        r"'make_y' \(Loop\): input 'n' decides the trip count .*inputs: {n: {value: 1}}",
    ),
    "endless": (_loop("", "true"), LimitExceeded, r"'make_y' \(Loop\): more than 1,000 nodes"),
    "nearly endless": (_loop("many", ""), LimitExceeded, r"more than 1,000 nodes"),
    "free name": (_reading("nowhere"), ModelError, r"'make_y' \(If\): reads 'nowhere'"),
    "no output": (_reading("x", ("u", "w")), ModelError, r"reads 'w'"),
    "no body": (
        model_of([node("If", ["c"], ["y"])], X, initializers={"c": np.asarray(True)}, infer_shapes=False),
        ModelError,
        r"'then_branch' must be a graph of 1 ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_data_decides_is_refused_by_name(name: str) -> None:
    model, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        import_model(model, input_shapes={}, batch=2, batch_norm="fold", limits=ModelLimits(nodes=1000))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shape", [(), (1, 1)], ids=["scalar", "matrix"])
def test_where_data_decide_both_branches_are_there(sign: float, shape: Shape) -> None:
    model = _run_time_if(node("Neg", ["x"], ["u"]), node("Relu", ["x"], ["v"]), shape)
    assert_agrees(model, imported(model), {"x": np.full((2, 3), sign, np.float32)})


@pytest.mark.parametrize(("value", "learns"), [(16000, "fast"), (8000, "slow")])
def test_a_branch_is_taken_by_the_value_that_the_spec_gives(value: int, learns: str) -> None:
    nodes = [
        node("Equal", ["rate", "k"], ["c"]),
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=body([scale("fast", "u")], ["u"]),
            else_branch=body([scale("slow", "v")], ["v"]),
        ),
    ]
    stored = {"k": np.asarray(16000), "fast": weights(3, 3), "slow": weights(3, 4)}
    model = model_of(nodes, {**X, "rate": ("i64", ())}, initializers=stored, infer_shapes=False)
    graph = import_model(
        model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(values={"rate": (float(value),)})
    )
    assert [graph.name_of(value) for value in graph.inputs] == ["x"]
    assert list(graph.named_parameters()) == [learns]
    feeds = feeds_for(graph)
    (expected,) = run_onnx(model, ["y"], {**feeds, "rate": np.asarray(value)})
    np.testing.assert_allclose(evaluate_named(graph, feeds)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rat": (1.0,)}, r"spec\.inputs\.rat\.value: .*'?rate"),
        ({"rate": (0.5,)}, r"spec\.inputs\.rate\.value: 0\.5 .*int64"),
        ({"rate": (1.0, 2.0)}, r"spec\.inputs\.rate\.value: 2 numbers .*\[\]"),
    ],
)
def test_values_that_no_input_takes_are_refused(values: Mapping[str, tuple[float, ...]], message: str) -> None:
    model = model_of([node("Neg", ["x"], ["y"])], {**X, "rate": ("i64", ())}, infer_shapes=False)
    with pytest.raises(SpecError, match=message):
        import_model(model, input_shapes={}, batch=2, batch_norm="fold", wishes=Wishes(values=values))


def test_a_loop_of_no_turn_hands_its_input_on() -> None:
    graph = imported(_loop("none", ""))
    assert [made.op for made in graph] == ["identity"]
    assert_agrees(_loop("none", ""), graph)


def _listed(nodes: Sequence[onnx.NodeProto], **stored: Array) -> bytes:
    known = {key: np.asarray(value) for key, value in stored.items()}
    return model_of(nodes, X, initializers=known, infer_shapes=False)


JOINED = {
    "filled in a loop": _listed(
        [
            node("SequenceEmpty", [], ["none"]),
            node(
                "Loop",
                ["three", "", "none", "x"],
                ["list", "last"],
                body=helper.make_graph(
                    [
                        node("Neg", ["h"], ["g"]),
                        node("SequenceInsert", ["s", "g"], ["t"]),
                        node("Identity", ["c0"], ["c1"]),
                    ],
                    "body",
                    [
                        helper.make_tensor_value_info("i", INT, []),
                        helper.make_tensor_value_info("c0", BOOL, []),
                        helper.make_tensor_sequence_value_info("s", FLOAT, None),
                        helper.make_tensor_value_info("h", FLOAT, None),
                    ],
                    [
                        helper.make_tensor_value_info("c1", BOOL, []),
                        helper.make_tensor_sequence_value_info("t", FLOAT, None),
                        helper.make_tensor_value_info("g", FLOAT, None),
                    ],
                ),
            ),
            node("ConcatFromSequence", ["list"], ["y"], axis=1, new_axis=1),
        ],
        three=np.asarray(3),
    ),
    "taken apart": _listed(
        [
            node("SplitToSequence", ["x", "sizes"], ["list"], axis=1),
            node("SequenceAt", ["list", "last"], ["end"]),
            node("SequenceErase", ["list", "first"], ["rest"]),
            node("SequenceInsert", ["rest", "end", "first"], ["more"]),
            node("SequenceLength", ["more"], ["n"]),
            node("Cast", ["n"], ["count"], to=1),
            node("ConcatFromSequence", ["more"], ["both"], axis=-1),
            node("Mul", ["both", "count"], ["y"]),
        ],
        sizes=np.asarray([1, 2]),
        first=np.asarray(0),
        last=np.asarray(-1),
    ),
    "single rows": _listed(
        [
            node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
            node("SequenceConstruct", ["x", "x"], ["twice"]),
            node("SequenceAt", ["rows", "one"], ["row"]),
            node("SequenceAt", ["twice", "one"], ["whole"]),
            node("Add", ["row", "whole"], ["y"]),
        ],
        one=np.asarray(1),
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_sequences_are_lists_while_a_model_is_imported(name: str) -> None:
    assert_agrees(JOINED[name], imported(JOINED[name]))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("SequenceConstruct", ["x"], ["l"]), node("Relu", ["l"], ["y"])], "reads 'l', a sequence of tensors"),
        ([node("SequenceAt", ["x", "at"], ["y"])], "reads 'x', which is no sequence"),
        ([node("SequenceConstruct", ["x"], ["l"]), node("SequenceAt", ["l", "at"], ["y"])], "position 5 of a sequence"),
        (
            [node("SequenceEmpty", [], ["l"]), node("ConcatFromSequence", ["l"], ["y"], axis=0)],
            "joins a sequence of no",
        ),
        ([node("SplitToSequence", ["x", "none"], ["l"]), node("SequenceAt", ["l", "at"], ["y"])], "pieces of 0"),
    ],
)
def test_sequences_that_make_no_sense_are_refused(nodes: list[onnx.NodeProto], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        imported(_listed(nodes, at=np.asarray(5), none=np.asarray(0)))
