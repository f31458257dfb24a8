"""`Client.fine_tune` on a real farm: a module goes out, and comes home from a device with all its tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pockfarm.errors import UsageError
from pockfarm.values import optional_number, part
from tests.e2e.conftest import LiveFarm
from tests.e2e.inputs import SPEC, digits

pytestmark = [
    pytest.mark.xdist_group("farm"),
    # `up` leaves the farm running on purpose
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    # PyTorch's exporter
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
]
STEPS = 100


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1))
    return nn.Sequential(*layers, nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))


def test_a_module_comes_home_from_a_device_as_it_predicts_there(live: LiveFarm) -> None:
    module = network()
    module[0].weight.requires_grad_(False)
    x, y = (torch.from_numpy(array) for array in digits(0))
    x_held, y_held = (torch.from_numpy(array[:150]) for array in digits(1))
    lines: list[str] = []
    tuned = live.client.fine_tune(
        module,
        x[:32],
        (x, y),
        spec=SPEC,
        device=live.host.id,
        steps=STEPS,
        progress=lines.append,
        validation_data=(x_held, y_held),
        eval_every=STEPS // 2,
    )
    own = copy.deepcopy(module).eval()
    own.load_state_dict(tuned, strict=True)
    with torch.no_grad():
        logits, held = own(x), own(x_held)
    after = part(tuned.report, "evaluation_after")
    loss, accuracy = optional_number(after, "loss"), optional_number(after, "accuracy")
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits.double(), y)), rel=1e-5)
    assert accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()), abs=1.5 / len(y))
    assert accuracy is not None
    assert accuracy > 0.7
    assert [(one["step"], one["samples"]) for one in tuned.validations] == [(STEPS // 2, 150), (STEPS, 150)]
    of_own_data = float(nn.functional.cross_entropy(held.double(), y_held))
    assert tuned.validations[-1]["loss"] == pytest.approx(of_own_data, rel=1e-5), "on the user's own arrays"
    assert tuned.validations[-1]["accuracy"] == pytest.approx(
        float((held.argmax(1) == y_held).float().mean()), abs=0.01
    )
    assert torch.equal(tuned["0.weight"], module[0].weight)
    assert len(tuned.losses) == STEPS
    assert [warning.code for warning in tuned.warnings if warning.code == "fine_tune.frozen"]
    assert lines[0] == "exporting"
    assert f"training {STEPS} steps" in lines


def test_a_device_that_is_not_there(live: LiveFarm) -> None:
    with pytest.raises(UsageError, match="no device of the farm is meant"):
        live.client.fine_tune(network(), torch.zeros(4, 1, 8, 8), ([], []), device_class="toaster")
