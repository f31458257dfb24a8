"""Settings of a training run through `fine_tune`: schedule, validation, early stopping, and divergence."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pockfarm
from compiler.trained.bring_back import manifest_of
from pockfarm.errors import Diverged, UsageError

SPEC = {"batch": 8, "optimizer": {"kind": "sgd", "learning_rate": 0.2}}


def task() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """What is learned from the first three quarters is wrong for the rest."""
    torch.manual_seed(0)
    module = nn.Sequential(OrderedDict(first=nn.Linear(6, 16), act=nn.Tanh(), last=nn.Linear(16, 2)))
    x = torch.randn(64, 6)
    y = (x[:, 0] > 0).long()
    y[48:] = 1 - y[48:]
    return module, x, y


def test_the_best_validated_state_comes_back() -> None:
    module, x, y = task()
    tuned = pockfarm.fine_tune(
        module,
        x[:8],
        (x, y),
        spec=SPEC,
        epochs=20,
        schedule="cosine",
        warmup_steps=4,
        final_ratio=0.1,
        validation=0.25,
        eval_every=5,
        patience=3,
        save_best=True,
    )
    losses = [one["loss"] for one in tuned.validations]
    best = losses.index(min(losses))
    assert tuned.outcome == "stopped_early"
    assert len(losses) == best + 1 + 3
    assert tuned.weights_step == 5 * (best + 1) < len(tuned.losses) == len(tuned.learning_rates)
    assert tuned.learning_rates[:5] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(torch.optim.SGD(module.parameters(), lr=0.2), 116, eta_min=0.02)
    expected = []
    for _ in tuned.learning_rates[4:]:
        expected.append(cosine.get_last_lr()[0])
        cosine.optimizer.step()
        cosine.step()
    assert tuned.learning_rates[4:] == pytest.approx(expected, rel=1e-6), "an epoch is 6 steps of what is not held out"
    module.load_state_dict(tuned)
    with torch.no_grad():
        assert F.cross_entropy(module.double()(x[48:].double()), y[48:]).item() == pytest.approx(min(losses), rel=1e-5)


def test_the_best_by_data_of_its_own_comes_back() -> None:
    """Twelve samples of their own, a batch and a half; an epoch is of all of the data."""
    module, x, y = task()
    held_out = (x[48:60] * 0.5, y[48:60])
    tuned = pockfarm.fine_tune(
        module,
        x[:8],
        (x[:48], y[:48]),
        spec=SPEC,
        epochs=2,
        validation_data={"x": held_out[0], "y": held_out[1]},
        eval_every=2,
        save_best=True,
    )
    losses = [one["loss"] for one in tuned.validations]
    assert [(one["step"], one["samples"]) for one in tuned.validations] == [(step, 12) for step in range(2, 13, 2)]
    assert tuned.weights_step == 2 * (losses.index(min(losses)) + 1)
    module.load_state_dict(tuned)
    with torch.no_grad():
        logits = module.double()(held_out[0].double())
    assert F.cross_entropy(logits, held_out[1]).item() == pytest.approx(min(losses), rel=1e-5)
    best = tuned.validations[losses.index(min(losses))]
    assert best["accuracy"] == pytest.approx((logits.argmax(1) == held_out[1]).double().mean().item())


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        ((torch.zeros(4, 5), torch.zeros(4).long()), "validation_data: the samples of 'input' have shape [5]"),
        ((torch.zeros(4, 6), torch.zeros(3).long()), "validation_data: arrays have different numbers of samples"),
    ],
)
def test_data_to_validate_on_that_does_not_fit_is_told_by_its_name(held_out: Any, said: str) -> None:
    module, x, y = task()
    with pytest.raises(UsageError) as told:
        pockfarm.fine_tune(module, x[:8], (x, y), spec=SPEC, validation_data=held_out)
    assert said in str(told.value)


def test_classes_that_there_are_not_end_the_run_before_it_trains() -> None:
    module, x, y = task()
    lines: list[str] = []
    with pytest.raises(UsageError, match=r"^validation_data: .* 'y' .* 2 to 3; .* 2 classes"):
        pockfarm.fine_tune(module, x[:8], (x, y), spec=SPEC, validation_data=(x, y + 2), progress=lines.append)
    assert not [line for line in lines if line.startswith("step ")]


def test_a_schedule_of_the_spec_is_what_a_run_takes_unless_told() -> None:
    module, x, y = task()
    spec = {**SPEC, "schedule": {"kind": "linear", "warmup_steps": 2, "final_ratio": 0.5}}
    tuned = pockfarm.fine_tune(module, x[:8], (x, y), spec=spec, steps=6)
    assert tuned.learning_rates == pytest.approx([0.0, 0.1, 0.2, 0.175, 0.15, 0.125])
    assert manifest_of(tuned.bundle)["schedule"] == spec["schedule"]
    told = pockfarm.fine_tune(module, x[:8], (x, y), spec=spec, steps=2, schedule="constant", warmup_steps=0)
    assert told.learning_rates == pytest.approx([0.2, 0.2])


def test_training_that_diverges_is_told_with_its_losses() -> None:
    module, x, y = task()
    with pytest.raises(Diverged, match=r"^training diverged at step \d+: ") as failure:
        pockfarm.fine_tune(module, x[:8], (x, y), spec=SPEC, steps=200, learning_rate=1e6)
    training, losses = failure.value.report["training"], failure.value.report["losses"]
    assert (training["outcome"], training["steps"]) == ("diverged", len(losses))
    assert losses[0] < 2
    assert (failure.value.state, failure.value.code, failure.value.exit_code) == ("succeeded", "train.diverged", 4)
    settings: dict[str, Any] = {"validation": 0.25, "eval_every": 1, "save_best": True}
    tuned = pockfarm.fine_tune(module, x[:8], (x, y), spec=SPEC, steps=200, learning_rate=1e6, **settings)
    assert tuned.outcome == "diverged"
    assert tuned.weights_step == min(tuned.validations, key=lambda validation: validation["loss"])["step"]
    assert [warning.code for warning in tuned.warnings] == ["fine_tune.diverged"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shedule": "linear"}, "shedule: no such setting; did you mean 'schedule'?"),
        ({"schedule": "step"}, "schedule: must be one of constant, cosine, linear"),
        ({"patience": 3}, "patience: must be left out, or `validation`"),
        ({"validation_data": ([], []), "validation": 0.5}, "validation_data: must be left out, or `validation`"),
        ({"validation": 1.5}, "validation: must be above 0, at most 0.9"),
    ],
)
def test_a_setting_that_cannot_be_is_told_before_anything_is_built(given: dict[str, Any], message: str) -> None:
    module, x, y = task()
    with pytest.raises(UsageError) as refusal:
        pockfarm.fine_tune(module, x[:8], (x, y), spec=SPEC, **given)
    assert message in str(refusal.value)


def test_a_warm_up_that_the_run_does_not_come_out_of_is_told() -> None:
    """By the spec's schedule; its rates are what it says."""
    module, x, y = task()
    spec = {**SPEC, "schedule": {"warmup_steps": 5}}
    tuned = pockfarm.fine_tune(module, x[:8], (x, y), spec=spec, steps=4, learning_rate=0.1)
    assert [(warning.code, warning.where) for warning in tuned.warnings] == [("run.only-warmup", "warmup_steps")]
    assert tuned.learning_rates == pytest.approx([0, 0.02, 0.04, 0.06])
    assert pockfarm.fine_tune(module, x[:8], (x, y), spec=spec, steps=6).warnings == ()
