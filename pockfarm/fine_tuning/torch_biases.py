"""Biases that a plan created, as parameters of the author's module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from compiler.warnings import few_of
from pockfarm.errors import BELOW, UsageError


def give_biases(module: Any, state: Mapping[str, Any]) -> tuple[str, ...]:
    """Give a module the biases that `state` has and it lacks, zeros, as if its layers had been made with `bias=True`.

    Then `module.load_state_dict(state)` takes all of it. Returns the names of the biases.
    Raises: UsageError, before anything changes, for a layer that has no place for a bias.
    """
    module_state = module.state_dict()
    names = [name for name in state if name not in module_state and _leaf(name).endswith("bias")]
    unfit = [name for name in names if not places(module, name)]
    if unfit:
        raise UsageError(
            "no layer of the module has a place for it: a parameter `bias` that is None",
            where=few_of(unfit),
            hint="let its forward() add one, registered by register_parameter('bias', None)",
            hint_form=BELOW,
        )
    for name in names:
        layer = module.get_submodule(_path(name))
        if layer._parameters[_leaf(name)] is not None:
            continue  # the same layer in another place
        reference = next(layer.parameters(), state[name])
        zeros = torch.zeros(state[name].shape, dtype=reference.dtype, device=reference.device)
        setattr(layer, _leaf(name), torch.nn.Parameter(zeros))
    return tuple(names)


def places(module: Any, name: str) -> tuple[str, ...]:
    """A created bias under all the names that its layer gives it; empty if no layer was made without this bias.

    A layer may stand in several places of a module.
    """
    layers = dict(module.named_modules(remove_duplicate=False))
    layer = layers.get(_path(name))
    if layer is None or layer._parameters.get(_leaf(name), _NO_PLACE) is not None:
        return ()
    return tuple(
        f"{path}.{_leaf(name)}" if path else _leaf(name) for path, candidate in layers.items() if candidate is layer
    )


def with_created(module: Any, created: Mapping[str, Any]) -> dict[str, Any]:
    """Created biases as entries of the module's state, on the device of their layer."""
    entries: dict[str, Any] = {}
    for name, array in created.items():
        like = next(module.get_submodule(_path(name)).parameters(), None) if places(module, name) else None
        tensor = torch.from_numpy(array.copy())
        entries |= dict.fromkeys(places(module, name) or (name,), tensor if like is None else tensor.to(like))
    return entries


_NO_PLACE = object()


def _path(name: str) -> str:
    return name.rpartition(".")[0]


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
