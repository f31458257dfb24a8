"""PyTorch's process of a comparison: trains on one batch, and prints steps as our binary does.

First a few steps with their losses, by which it is seen that they are ours; then windows of many steps, whose mean time
is one line. A window ends when its last loss is on the host: the device is waited for once, not after each step.

What stands in the task: `Task`. Results beside the lines go to a file: the most memory that PyTorch had allocated.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.frameworks.steps import MOMENTUM
from benchmarks.gpu.models import MODELS, learn
from benchmarks.gpu.precisions import PRECISIONS, Precision
from compiler.trained.checkpoints import tensors_of

WARM_UP = 3
WINDOW_S = 0.05
MOST_STEPS = 1000
"""Of a window."""


@dataclass(frozen=True)
class Task:
    """What the process is asked for. `compile`: a mode of torch.compile, or nothing; `told`: where results go."""

    model: str
    weights: str
    inputs: Sequence[str]
    labels: str
    learned: Sequence[str]
    learning_rate: float
    loss_scale: float
    precision: str
    device: str
    steps: int
    told: str
    compile: str = ""
    graph: bool = False
    channels_last: bool = False


class Training:
    """A module and its optimizer on a device."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self.device, self.scale = torch.device(task.device), task.loss_scale
        self.kind = getattr(torch, precision.autocast) if precision.autocast else None
        layout = torch.channels_last if task.channels_last else torch.contiguous_format
        module = _module(task)
        # On the host: what PyTorch's step needs of the device is counted.
        self.start = {name: one.detach().clone() for name, one in module.named_parameters()}
        self.module = module.to(self.device).to(memory_format=layout)
        self.learning = learn(self.module, task.learned)
        inputs = [torch.from_numpy(np.load(path)).to(self.device) for path in task.inputs]
        self.inputs = [one.to(memory_format=layout) if one.dim() == 4 else one for one in inputs]
        self.labels = torch.from_numpy(np.load(task.labels)).to(self.device).reshape(-1)
        # Momenta of a scaled loss are scaled, and a rate that is divided by as much takes the same step.
        rate = task.learning_rate / self.scale
        self.optimizer = torch.optim.SGD(self.learning.values(), rate, MOMENTUM, fused=True)
        mode = {} if task.compile in ("", "default") else {"mode": task.compile}
        self.forward = torch.compile(self.loss, **mode) if task.compile else self.loss

    def loss(self, *inputs: Tensor) -> Tensor:
        """Of the batch."""
        with torch.autocast(self.device.type, self.kind, enabled=self.kind is not None, cache_enabled=False):
            logits = self.module(*inputs)
        found: Tensor = nn.functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), self.labels)
        return found

    def step(self) -> Tensor:
        """One; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        loss: Tensor = self.forward(*self.inputs)
        (loss * self.scale).backward()
        self.optimizer.step()
        return loss

    def restart(self) -> None:
        """As before the first step, in the same memory."""
        with torch.no_grad():
            for name, parameter in self.learning.items():
                parameter.copy_(self.start[name])
                self.optimizer.state[parameter]["momentum_buffer"].zero_()


def _module(task: Task) -> nn.Module:
    module = MODELS[task.model].build()
    weights = tensors_of(Path(task.weights).read_bytes())
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()}, strict=False)
    missing = sorted(set(dict(module.named_parameters())) - set(weights))
    if missing:
        raise LookupError(f"the module's {missing[0]!r} is not among the weights: another version of its library?")
    return module


def warm(training: Training) -> Callable[[], Tensor]:
    """The step as it is."""
    for _ in range(WARM_UP):
        training.step()
    training.restart()
    _reset_peak(training)
    return training.step


def captured(training: Training) -> Callable[[], Tensor]:
    """The whole step, optimizer included, as one CUDA graph. Source: PyTorch's notes on CUDA graphs, whole network."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    training.restart()
    training.optimizer.zero_grad(set_to_none=True)
    _reset_peak(training)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
    training.restart()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def _reset_peak(training: Training) -> None:
    """A graph's memory is taken while it is captured: the most is counted from before that."""
    if training.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def window_us(step: Callable[[], Tensor], steps: int) -> tuple[float, float]:
    """Mean microseconds of `steps` steps, and the last one's loss, which waits for the device."""
    started = time.perf_counter()
    for _ in range(steps - 1):
        step()
    loss = step().item()
    return (time.perf_counter() - started) / steps * 1e6, loss


def told(training: Training) -> Mapping[str, object]:
    """What belongs beside the times."""
    on_gpu = training.device.type == "cuda"
    return {
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version() or 0,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    precision = PRECISIONS[task.precision]
    torch.set_float32_matmul_precision("high" if precision.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = precision.tf32
    torch.backends.cudnn.benchmark = True
    training = Training(task, precision)
    step = captured(training) if task.graph else warm(training)
    us = 1.0
    for number in range(task.steps):
        us, loss = window_us(step, 1)
        if number == task.steps - 1:  # before the line at which this process may be stopped, wherever it is
            Path(task.told).write_text(json.dumps(told(training)))
        _tell(us, loss)
    while True:
        us, loss = window_us(step, min(MOST_STEPS, max(1, round(WINDOW_S * 1e6 / max(us, 1.0)))))
        _tell(us, loss)


def _tell(us: float, loss: float) -> None:
    print(json.dumps({"event": "step", "loss": loss, "us": us}), flush=True)


if __name__ == "__main__":
    main()
