"""What the sides of a comparison share on disk: the exported model, one batch of data, and a portable form of both.

build/bench/models/NAME/       model.onnx, state.pt (PyTorch), stamp
build/bench/work/NAME/         NAME.npy of each input, labels.npy, inputs.json, learned-PLAN.json,
                               graph.json + arrays/ (TensorFlow and JAX)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import definitions, held_out, models
from benchmarks.definitions import Model, Workload
from benchmarks.models import MODELS
from compiler.errors import PlanError
from compiler.export.training import OnnxNames
from compiler.frontend.exporters.restore import restore_parameters
from compiler.frontend.file.parse import parse_model
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from compiler.passes import CLEAN_UP, FORWARD_PASSES, run_passes
from compiler.passes.layout import sink_transposes
from compiler.rewriting.passes import until_stable
from compiler.spec.documents import SparsePlan
from compiler.step.plan import resolve_plan
from tests.models import export

BENCH = Path("build/bench")
PLAIN_PASSES = (until_stable(CLEAN_UP), sink_transposes, until_stable(CLEAN_UP))
"""Without our fusions: other frameworks get plain operators, and fuse them as they can."""
PLANS = ("full", "sparse", "bias-only", "last-layer")


@dataclass(frozen=True)
class Prepared:
    """A workload on disk. `folder` holds data and the portable graph, `model` the ONNX bytes."""

    name: str
    workload: Workload
    folder: Path
    onnx_path: Path
    state_path: Path

    @property
    def definition(self) -> Model:
        """The model's definition."""
        return MODELS[self.workload.model]

    def learned_path(self, plan: str) -> Path:
        """What learns under `plan`: names in the module and in the ONNX file. Not there: nothing would learn."""
        return self.folder / f"learned-{plan}.json"


def prepare(name: str, workload: Workload) -> Prepared:
    """Export, draw and write whatever is not there yet."""
    onnx_path, state_path = export_once(workload.model)
    folder = BENCH / "work" / name
    prepared = Prepared(name, workload, folder, onnx_path, state_path)
    stamp = folder / "stamp"
    wanted = hashlib.sha256(onnx_path.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        _write_work(prepared)
        stamp.write_text(wanted)
    return prepared


def plan_of(model: str, plan: str) -> SparsePlan:
    """The plan of that name for a bench model."""
    if plan != "sparse":
        return SparsePlan.of_preset(plan)
    rules = [{"parameters": list(globs), "kind": kind} for globs, kind in MODELS[model].sparse]
    return SparsePlan.parse({"name": "sparse", "update": rules})


def export_once(name: str) -> tuple[Path, Path]:
    """(model.onnx, state.pt) of a bench model, exported by PyTorch's dynamo exporter at opset 18."""
    folder = BENCH / "models" / name
    onnx_path, state_path, stamp = folder / "model.onnx", folder / "state.pt", folder / "stamp"
    defined = b"".join(Path(str(one.__file__)).read_bytes() for one in (definitions, held_out, models))
    wanted = hashlib.sha256(defined + torch.__version__.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return onnx_path, state_path
    folder.mkdir(parents=True, exist_ok=True)
    module = models.build(name)
    feeds = MODELS[name].draw(np.random.default_rng(0), 2)
    inputs = tuple(torch.from_numpy(array) for array in feeds.values())
    onnx_path.write_bytes(export(module, inputs, input_names=tuple(feeds)))
    torch.save(module.state_dict(), state_path)
    stamp.write_text(wanted)
    return onnx_path, state_path


def _write_work(prepared: Prepared) -> None:
    rng = np.random.default_rng(0)
    model, batch = prepared.definition, prepared.workload.batch
    feeds = model.draw(rng, batch)
    for input_name, array in feeds.items():
        np.save(prepared.folder / f"{input_name}.npy", array)
    (prepared.folder / "inputs.json").write_text(json.dumps(list(feeds)))
    np.save(prepared.folder / "labels.npy", rng.integers(0, model.labels_below, (batch, *model.label_shape)))
    data = prepared.onnx_path.read_bytes()
    imported = import_model(data, input_shapes={}, batch=batch, batch_norm="fold")
    graph = run_passes(imported, FORWARD_PASSES)
    in_file = _names_in_file(data)
    for plan in PLANS:
        try:
            resolved = resolve_plan(graph, plan_of(prepared.workload.model, plan))
            learned = [graph.parameters[value].name for value in resolved]
        except PlanError as problem:  # a model without biases has no bias-only step
            prepared.learned_path(plan).unlink(missing_ok=True)
            print(f"  {prepared.name} has no {plan} step: {problem}", flush=True)
            continue
        sides = {"module": learned, "file": [in_file.get(name, name) for name in learned]}
        prepared.learned_path(plan).write_text(json.dumps(sides))
    write_portable(run_passes(imported, PLAIN_PASSES), prepared.folder)


def _names_in_file(model: bytes) -> dict[str, str]:
    """Parameter -> its initializer, where the exporter stored it under another name."""
    stored = parse_model(model)
    nodes = restore_parameters(stored).nodes
    added = len(nodes) - len(stored.nodes)
    views = {node.outputs[0]: node.inputs[0] for node in nodes[:added]}
    return {
        views.get(own, own): name
        for before, after in zip(stored.nodes, nodes[added:], strict=True)
        for name, own in zip(before.inputs, after.inputs, strict=False)
        if name != own
    }


def write_portable(graph: Graph, folder: Path) -> None:
    """The forward graph as JSON and `.npy` files, for processes that have neither ONNX nor the compiler."""
    arrays, names = folder / "arrays", OnnxNames(graph.names)
    arrays.mkdir(exist_ok=True)
    files = {}
    for index, (value, array) in enumerate(graph.arrays.items()):
        files[names.of(value)] = f"{index}.npy"
        np.save(arrays / files[names.of(value)], array)
    nodes = [
        {
            "op": node.op,
            "inputs": names.all_of(node.inputs),
            "output": names.of(node.output),
            "attrs": _plain(node.attrs),
        }
        for node in graph
    ]
    body = {
        "inputs": names.all_of(graph.inputs),
        "output": names.of(graph.outputs[0]),
        "parameters": names.all_of(graph.parameters),
        "arrays": files,
        "nodes": nodes,
    }
    (folder / "graph.json").write_text(json.dumps(body))


def _plain(attrs: Any) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in attrs.items()}
