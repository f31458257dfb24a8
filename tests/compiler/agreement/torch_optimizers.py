"""What the optimizers of a spec are in PyTorch: `torch.optim` in float64 or float32, and Lion from its paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Groups of leaves, each with its own settings -> their optimizer."""


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675."""

    def __init__(self, groups: Any, lr: float, beta1: float, beta2: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for leaf in group["params"]:
                theta, g, m = leaf.data, leaf.grad, self.state[leaf]["exp_avg"]
                c = group["beta1"] * m + (1 - group["beta1"]) * g
                theta -= group["lr"] * (torch.sign(c) + group["weight_decay"] * theta)
                self.state[leaf]["exp_avg"] = group["beta2"] * m + (1 - group["beta2"]) * g


NAMES: Mapping[str, str] = {
    "momentum_buffer": "momentum",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "row_var": "row_var",
    "col_var": "col_var",
    "variance": "variance",
}
"""PyTorch's names of state, and those of our checkpoints."""

FLOAT32_EPSILON = torch.finfo(torch.float32).eps


def start_state(optimizer: torch.optim.Optimizer, leaf: nn.Parameter, kinds: tuple[str, ...]) -> dict[str, Any]:
    """State of zeros, as each optimizer begins with; a step count of 0."""
    state: dict[str, Any] = {"step": torch.tensor(0.0)}
    for kind in kinds:
        state[kind] = torch.zeros(shape_of(kind, leaf), dtype=leaf.dtype)
    optimizer.state[leaf].update(state)
    return optimizer.state[leaf]


def shape_of(kind: str, leaf: torch.Tensor) -> tuple[int, ...]:
    """Of a row's means the last axis is gone, of a column's the last but one."""
    shape = list(leaf.shape)
    if kind == "row_var":
        shape[-1] = 1
    if kind == "col_var":
        shape[-2] = 1
    return tuple(shape)


def state_kinds(kind: str, leaf: torch.Tensor) -> tuple[str, ...]:
    """What PyTorch keeps for a leaf."""
    if kind == "adafactor":
        return ("row_var", "col_var") if leaf.dim() > 1 else ("variance",)
    return {"sgd": ("momentum_buffer",), "lion": ("exp_avg",)}.get(kind, ("exp_avg", "exp_avg_sq"))


def optimizer_of(spec: Mapping[str, Any], groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer that a spec means, its defaults those of PyTorch (Lion's: of its authors' code)."""
    settings = {name: value for name, value in spec.items() if name not in ("kind", "groups", "clip_norm")}
    if "learning_rate" in settings:
        settings["lr"] = settings.pop("learning_rate")
    if spec["kind"] == "sgd":
        return torch.optim.SGD(groups, foreach=False, **settings)
    if spec["kind"] == "adafactor":
        eps = (settings.pop("eps1", FLOAT32_EPSILON), settings.pop("eps2", 1e-3))  # torch's None is the type's own
        return torch.optim.Adafactor(groups, eps=eps, foreach=False, **settings)
    betas = (settings.pop("beta1", 0.9), settings.pop("beta2", 0.99 if spec["kind"] == "lion" else 0.999))
    if spec["kind"] == "lion":
        return Lion(groups, settings.get("lr", 1e-4), *betas, settings.get("weight_decay", 0.0))
    kind = torch.optim.Adam if spec["kind"] == "adam" else torch.optim.AdamW
    return kind(groups, betas=betas, foreach=False, **settings)
