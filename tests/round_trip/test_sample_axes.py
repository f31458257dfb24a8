"""Models that take one sample at a time, without an axis for it: data have one, and steps are PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import pockfarm
from pockfarm.errors import PockfarmError
from tests.models import export

SAMPLES, STEPS, FEATURES = 4, 5, 3
SPEC = {
    "batch": 1,
    "accumulate": SAMPLES,
    "loss": {"kind": "mse"},
    "optimizer": {"learning_rate": 0.1},
    "inputs": {"x": {"batch_axis": "new"}},
}


class OneSequence(nn.Module):
    """Numbers for each position of a sequence [T, F]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.LSTM(FEATURES, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])


class Across(nn.Module):
    """What all samples have in common."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(0, keepdim=True)


def model() -> bytes:
    x = torch.zeros(STEPS, FEATURES)
    return export(OneSequence(), (x,), input_names=("x",), output_names=("scores",), dynamic_batch=False)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, STEPS, FEATURES, generator=generator)
    return x, torch.randn(SAMPLES, STEPS, 2, generator=generator)


def test_sequences_are_samples_and_a_step_of_several_is_pytorchs() -> None:
    x, y = data()
    tuned = pockfarm.fine_tune(model(), None, {"x": x.numpy(), "y": y.numpy()}, spec=SPEC, steps=3)
    net = OneSequence().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        answers = torch.stack([net(sequence) for sequence in x.double()])
        loss = nn.functional.mse_loss(answers, y.double())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert tuned.losses == pytest.approx(losses, rel=1e-5)
    (scores,) = onnxruntime.InferenceSession(tuned.onnx).run(None, {"x": x[0].numpy()})
    np.testing.assert_allclose(scores, net(x[0].double()).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_without_the_axis_the_line_to_write_is_given() -> None:
    x, y = data()
    spec = {**SPEC, "accumulate": 1, "batch": STEPS, "inputs": {}}
    with pytest.raises(PockfarmError, match=r"inputs: \{x: \{batch_axis: new\}\} with batch: 1"):
        pockfarm.fine_tune(model(), None, {"x": x[0].numpy(), "y": y[0].numpy()}, spec=spec, steps=1)


def test_several_at_once_are_refused() -> None:
    x, y = data()
    with pytest.raises(PockfarmError, match="set batch: 1"):
        pockfarm.fine_tune(model(), None, {"x": x.numpy(), "y": y.numpy()}, spec={**SPEC, "batch": 2}, steps=1)


def test_an_open_axis_is_answered_by_the_line_that_binds_it() -> None:
    nodes = [helper.make_node("MatMul", ["a", "w"], ["y"])]
    model = file_of(nodes, {"a": ["positions", 3]}, {"w": np.ones((3, 2))})
    data = {"a": np.ones((1, 5, 3), np.float32), "y": np.zeros((1, 5, 2), np.float32)}
    spec: dict[str, object] = {"batch": 1, "loss": {"kind": "mse"}, "inputs": {"a": {"batch_axis": "new"}}}
    with pytest.raises(PockfarmError, match=r"inputs: {a: {shape: \[\d+, 3\], batch_axis: new}}"):
        pockfarm.fine_tune(model, None, data, spec=spec, steps=1)
    spec["inputs"] = {"a": {"shape": [5, 3], "batch_axis": "new"}}
    assert pockfarm.fine_tune(model, None, data, spec=spec, steps=1).losses[0] == pytest.approx(9.0)


def test_an_input_that_is_not_there_is_named() -> None:
    x, y = data()
    spec = {**SPEC, "inputs": {"z": {"batch_axis": "new"}}}
    with pytest.raises(PockfarmError, match=r"spec\.inputs\.z\.batch_axis: the model has no such input"):
        pockfarm.fine_tune(model(), None, {"x": x.numpy(), "y": y.numpy()}, spec=spec, steps=1)


def test_an_output_that_is_computed_across_the_samples_is_refused() -> None:
    net = torch.nn.Linear(FEATURES, 6)
    across = export(Across(net), (torch.zeros(4, FEATURES),), input_names=("x",), output_names=("scores",))
    spec = {"batch": 4, "loss": {"kind": "mse"}}
    arrays = {"x": np.zeros((4, FEATURES), np.float32), "y": np.zeros((4, 1, 6), np.float32)}
    with pytest.raises(PockfarmError, match=r"no axis of scores, .* holds the batch, 4: it is computed across the"):
        pockfarm.fine_tune(across, None, arrays, spec=spec, steps=1)


def file_of(nodes: list[NodeProto], inputs: Mapping[str, Sequence[int | str]], stored: dict[str, np.ndarray]) -> bytes:
    """Gives `y`."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in stored.items()],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    )


