"""`dropout: train` of a module: what drops values in PyTorch's training mode drops them in a step, and nowhere else.

The first loss is that of the weights as they are, with a mask; with a tiny learning rate so are those after it. PyTorch
in training mode, from other seeds, gives the distribution that they must follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pockfarm
from tests.round_trip.brought import Brought
from tests.round_trip.check import by_binary
from tests.sample import sample

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
STEPS = 60
TINY = {"dropout": "train", "batch_norm": "frozen", "optimizer": {"kind": "sgd", "learning_rate": 1e-9}}


class Functional(nn.Module):
    """Dropout without a module of its own, and a norm that stays in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(functional.dropout(self.norm(self.inner(x)), 0.4, training=self.training))


class Attention(nn.Module):
    """As `transformers` writes it: a probability that is 0 unless the module trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(x).unflatten(-1, (1, 4, 4))
        mixed = functional.scaled_dot_product_attention(parts, parts, parts, dropout_p=0.4 if self.training else 0.0)
        return self.outer(mixed.flatten(1))


class Channels(nn.Module):
    """Whole channels are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.outer = nn.Conv2d(1, 8, (2, 2)), nn.Dropout2d(0.4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.drop(self.inner(x.unflatten(-1, (1, 2, 3)))).flatten(1))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "functional": Functional,
    "attention": Attention,
    "channels": Channels,
}


def xy() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=generator) * 2, torch.randint(0, 4, (8,), generator=generator)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    module = MODULES[name]()
    with torch.no_grad():
        for one in module.parameters():
            one.mul_(2)
    return module.eval()


def losses_of_pytorch(module: nn.Module, x: Tensor, y: Tensor, draws: int = 2000) -> np.ndarray:
    module.train()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found = [float(functional.cross_entropy(module(x), y)) for _ in range(draws)]
    module.eval()
    return np.array(found)


@pytest.mark.parametrize("name", sample(MODULES, {"attention", "channels"}))
def test_a_step_drops_as_pytorch_does_and_evaluation_does_not(name: str) -> None:
    module, (x, y) = made(name), xy()
    exact = losses_of_pytorch(module, x, y)
    module.train()
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=TINY, steps=STEPS, seed=5)
    assert module.training
    module.eval()
    found = np.array(tuned.losses)
    assert len(set(found)) > STEPS / 2
    spread = exact.std()
    assert abs(found.mean() - exact.mean()) < 4 * spread / np.sqrt(STEPS)
    assert 0.6 < found.std() / spread < 1.5
    with torch.no_grad():
        logits = module(x).numpy()
    assert np.allclose(by_binary(tuned, Brought(name, module, (x,), y)), logits, rtol=1e-4, atol=1e-4)
    session = onnxruntime.InferenceSession(tuned.onnx, providers=["CPUExecutionProvider"])
    (answered,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(answered, logits, rtol=1e-4, atol=1e-4)
    assert [one.code for one in tuned.warnings] == []


def test_the_gradient_has_the_mask_of_the_step() -> None:
    """With a head of ones, the head's gradient says which units were kept, and the layer before it must agree."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 64), nn.Linear(64, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(functional.dropout(self.inner(x), 0.25, self.training))

    torch.manual_seed(0)
    net, x, y = Net(), torch.randn(1, 3), torch.zeros(1, 1)
    spec = {"dropout": "train", "loss": {"kind": "mse"}, "optimizer": {"kind": "sgd", "learning_rate": 1.0}}
    runs = [pockfarm.fine_tune(net, x, (x, y), spec=spec, steps=1, seed=seed) for seed in (1, 1, 2)]
    masks = []
    for tuned in runs:
        head = (tuned["head.weight"] - net.head.weight).detach()[0] != 0
        assert torch.equal(head, (tuned["inner.bias"] - net.inner.bias).detach() != 0)
        assert torch.equal(head, (tuned["inner.weight"] - net.inner.weight).detach().any(1))
        masks.append(head)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert 0.5 < float(masks[0].float().mean()) < 0.95
    scaled = (net.inner(x) * masks[0] / 0.75).detach()
    loss = float(net.head(scaled).pow(2).mean().detach())
    assert np.isclose(runs[0].losses[0], loss, rtol=1e-4)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.noise, self.drop = nn.Linear(6, 4), nn.AlphaDropout(0.5), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.noise(self.first(x)))


class Targets(nn.Module):
    """Does not run in training mode with these inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(6, 4), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("targets are needed")
        return self.drop(self.first(x))


@pytest.mark.parametrize(
    ("module", "code", "words"),
    [(Mixed(), "fine_tune.dropout_lost", "noise"), (Targets(), "fine_tune.dropout_unknown", "targets are needed")],
)
def test_what_cannot_be_kept_is_named(module: Any, code: str, words: str) -> None:
    x, y = xy()
    before = {name: buffer.clone() for name, buffer in module.state_dict().items()}
    tuned = pockfarm.fine_tune(module, x, (x, y), spec=TINY, steps=2)
    assert [one.code for one in tuned.warnings] == [code]
    assert words in str(tuned.warnings[0])
    dropouts = [node for node in onnx.load_from_string(tuned.onnx).graph.node if node.op_type == "Dropout"]
    assert len(dropouts) == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_module_without_dropout_says_so() -> None:
    x, y = xy()
    tuned = pockfarm.fine_tune(nn.Linear(6, 4), x, (x, y), spec=TINY, steps=1)
    assert [one.code for one in tuned.warnings] == ["model.no_dropout"]
