"""ONNX Runtime Training: artifacts made from the exported ONNX model. Options: onnx, inputs.

Its SGD has no momentum, so it does a little less work than the others, and only its first two losses can be compared.
"""

from __future__ import annotations

import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from steps import Task, train


def training_package() -> Any:
    """`onnxruntime.training` without its `__init__`, which imports PyTorch for parts that are not used here."""
    package = types.ModuleType("onnxruntime.training")
    package.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = package
    from onnxruntime.training import api, artifacts

    return types.SimpleNamespace(api=api, artifacts=artifacts)


def flat_logits(model: Any) -> Any:
    """The model with its logits as [rows, classes], which is what the loss takes."""
    logits = model.graph.output[0]
    shape = logits.type.tensor_type.shape.dim
    if len(shape) == 2:
        return model
    classes = shape[-1].dim_value
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([-1, classes], np.int64), "flat_shape"))
    model.graph.node.append(helper.make_node("Reshape", [logits.name, "flat_shape"], ["flat_logits"]))
    output = helper.make_tensor_value_info("flat_logits", onnx.TensorProto.FLOAT, ["rows", classes])
    del model.graph.output[:]
    model.graph.output.append(output)
    return model


def with_statistics(model: Any) -> Any:
    """The model with the optional outputs of its layer norms, without which they have no gradient here."""
    for node in model.graph.node:
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_inverse_deviation"])
    return model


def main() -> None:
    """One process of a comparison."""
    task = Task.from_arguments()
    training = training_package()
    model = with_statistics(flat_logits(onnx.load(task.options["onnx"])))
    learned = set(task.learned("file"))
    frozen = [item.name for item in model.graph.initializer if item.name not in learned]
    with tempfile.TemporaryDirectory(prefix="pockfarm-ort-") as folder:
        training.artifacts.generate_artifacts(
            model,
            requires_grad=sorted(learned),
            frozen_params=[name for name in frozen if _is_real(model, name)],
            loss=training.artifacts.LossType.CrossEntropyLoss,
            optimizer=training.artifacts.OptimType.SGD,
            artifact_directory=folder,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = task.threads
        state = training.api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = training.api.Module(f"{folder}/training_model.onnx", state, session_options=options)
        optimizer = training.api.Optimizer(f"{folder}/optimizer_model.onnx", module)
    optimizer.set_learning_rate(task.learning_rate)
    batch = [task.feed(name) for name in task.options["inputs"]] + [task.labels().reshape(-1)]
    module.train()

    def step() -> float:
        loss = module(*batch)
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    train(step)


def _is_real(model: Any, name: str) -> bool:
    kinds = {item.name: item.data_type for item in model.graph.initializer}
    return bool(kinds[name] == onnx.TensorProto.FLOAT)


if __name__ == "__main__":
    main()
