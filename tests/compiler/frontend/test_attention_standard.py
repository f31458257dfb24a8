"""The ONNX package's own Attention cases, as the operator and as the function body that it stands for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx.backend.test.case.node import _NodeTestCases as standard_cases
from onnx.backend.test.case.node import attention
from onnx.backend.test.case.test_case import TestCase as StandardCase
from onnx.reference import ReferenceEvaluator

from compiler.graph import Array
from compiler.passes import FORWARD_PASSES, run_passes
from tests.compiler.frontend.onnx_graphs import feeds_for, imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value, evaluate_named
from tests.compiler.passes.gradients import with_gradients
from tests.models import export

ROBUSTNESS = (
    "test_attention_causal_boolmask_nan_robustness",
    "test_attention_23_boolmask_fullymasked_row_nan_robustness",
)
REFUSED = ("past", "nonpad", "present")
"""In the names of a key/value cache's tensors."""
WINDOWS = {"left_window_size", "right_window_size"}


def is_supported(case: StandardCase) -> bool:
    """float32, without a key/value cache or a window, no output but Y: what the importer says it takes."""
    graph = case.model.graph
    types = {value.type.tensor_type.elem_type for value in graph.input}
    kinds = {onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL}
    attributes = {attribute.name for entry in graph.node for attribute in entry.attribute}
    names = [value.name for value in graph.input]
    return (
        types <= kinds
        and len(graph.output) == 1
        and not attributes & WINDOWS
        and not any(part in name for name in names for part in REFUSED)
    )


assert attention  # whose import alone fills the list: `collect_testcases` makes those of all operators first
CASES = {case.name: case for case in standard_cases if case.name.startswith("test_attention") and is_supported(case)}


