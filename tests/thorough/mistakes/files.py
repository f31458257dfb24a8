"""Files of every kind of wrongness, beside one of each that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from examples.models import MODELS
from tests.e2e.inputs import digits


def make_files(folder: Path) -> None:
    (folder / "folder").mkdir()
    _models(folder)
    _data(folder)
    _weights(folder)
    (folder / "text.txt").write_text("these are words\n")
    (folder / "plan.yaml").write_text("name: p\nupdat: [{parameters: ['*']}]\n")


def _models(folder: Path) -> None:
    net = MODELS["small_cnn"]()
    (folder / "net.onnx").write_bytes(net)
    (folder / "mlp.onnx").write_bytes(MODELS["mlp"]())
    (folder / "cut.onnx").write_bytes(net[: len(net) // 2])
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "script.py").write_text("import torch\n\nnet = torch.nn.Linear(4, 2)\n")
    (folder / "still.onnx").write_bytes(_model("Relu", []))
    (folder / "odd.onnx").write_bytes(_model("Reluu", []))
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.zeros(64, np.uint8).tobytes(), raw=True)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    (folder / "beside.onnx").write_bytes(_model("MatMul", [weight]))


def _model(op: str, initializers: list[TensorProto]) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "logits"))
    node = helper.make_node(op, ["x", *(one.name for one in initializers)], ["logits"], name="node")
    graph = helper.make_graph([node], "net", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def _data(folder: Path) -> None:
    x, y = digits(0)
    nan = x.copy()
    nan[3, 0, 2, 1] = np.nan
    arrays: dict[str, dict[str, Any]] = {
        "good": {"x": x, "y": y},
        "bytes": {"x": (x * 255).round().astype(np.float32), "y": y},
        "far": {"x": x * 1e5, "y": y},
        "uint8": {"x": (x * 255).astype(np.uint8), "y": y},
        "double": {"x": x.astype(np.float64), "y": y},
        "half": {"x": x.astype(np.float16), "y": y},
        "from1": {"x": x, "y": y + 1},
        "labels": {"x": x, "y": y + 3},
        "negative": {"x": x, "y": y - 2},
        "nan": {"x": nan, "y": y},
        "flat": {"x": x.reshape(len(x), -1), "y": y},
        "last": {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y},
        "names": {"images": x, "labels": y},
        "few": {"x": x[:3], "y": y[:3]},
        "uneven": {"x": x, "y": y[:-5]},
        "onehot": {"x": x, "y": np.eye(10, dtype=np.float32)[y]},
        "real": {"x": x, "y": y.astype(np.float32)},
        "unlabelled": {"x": x},
        "words": {"x": x, "y": np.array([str(one) for one in y])},
        "none": {},
        "empty": {"x": x[:0], "y": y[:0]},
        "column": {"x": np.asfortranarray(x), "y": y},
        "swapped": {"x": y, "y": x},
        "capital": {"X": x, "Y": y},
        "alike": {"x": x, "y": np.zeros_like(y)},
        "zeros": {"x": np.zeros_like(x), "y": y},
        "unsigned": {"x": x, "y": y.astype(np.uint32)},
        "complex": {"x": x.astype(np.complex64), "y": y},
        "named": {"x": x[:40], "y": y[:40]},
        "folder/named": {"x": x[40:80], "y": y[40:80]},
    }
    for name, held in arrays.items():
        np.savez(folder / f"{name}.npz", **held)
    np.save(folder / "alone.npy", x)
    (folder / "table.csv").write_text("x,y\n0.5,1\n")
    (folder / "copy.npz").write_bytes((folder / "good.npz").read_bytes())
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:5000])


def _weights(folder: Path) -> None:
    own = _tensors(folder / "net.onnx")
    save_file(_tensors(folder / "mlp.onnx"), folder / "mlp.safetensors")
    save_file({f"module.{name}": array for name, array in own.items()}, folder / "prefix.safetensors")
    save_file({name: own[name] for name in ("conv.weight", "conv.bias")}, folder / "part.safetensors")
    save_file({**own, "conv.weight": np.zeros((3, 3), np.float32)}, folder / "shape.safetensors")
    save_file({**own, "conv.weight": own["conv.weight"].astype(np.float64)}, folder / "double.safetensors")


def _tensors(path: Path) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one).copy() for one in onnx.load(path).graph.initializer}
