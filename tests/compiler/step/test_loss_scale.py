"""By how much a loss is scaled, and who may say so."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compiler.errors import SpecError
from compiler.frontend.importer import import_model
from compiler.spec.documents import TrainingSpec
from compiler.step.loss import attach_loss
from compiler.step.loss_scale import loss_scale
from examples.models import MODELS

F16 = {"compute": "f16"}


def scale(precision: Mapping[str, object], loss: Mapping[str, object]) -> float:
    """Of three layers with 4 classes, at a batch of 48."""
    spec = TrainingSpec.parse({"batch": 48, "precision": precision, "loss": loss})
    graph = import_model(MODELS["mlp"](features=8, classes=4), input_shapes={}, batch=48, batch_norm="frozen")
    return loss_scale(attach_loss(graph, spec.loss), spec.precision)


@pytest.mark.parametrize(
    ("loss", "counted"),
    [({"kind": "cross_entropy"}, 32), ({"kind": "mse"}, 128), ({"kind": "mse", "reduction": "sum"}, 1)],
)
def test_a_scale_follows_what_the_loss_is_a_mean_of(loss: Mapping[str, object], counted: int) -> None:
    assert scale(F16, loss) == 1024 * counted
    assert scale({"compute": "bf16"}, loss) == 1


def test_a_scale_that_is_asked_for_is_taken() -> None:
    assert scale({**F16, "loss_scale": 10}, {"kind": "mse"}) == 10


def test_no_scale_is_taken_that_changes_nothing() -> None:
    with pytest.raises(SpecError, match="nothing is float16"):
        scale({"compute": "bf16", "loss_scale": 8}, {"kind": "mse"})