def prepared(case: StandardCase) -> tuple[bytes, dict[str, Array]]:
    """Model and feeds; a mask [T, S] or [S] is given as [B, 1, T or 1, S]: the first axis of an input is the batch."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    (arrays, _), feeds = case.data_sets[0], {}
    batch = arrays[0].shape[0]
    for value, array in zip(model.graph.input, arrays, strict=True):
        if value.name == "attn_mask" and array.ndim < 3:
            array = np.broadcast_to(array, (batch, 1, *np.atleast_2d(array).shape))
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, array.shape))
        feeds[value.name] = np.ascontiguousarray(array)
    return model.SerializeToString(), feeds


def check(model: bytes, feeds: dict[str, Array], case: StandardCase) -> None:
    """As imported, and after the passes of the forward graph."""
    (want,) = case.data_sets[0][1]
    graph = imported(model, batch=case.data_sets[0][0][0].shape[0])
    for own in (graph, run_passes(graph, FORWARD_PASSES)):
        found = evaluate_graph(own, {value: feeds[own.names[value]] for value in own.inputs})[own.outputs[0]]
        np.testing.assert_allclose(found, want, rtol=case.rtol, atol=1e-6)


def test_the_cases_that_count_are_there() -> None:
    assert {*ROBUSTNESS, *(f"{name}_expanded" for name in ROBUSTNESS)} <= CASES.keys()
    assert len(CASES) >= 70


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_the_standard(name: str) -> None:
    check(*prepared(CASES[name]), CASES[name])


@pytest.mark.parametrize("name", ROBUSTNESS)
def test_a_row_without_a_key_under_a_mask_that_is_known(name: str) -> None:
    model, feeds = prepared(CASES[name])
    proto = onnx.load_from_string(model)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("attn_mask"), "attn_mask"))
    del proto.graph.input[3]
    check(proto.SerializeToString(), feeds, CASES[name])


@pytest.mark.parametrize("name", [*ROBUSTNESS, *(f"{name}_expanded" for name in ROBUSTNESS)])
def test_a_row_without_a_key_passes_no_gradient(name: str) -> None:
    model, feeds = prepared(CASES[name])
    graph = imported(model, batch=1)
    training = with_gradients(run_passes(graph, FORWARD_PASSES), map(graph.value_called, ("Q", "K", "V")))
    values = evaluate_graph(training, by_value(training, feeds))
    arrays = [feeds[operand].astype(np.float64) for operand in ("Q", "K", "V")]
    want = by_torch(arrays, feeds["attn_mask"], int("causal" in name), 0.0)
    assert any(gradient.any() for gradient in want[1:])
    for output, wanted in zip(training.outputs, want, strict=True):
        np.testing.assert_allclose(values[output], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["bool", "f32"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_gradients_are_those_of_pytorch(kind: str, causal: int, softcap: float) -> None:
    """Fused, and where a soft cap keeps it in pieces; the first query of sample 0 sees nothing."""
    shape, rng = (2, 3, 6, 4), np.random.default_rng(5)
    operands = [("f32", shape)] * 3 + [(kind, (2, 1, 6, 6))]
    names = [f"x{i}" for i in range(4)]
    made = node("Attention", names, ["y"], is_causal=causal, softcap=softcap)
    graph = imported(model_of([made], dict(zip(names, operands, strict=True)), ["y"], {}, opset=23), batch=2)
    seen = rng.random((2, 1, 6, 6)) < 0.6
    seen[0, 0, 0], seen[:, 0, 2:, 0] = False, True
    arrays = [rng.normal(size=shape) for _ in range(3)]
    mask = seen if kind == "bool" else np.where(seen, 0.3, -np.inf)
    feeds = dict(zip(names, [*arrays, mask], strict=True))
    training = with_gradients(run_passes(graph, FORWARD_PASSES), map(graph.value_called, names[:3]))
    values = evaluate_graph(training, by_value(training, feeds))
    for name, wanted in zip(training.outputs, by_torch(arrays, mask, causal, softcap), strict=True):
        np.testing.assert_allclose(values[name], wanted, rtol=1e-6, atol=1e-8)


def by_torch(arrays: list[Array], mask: Array, causal: int, softcap: float) -> list[Array]:
    """y, and the gradients of the sum of its squares."""
    leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
    q, k, v = leaves
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    added = torch.from_numpy(mask if mask.dtype != np.bool_ else np.where(mask, 0.0, -np.inf))
    if causal:
        added = added.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    y = torch._safe_softmax(scores + added, -1) @ v if softcap else F.scaled_dot_product_attention(q, k, v, added)
    (y * y).sum().backward()
    return [y.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)]


def attention_model(mask: Array, *, opset: int, is_stored: bool, **attributes: object) -> bytes:
    """Two queries and three keys of four heads that share two, beside a mask that is fed or stored."""
    attention = node("Attention", ["q", "k", "v", "mask"], ["y"], **attributes)
    shapes = {"q": ("f32", (2, 4, 2, 6)), "k": ("f32", (2, 2, 3, 6)), "v": ("f32", (2, 2, 3, 5))}
    fed = {} if is_stored else {"mask": ("bool" if mask.dtype == np.bool_ else "f32", mask.shape)}
    stored = {"mask": mask} if is_stored else {}
    return model_of([attention], {**shapes, **fed}, ["y"], stored, opset=opset, infer_shapes=False)


SHORT = {
    "one column, bool": np.array([[True], [True]]),
    "one column": np.array([[0.5], [-0.25]], np.float32),
    "per head": np.array([[[True, False]], [[False, True]], [[True, True]], [[True, False]]]),
    "with minus infinity": np.array([[[0.5, -np.inf], [-np.inf, 2.0]]], np.float32),
    "one axis": np.array([0.5, 1.0], np.float32),
}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("mask", SHORT.values(), ids=SHORT)
@pytest.mark.parametrize("is_stored", [True, False])
def test_keys_without_a_column_in_the_mask_are_hidden(mask: Array, opset: int, is_stored: bool) -> None:
    """ONNX's reference pads the mask; the attention of one key is that key's value, of none zeros."""
    model = attention_model(mask, opset=opset, is_stored=is_stored)
    graph = imported(model, axes={} if is_stored else {"mask": "none"})
    feeds = feeds_for(graph)
    if not is_stored:
        feeds["mask"] = mask
    (want,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    for form in (graph, run_passes(graph, FORWARD_PASSES)):
        values = evaluate_graph(form, by_value(form, feeds))
        np.testing.assert_allclose(values[form.outputs[0]], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attributes", [{"scale": 0.0}, {"softcap": -0.5}], ids=str)
def test_numbers_that_look_like_defaults_mean_what_they_say(attributes: dict[str, float]) -> None:
    """A scale of 0 weighs all keys alike, and only a positive cap is one."""
    mask = np.zeros((2, 3), np.float32)
    model = attention_model(mask, opset=24, is_stored=True, **attributes)
    graph = imported(model)
    feeds = feeds_for(graph)
    (want,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    np.testing.assert_allclose(evaluate_named(graph, feeds)["y"], want, rtol=1e-5, atol=1e-6)


class Grouped(torch.nn.Module):
    """Six query heads that share two key/value heads, more keys than queries, the mask from the upper left."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_and_the_corner_of_the_causal_mask_are_pytorchs(causal: bool, opset: int) -> None:
    """As PyTorch exports it, by products and by the operator, in both directions."""
    torch.manual_seed(3)
    leaves = [torch.randn(2, heads, places, 4) for heads, places in ((6, 3), (2, 5), (2, 5))]
    model = export(Grouped(causal=causal), tuple(leaves), input_names=("q", "k", "v"), opset=opset, dynamic_batch=False)
    graph = imported(model)
    assert ("Attention" in {entry.op_type for entry in onnx.load_from_string(model).graph.node}) == (opset == 23)
    training = with_gradients(run_passes(graph, FORWARD_PASSES), map(graph.value_called, "qkv"))
    values = evaluate_graph(
        training, by_value(training, {name: x.numpy() for name, x in zip("qkv", leaves, strict=True)})
    )
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    y = Grouped(causal=causal)(*wide)
    (y * y).sum().backward()
    want = [y.detach(), *(leaf.grad for leaf in wide)]
    for output, wanted in zip(training.outputs, want, strict=True):
        np.testing.assert_allclose(values[output], wanted.numpy(), rtol=1e-5, atol=1e-6)
