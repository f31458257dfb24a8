"""PyTorch: the module itself, eager or compiled. Options: model, state, channels_last, fused, compile, autocast."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import itertools

from benchmarks.frameworks.steps import MOMENTUM, Task, train
from benchmarks.models import MODELS


def load(task: Task) -> nn.Module:
    """The module with the exported weights; what the plan freezes asks for no gradient."""
    module = MODELS[task.options["model"]].build()
    _without_norms(module)
    module.load_state_dict(torch.load(task.options["state"], weights_only=True))
    learned = set(task.learned("module"))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    unknown = sorted(learned - set(parameters))
    if unknown:
        raise LookupError(f"the module has no parameter {unknown[0]!r}")
    learning = {id(parameters[name]) for name in learned}
    for parameter in parameters.values():
        parameter.requires_grad_(id(parameter) in learning)
    return module.eval()


def _without_norms(module: nn.Module) -> None:
    """The state is that of a module whose batch norms were folded: take them out, and give each convolution a bias."""
    names = list(module._modules)
    for name, following in itertools.pairwise(names):
        convolution = module._modules[name]
        if isinstance(convolution, nn.Conv2d) and isinstance(module._modules[following], nn.BatchNorm2d):
            convolution.bias = nn.Parameter(torch.zeros(convolution.out_channels))
            module._modules[following] = nn.Identity()
    for child in module.children():
        _without_norms(child)


def main() -> None:
    """One process of a comparison."""
    task = Task.from_arguments()
    torch.set_num_threads(task.threads)
    layout = torch.channels_last if task.options["channels_last"] else torch.contiguous_format
    module = load(task).to(memory_format=layout)
    inputs = [torch.from_numpy(task.feed(name)) for name in task.options["inputs"]]
    inputs = [value.to(memory_format=layout) if value.dim() == 4 else value for value in inputs]
    labels = torch.from_numpy(task.labels()).reshape(-1)
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, task.learning_rate, MOMENTUM, fused=task.options["fused"])
    criterion = nn.CrossEntropyLoss()

    def loss_of(*batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=task.options["autocast"]):
            logits = module(*batch).float()
        loss: Tensor = criterion(logits.reshape(-1, logits.shape[-1]), labels)
        return loss

    forward = torch.compile(loss_of) if task.options["compile"] else loss_of

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = forward(*inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    train(step)


if __name__ == "__main__":
    main()
