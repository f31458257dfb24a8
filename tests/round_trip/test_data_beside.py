"""Models whose tensors lie beside the ONNX file: out by mapping them, and back beside the file that is written."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import pockfarm
from compiler.frontend.file.prescan import ModelLimits
from compiler.origins import Origins, Reading
from compiler.trained import files as trained_files
from compiler.trained.stored import StoredModel
from pockfarm.errors import UsageError
from pockfarm.fine_tuning import torch_module
from tests.round_trip.test_fine_tune import SPEC, Tied, after_a_step, assert_like

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def xy() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 5, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def answer(path: Path, x: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module counts as large."""
    monkeypatch.setattr(torch_module, "LARGE_BYTES", 0)


@pytest.mark.usefixtures("large")
def test_a_large_module_comes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x, y) = wide().eval(), xy()
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    assert_like(tuned, after_a_step(module, x, y))
    tuned.save_onnx(tmp_path / "back.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.onnx", "back.onnx.data"]
    module.load_state_dict(tuned)
    with torch.no_grad():
        logits = module(x).numpy()
    assert np.allclose(answer(tmp_path / "back.onnx", x), logits, atol=1e-6)
    (tmp_path / "one.onnx").write_bytes(tuned.onnx)
    assert np.array_equal(answer(tmp_path / "one.onnx", x), answer(tmp_path / "back.onnx", x))
    onnx.checker.check_model(str(tmp_path / "back.onnx"))
    monkeypatch.setattr(trained_files, "DEFAULT_LIMITS", ModelLimits(model_bytes=1000))
    with pytest.raises(UsageError, match=r"one ONNX file holds 1,000\n.*save_onnx"):
        _ = tuned.onnx
    with pytest.raises(UsageError, match="No such file"):
        tuned.save_onnx(tmp_path / "gone" / "back.onnx")


@pytest.mark.usefixtures("large")
def test_a_tied_table_of_a_large_module_comes_home() -> None:
    torch.manual_seed(0)
    module = Tied()
    x, y = torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4, 6))
    assert_like(pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1), after_a_step(module, x, y))


def test_a_file_with_its_data_beside_it_comes_home_and_stays(tmp_path: Path) -> None:
    module, (x, y) = wide().eval(), xy()
    program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    program.save(tmp_path / "model.onnx", external_data=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "model.onnx.data" in before
    tuned = pockfarm.fine_tune(tmp_path / "model.onnx", data=(x, y), spec={**SPEC, "batch": 8}, steps=1)
    want = after_a_step(module, x, y)
    assert all(np.allclose(tuned[name], exact, rtol=1e-5, atol=1e-6) for name, exact in want.items())
    tuned["0.weight"] += 0.0  # its own, not a view of a file
    tuned.save_onnx(tmp_path / "back.onnx")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tuned.items()})
    with torch.no_grad():
        assert np.allclose(answer(tmp_path / "back.onnx", x), module(x).numpy(), atol=1e-6)
    tuned.save_onnx(tmp_path / "model.onnx")  # its own data are read while they are replaced
    assert np.array_equal(answer(tmp_path / "model.onnx", x), answer(tmp_path / "back.onnx", x))


def test_what_a_file_stored_once_is_added_behind_its_data(tmp_path: Path) -> None:
    weight = np.arange(4096, dtype="f4").reshape(64, 64)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("MatMul", ["h", "w"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 64]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weight, "w")])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    readings = (Reading("h", 1, "w", "first"), Reading("y", 1, "w", "second"))
    stored = StoredModel(
        (tmp_path / "m.onnx").read_bytes(), Origins(readings=readings), {"m.data": (tmp_path / "m.data").read_bytes()}
    )
    files, added = stored.with_tensors({"first": weight * 2, "second": weight.T.copy()})
    files.save(tmp_path / "back.onnx")
    x = torch.randn(1, 64)
    want = x.numpy() @ (weight * 2) @ weight.T
    assert np.allclose(answer(tmp_path / "back.onnx", x), want, rtol=1e-4, atol=np.abs(want).max() * 1e-5)
    assert len(added) == 1


def test_the_state_is_kept_by_torch_save_and_loads_alone() -> None:
    module, (x, y) = wide(), xy()
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    buffer = io.BytesIO()
    torch.save(tuned, buffer)
    buffer.seek(0)
    module.load_state_dict(torch.load(buffer, weights_only=True))
    copy.deepcopy(tuned)
    assert torch.equal(module.state_dict()["0.weight"], tuned["0.weight"])


def test_too_little_room_is_told_before_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "ROOM_FACTOR", 1 << 60)
    x, y = xy()
    with pytest.raises(UsageError, match=r"files need about .* free\n  set TMPDIR"):
        pockfarm.fine_tune(wide(), x, (x, y), steps=1)
