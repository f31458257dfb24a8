"""A delta of what `fine_tune` gave is that, bit for bit, on the state before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.numpy import load

import pockfarm
from compiler.trained.delta import read_delta
from pockfarm.errors import UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_a_module_goes_out_and_its_delta_gives_the_same_state(tmp_path: Path) -> None:
    """Applied to the state before, it gives what `fine_tune` gave; the module itself has learned by then."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x, y = torch.randn(8, 8), torch.arange(8) % 3
    plan = "update: [{parameters: '0.weight', ratio: 0.25}, {parameters: '2.bias'}]"
    tuned = pockfarm.fine_tune(module, x, (x, y), plan=plan, spec="optimizer: {learning_rate: 0.1}", steps=2)
    module.load_state_dict(tuned)
    tuned.save_delta(tmp_path / "delta")
    assert {name: array.shape for name, array in load((tmp_path / "delta").read_bytes()).items()} == {
        "0.weight": (16, 2),
        "2.bias": (3,),
    }
    assert read_delta((tmp_path / "delta").read_bytes()).model.startswith("sha256:")
    whole = pockfarm.apply_delta(before, tmp_path / "delta")
    module.load_state_dict(whole, strict=True)
    assert all(torch.equal(whole[name], tensor) for name, tensor in tuned.items())
    with pytest.raises(UsageError, match="another"):
        pockfarm.apply_delta(tuned, tmp_path / "delta")
