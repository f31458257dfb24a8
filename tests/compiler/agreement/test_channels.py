"""Chosen channels learn as PyTorch's autograd says in float64, everything else keeps its bits, and files keep order."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pockfarm
from compiler.bundle.plan_table import learning_label
from compiler.frontend.importer import import_model
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.rewriting.passes import Trace
from compiler.step.arranged import with_ranges
from compiler.step.plan import resolve_plan
from tests.compiler.agreement.channel_cases import CASES, DECODER, Chosen, Decoder, decoder
from tests.compiler.agreement.course import course, run_step_at
from tests.compiler.agreement.harness import (
    Built,
    StepResult,
    build,
    free_run,
    problems,
)
from tests.compiler.agreement.onnx_step import OnnxStep
from tests.compiler.agreement.step_binary import native_target
from tests.sample import sample

GRADIENTS = ("matmul", "conv2d_weight_grad", "depthwise_weight_grad", "reduce_sum")


@pytest.mark.parametrize("name", sample(sorted(CASES), {"grouped"}))
def test_channels_learn_as_in_float64(name: str, tmp_path: Path, kernel_cache: Path) -> None:
    """Two steps of the binary, the second with momentum, and ten of the training graph in ONNX Runtime."""
    chosen = CASES[name]()
    _check_gradients(chosen)
    built = replace(build(chosen.case, native_target(), tmp_path, kernel_cache), plan=chosen.windows)
    for at in course(built, 2):
        result = run_step_at(built, at)
        assert not problems(built, result)
        assert not _changed_bits(built, result)
    batches = built.case.batches(10)
    losses, _ = OnnxStep.of(built.binary.folder).train(built.reference.initial(), batches)
    np.testing.assert_allclose(losses, free_run(built, batches, torch.float64), rtol=1e-3)


def _changed_bits(built: Built, result: StepResult) -> list[str]:
    """Parameters of which something changed that does not learn, be it the sign of a zero."""
    changed = []
    for name in built.reference.initial():
        same = result.after[name].view(np.uint32) == result.before[name].view(np.uint32)
        if name in built.plan:
            same[built.plan[name]] = True
        changed += [] if same.all() else [name]
    return changed


def _check_gradients(chosen: Chosen) -> None:
    """No product is larger than what learns, and parameters that cannot be side by side are told by name."""
    trace = Trace()
    imported = import_model(chosen.case.model, input_shapes={}, batch=2, batch_norm="fold")
    forward = run_passes(imported, FORWARD_PASSES)
    graph, plan = with_ranges(forward, resolve_plan(forward, chosen.case.plan), trace)
    step = derive_training_step(graph, plan, chosen.case.spec, trace)
    told = [one.where for of, one in trace.declined() if of == "arrange_channels"]
    assert sorted(told) == sorted(chosen.copied)
    assert any(one.code == "plan.channels_copied" for one in graph.warnings) == bool(chosen.copied)
    weights = chosen.case.reference.initial()
    parts = {graph.parameters[value].name: (graph.parameters[value], part) for value, part in plan.items()}
    for parameter, window in chosen.windows.items():
        own, part = parts[parameter]
        assert part.elements(own.shape) == weights[parameter][window].size
        counts = f" {len(window[-1])} of {weights[parameter].shape[len(window) - 1]} "  # type: ignore[arg-type]
        assert counts in learning_label(own, part)
        made = [node for node in step.graph.nodes if node.parameter == parameter and node.op in GRADIENTS]
        sizes = {step.graph.types[node.outputs[0]].size for node in made}
        assert sizes <= {weights[parameter][window].size}, parameter
        assert sizes or parameter == "embed.weight"


def test_a_module_comes_back_with_its_channels_in_place() -> None:
    """`fine_tune` beside PyTorch's own steps: heads, hidden units and channels, loaded strictly."""
    torch.manual_seed(5)
    module = Decoder().eval()
    x, y = torch.randint(0, 100, (2, 16)), torch.randint(0, 4, (2,))
    spec: dict[str, Any] = {"batch": 2, "threads": 2, "optimizer": {"kind": "sgd", "learning_rate": 0.5}}
    tuned = pockfarm.fine_tune(copy.deepcopy(module), x, (x, y), plan=DECODER, spec=spec, steps=3)
    windows = decoder().windows
    own = copy.deepcopy(module).double()
    for _ in range(3):
        own.zero_grad()
        nn.functional.cross_entropy(own(x), y).backward()
        with torch.no_grad():
            for name, parameter in own.named_parameters():
                if name in windows and parameter.grad is not None:
                    window = tuple(
                        torch.as_tensor(one) if isinstance(one, np.ndarray) else one for one in windows[name]
                    )
                    parameter[window] -= 0.5 * parameter.grad[window]
    back = Decoder()
    back.load_state_dict(tuned, strict=True)
    for (name, before), (_, found), (_, wanted) in zip(
        module.named_parameters(), back.named_parameters(), own.named_parameters(), strict=True
    ):
        moved = (wanted - before.double()).detach()
        assert torch.linalg.norm(found.double() - wanted) <= 1e-4 * torch.linalg.norm(moved) + 1e-6, name
        assert name in windows or torch.equal(before.view(torch.int32), found.view(torch.int32)), name
        assert name not in windows or moved.abs().max() > 1e-4, name
