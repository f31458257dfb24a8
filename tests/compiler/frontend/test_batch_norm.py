"""BatchNormalization folded into the convolution before it, or kept with frozen statistics."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from compiler.errors import ModelError, PlanError
from compiler.frontend.scope import BatchNormMode
from compiler.graph import Array
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from tests.compiler.frontend.onnx_graphs import assert_agrees, feeds_for, imported, model_of, node
from tests.compiler.named import evaluate_named, stored

IMAGE = {"x": ("f32", ("batch", 3, 5, 5))}
VECTORS = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")


def _stored(channels: int = 4) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "conv.weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "norm.weight": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "norm.bias": rng.standard_normal(channels).astype(np.float32),
        "norm.running_mean": rng.standard_normal(channels).astype(np.float32),
        "norm.running_var": rng.uniform(0.5, 2.0, channels).astype(np.float32),
    }


def _conv_norm(**attributes: object) -> bytes:
    nodes = [
        node("Conv", ["x", "conv.weight"], ["h"]),
        node("BatchNormalization", ["h", *VECTORS], ["n"], epsilon=1e-3, **attributes),
        node("Relu", ["n"], ["y"]),
    ]
    return model_of(nodes, IMAGE, initializers=_stored())


def test_fold_leaves_a_convolution_with_a_bias() -> None:
    graph = imported(_conv_norm())
    assert_agrees(_conv_norm(), graph)
    assert {name: p.created for name, p in graph.named_parameters().items()} == {
        "conv.weight": False,
        "conv.bias": True,
    }
    assert not {"sub", "mul", "rsqrt"} & {made.op for made in graph}


def test_fold_keeps_the_convolutions_own_bias_name() -> None:
    nodes = [
        node("Conv", ["x", "conv.weight", "conv.own"], ["h"]),
        node("BatchNormalization", ["h", *VECTORS], ["y"]),
    ]
    model = model_of(nodes, IMAGE, initializers={**_stored(), "conv.own": np.ones(4, np.float32)})
    graph = imported(model)
    assert set(graph.named_parameters()) == {"conv.weight", "conv.own"}
    assert_agrees(model, graph)


def test_frozen_trains_scale_and_bias_and_keeps_statistics_constant() -> None:
    graph = imported(_conv_norm(), batch_norm="frozen")
    assert_agrees(_conv_norm(), graph)
    assert {name: p.kind for name, p in graph.named_parameters().items()} == {
        "conv.weight": "weight",
        "norm.weight": "weight",
        "norm.bias": "bias",
    }
    np.testing.assert_array_equal(graph.arrays[graph.value_called("norm.weight")], _stored()["norm.weight"])
    feeds = feeds_for(graph)
    doubled = evaluate_named(graph, {**feeds, "norm.weight": graph.arrays[graph.value_called("norm.weight")] * 2})
    assert not np.allclose(doubled["y"], evaluate_named(graph, feeds)["y"])


@pytest.mark.parametrize("batch_norm", ["fold", "frozen"])
def test_a_norm_without_a_convolution_is_an_affine_map(batch_norm: BatchNormMode) -> None:
    model = model_of(
        [node("BatchNormalization", ["x", *VECTORS], ["y"])],
        IMAGE,
        initializers={name: array for name, array in _stored(3).items() if name != "conv.weight"},
    )
    graph = imported(model, batch_norm=batch_norm)
    assert set(graph.named_parameters()) == {"norm.weight", "norm.bias"}
    assert_agrees(model, graph)


def test_a_convolution_with_another_reader_is_not_folded() -> None:
    nodes = [
        node("Conv", ["x", "conv.weight"], ["h"]),
        node("BatchNormalization", ["h", *VECTORS], ["n"]),
        node("Add", ["h", "n"], ["y"]),
    ]
    model = model_of(nodes, IMAGE, initializers=_stored())
    graph = imported(model)
    assert_agrees(model, graph)
    np.testing.assert_array_equal(
        stored(graph)["conv.weight"],
        _stored()["conv.weight"],
    )


def test_a_shared_convolution_weight_is_not_folded() -> None:
    stored = _stored(3)
    stored["conv.weight"] = stored["conv.weight"][:3, :, :1, :1].copy()
    nodes = [
        node("Conv", ["x", "conv.weight"], ["h"]),
        node("BatchNormalization", ["h", *VECTORS], ["n"]),
        node("Conv", ["n", "conv.weight"], ["y"]),
    ]
    model = model_of(nodes, IMAGE, initializers=stored)
    graph = imported(model)
    assert_agrees(model, graph)


def test_a_training_mode_export_is_taken_in_evaluation_mode() -> None:
    nodes = [
        node("Conv", ["x", "conv.weight"], ["h"]),
        node("BatchNormalization", ["h", *VECTORS], ["y", "mean", "var"], training_mode=1),
    ]
    graph = imported(model_of(nodes, IMAGE, initializers=_stored()))
    reference = imported(
        model_of([nodes[0], node("BatchNormalization", ["h", *VECTORS], ["y"])], IMAGE, initializers=_stored())
    )
    feeds = feeds_for(graph)
    np.testing.assert_array_equal(evaluate_named(graph, feeds)["y"], evaluate_named(reference, feeds)["y"])


@pytest.mark.parametrize("momentum", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("batch_norm", ["fold", "frozen", "train"])
def test_a_node_whose_running_statistics_are_read_does_as_onnx_says(batch_norm: BatchNormMode, momentum: float) -> None:
    nodes = [node("BatchNormalization", ["x", *VECTORS], ["y", "mean", "var"], training_mode=1, momentum=momentum)]
    stored = {name: array for name, array in _stored(3).items() if name != "conv.weight"}
    model = model_of(nodes, IMAGE, outputs=("y", "mean", "var"), initializers=stored)
    graph = imported(model, batch_norm=batch_norm)
    feeds = feeds_for(graph)
    wanted = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    found = evaluate_named(graph, feeds)
    for name, array in zip(("y", "mean", "var"), wanted, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_statistics_of_the_batch_leave_evaluation_as_it_is() -> None:
    graph = imported(_conv_norm(), batch_norm="train")
    assert_agrees(_conv_norm(), graph)
    assert graph.buffers() == ("norm.running_mean", "norm.running_var")
    assert set(graph.named_parameters()) == {"conv.weight", "norm.weight", "norm.bias"}
    np.testing.assert_array_equal(stored(graph)["norm.running_var"], _stored()["norm.running_var"])


def test_a_plan_that_names_running_statistics_is_told_that_they_do_not_learn() -> None:
    graph = imported(_conv_norm(), batch_norm="train")
    assert {graph.name_of(value) for value in resolve_plan(graph, SparsePlan.parse("full"))} == set(
        graph.named_parameters()
    )
    with pytest.raises(PlanError, match=r"'norm\.running_mean' does not learn"):
        resolve_plan(graph, SparsePlan.parse("update: [{parameters: ['norm.running_mean']}]"))


@pytest.mark.parametrize("batch_norm", ["fold", "frozen", "train"])
def test_a_variance_below_zero_is_refused(batch_norm: BatchNormMode) -> None:
    arrays = {**_stored(3), "norm.running_var": np.array([1, -1, 1], np.float32)}
    model = model_of([node("BatchNormalization", ["x", *VECTORS], ["y"])], IMAGE, initializers=arrays)
    with pytest.raises(ModelError, match="variance is not positive"):
        imported(model, batch_norm=batch_norm)


def test_a_scale_that_is_stored_as_its_own_mean_learns() -> None:
    names = ("norm.weight", "norm.bias", "norm.bias", "norm.weight")
    arrays = {name: array for name, array in _stored(3).items() if name in names}
    graph = imported(
        model_of([node("BatchNormalization", ["x", *names], ["y"])], IMAGE, initializers=arrays), batch_norm="train"
    )
    assert set(graph.named_parameters()) == {"norm.weight", "norm.bias"}
    assert set(graph.buffers()) == {"norm.running_mean", "norm.running_var"}
    assert "model.untied" in {warning.code for warning in graph.warnings}


def test_norms_whose_fresh_statistics_are_stored_once_each_have_their_own() -> None:
    """The second is called after its own scale."""
    nodes = [
        node("BatchNormalization", ["x", *VECTORS], ["h"]),
        node("BatchNormalization", ["h", "other.weight", "other.bias", *VECTORS[2:]], ["y"]),
    ]
    arrays = {name: array for name, array in _stored(3).items() if name != "conv.weight"}
    arrays |= {"other.weight": np.ones(3, np.float32), "other.bias": np.zeros(3, np.float32)}
    graph = imported(model_of(nodes, IMAGE, initializers=arrays), batch_norm="train")
    assert set(graph.buffers()) == {*VECTORS[2:], "other.running_mean", "other.running_var"}


@pytest.mark.parametrize("momentum", [-0.1, 1.5])
def test_a_momentum_that_is_no_share_is_refused(momentum: float) -> None:
    with pytest.raises(ModelError, match="must be from 0 to 1"):
        imported(_conv_norm(momentum=momentum), batch_norm="train")


def test_statistics_that_stand_are_told() -> None:
    """A file cannot tell PyTorch's momentum=0 from momentum=None."""
    graph = imported(_conv_norm(momentum=1.0), batch_norm="train")
    assert [(warning.code, "momentum=None" in warning.message) for warning in graph.warnings] == [
        ("model.standing_statistics", True)
    ]
    assert imported(_conv_norm(momentum=0.0), batch_norm="train").warnings == ()