def test_samples_that_are_compared_with_each_other_are_refused() -> None:
    """Their labels are places in the batch, and samples come in any order."""
    weight = np.random.default_rng(0).standard_normal((3, 2))
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["g"]),
        helper.make_node("Transpose", ["g"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["g", "t"], ["y"]),
    ]
    model = file_of(nodes, {"a": [6, 3]}, {"w": weight})
    data = {"a": np.ones((6, 3), np.float32), "y": np.arange(6)}
    with pytest.raises(PockfarmError, match=r"axes 0 and 1 of y, .* both hold the samples"):
        pockfarm.fine_tune(model, None, data, spec={"batch": 6}, steps=1)


class Tokens(nn.Module):
    """A row for each position of each sample, [samples * positions, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x).flatten(0, 1)


def test_samples_and_positions_that_share_an_axis_have_labels_by_sample() -> None:
    torch.manual_seed(0)
    module, x, y = Tokens(), torch.randn(4, 5, 3), torch.randint(0, 2, (4, 5))
    loss = nn.functional.cross_entropy(module(x), y.flatten())
    loss.backward()
    assert module.last.weight.grad is not None
    wanted = (module.last.weight - 0.1 * module.last.weight.grad).detach().numpy()
    spec = {"batch": 4, "optimizer": {"learning_rate": 0.1}}
    file = export(module, (x,), input_names=("x",), output_names=("scores",))
    for tuned in (
        pockfarm.fine_tune(module, x, (x, y), spec=spec, steps=1),
        pockfarm.fine_tune(file, None, {"x": x.numpy(), "y": y.numpy()}, spec=spec, steps=1),
    ):
        assert tuned.losses[0] == pytest.approx(loss.item(), rel=1e-6)
        (name,) = (name for name in tuned.changed if "weight" in name)
        np.testing.assert_allclose(np.asarray(tuned[name]), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("differs", [True, False])
def test_a_stored_row_for_each_sample_is_refused(differs: bool) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((4, 3)) if differs else np.ones((4, 3))
    nodes = [helper.make_node("MatMul", ["a", "w"], ["h"]), helper.make_node("Add", ["h", "rows"], ["y"])]
    model = file_of(nodes, {"a": [4, 3]}, {"w": random.standard_normal((3, 3)), "rows": rows})
    data = {"a": np.ones((4, 3), np.float32), "y": np.zeros((4, 3), np.float32)}
    spec = {"batch": 4, "loss": {"kind": "mse"}}
    if differs:
        with pytest.raises(PockfarmError, match=r"another row for each of the 4 samples of y"):
            pockfarm.fine_tune(model, None, data, spec=spec, steps=1)
    else:
        assert "w" in pockfarm.fine_tune(model, None, data, spec=spec, steps=1).changed


def test_a_fixed_batch_of_one_behind_the_positions_is_found() -> None:
    """[T, 1, C], as readers of text give it: labels are laid out as the output is."""
    weight = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["rows"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    x = np.random.default_rng(1).standard_normal((1, 4, 3)).astype(np.float32)
    labels = np.moveaxis(x @ weight, 0, 1) + 1
    spec = {"batch": 1, "loss": {"kind": "mse"}, "optimizer": {"learning_rate": 0.1}}
    tuned = pockfarm.fine_tune(file, None, {"x": x, "y": labels}, spec=spec, steps=5)
    assert tuned.losses[0] == pytest.approx(1.0, rel=1e-5)
    assert tuned.losses[-1] < 0.9
    assert "loss.batch_axis_assumed" in {warning.code for warning in tuned.warnings}
