"""LoRA and DoRA: each step as `peft`'s own modules in float64, and a run as two runs of `peft` in float32."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.compiler.agreement.adapters import CASES, build_adapters
from tests.compiler.agreement.course import course, run_step_at
from tests.compiler.agreement.harness import (
    Batch,
    Built,
    Optimizer,
    StepResult,
    problems,
    start_problems,
    to_checkpoint,
)
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.reference import mean_loss
from tests.sample import sample
from tests.sharing import sharing

STEPS = 3
RUN, PASSES = 20, 5
ROUNDING = 2.0**-22
"""Of a loss: two float32 numbers that are equal but for the last bits."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Built:
    """A compiled case, whose module is `peft`'s."""
    return build_adapters(CASES[request.param](), tmp_path_factory.mktemp("step"), kernel_cache)


def _cases(names: Iterable[str], kept: Collection[str]) -> pytest.MarkDecorator:
    """The tests of one case stay on one worker and share its step."""
    listed = sample(sharing("adapters", [(name,) for name in names]), kept)
    return pytest.mark.parametrize("built", listed, indirect=True, scope="module")


@_cases(sorted(CASES), {"table-lora"})
def test_steps_agree_with_peft_in_float64(built: Built) -> None:
    """From adapters that have learned something: what begins as zeros is drawn."""
    assert not start_problems(built.reference.initial(), built.binary.checkpoint())
    rng = np.random.default_rng(3)
    weights = {name: array.astype(np.float64) for name, array in built.reference.initial().items()}
    for name in built.plan:
        if not weights[name].any():
            weights[name] = 0.1 * rng.standard_normal(weights[name].shape)
    wrong = []
    for at in course(built, STEPS, weights):
        result = run_step_at(built, at)
        wrong += problems(built, result)
    assert not wrong
    same_on_onnx_runtime(built.binary, built.binary.write_data(*built.case.draw(0)))
    _a_changed_gradient_is_noticed(built, result)


def _a_changed_gradient_is_noticed(built: Built, result: StepResult) -> None:
    for name in built.plan:
        off = replace(result, gradients={**result.gradients, name: 1.01 * result.gradients[name]})
        assert problems(built, off), f"nobody noticed another gradient of {name}"


@_cases(["bert-lora"], {"bert-lora"})
def test_a_run_is_as_close_to_peft_as_peft_to_itself(built: Built) -> None:
    """The losses of 20 steps of AdamW: the binary beside `peft` with PyTorch's own optimizer, all in float32.

    How far two float32 runs are apart is measured: `peft` once more with the samples of each batch in reverse.
    """
    batches = built.case.batches(RUN // PASSES) * PASSES
    feeds = {name: np.concatenate([batch[0][name] for batch in batches]) for name in batches[0][0]}
    data = built.binary.write_data(feeds, np.concatenate([batch[1] for batch in batches]))
    weights = built.reference.initial()
    mine, _ = built.binary.train(to_checkpoint(built, weights, Optimizer(built).fresh(weights)), RUN, data)
    theirs, turned = (np.array(_by_peft(built, batches, order)) for order in (1, -1))
    spread = float(np.abs(turned - theirs).max())
    apart = float(np.abs(np.array(mine) - theirs).max())
    print(f"losses {theirs[0]:.4f} to {theirs[-1]:.4f}; apart {apart:.2g}, peft from itself {spread:.2g}")
    assert np.ptp(theirs) > 100 * spread, "nothing was learned"
    assert apart <= 3 * spread + ROUNDING * float(theirs.max())


def _by_peft(built: Built, batches: list[Batch], order: int) -> list[float]:
    reference = built.reference
    assert isinstance(reference, ModuleReference)
    module = copy.deepcopy(reference.module)
    settings = built.case.optimizer
    learning = [tensor for tensor in module.parameters() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=float(settings["learning_rate"]))  # type: ignore[arg-type]
    losses = []
    for feeds, labels in batches:
        optimizer.zero_grad()
        given = [torch.from_numpy(feeds[name][::order].copy()) for name in reference.inputs]
        loss = mean_loss(reference.loss, module(*given), torch.from_numpy(labels[::order].copy()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
