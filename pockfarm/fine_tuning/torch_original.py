"""The module's own answers, to compare its file with. The door to PyTorch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from compiler.trained.likely import Part
from pockfarm.fine_tuning.model import InTraining, Original
from pockfarm.fine_tuning.torch_dropout import LAYERS, dropping
from pockfarm.fine_tuning.torch_export import Call, as_it_was, inputs_of
from pockfarm.fine_tuning.torch_modes import modes_of

Feeds = Mapping[str, Any]
Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Training:
    """The parts that the spec lets train: dropouts, and norms by the statistics of their batch."""

    drops: bool
    averages: bool


def original(
    module: Any, call: Call, choose: Callable[[Any], Any] | None, names: tuple[str, ...], spec: Training
) -> Original:
    """The module as it is now; `call` is the example, `choose` picks the outputs, called `names`, that losses read."""
    tensors, numbers = inputs_of(module, call), itertools.count()

    def run(module: Any, feeds: Feeds, real: torch.dtype, seed: int, training: Collection[str] = ()) -> Arrays:
        replacements = {id(tensor): _like(tensor, feeds[name], real) for name, tensor in tensors.items()}
        args = tuple(replacements.get(id(value), value) for value in call.args)
        kwargs = {name: replacements.get(id(value), value) for name, value in call.kwargs.items()}
        with as_it_was(module):
            torch.default_generator.manual_seed(seed)
            for path in training:
                module.get_submodule(path).training = True
            whole = module(*args, **kwargs)
            chosen = whole if choose is None else choose(whole)
            # Here, for an output may be a buffer, which is put back.
            return tuple(map(_array, chosen if isinstance(chosen, tuple) else (chosen,)))

    def answer(feeds: Feeds) -> Arrays | None:
        try:
            return run(module, feeds, torch.float32, next(numbers))  # two calls that draw shall differ
        except Exception:  # the module's own code may refuse inputs that were drawn
            return None

    def exact(feeds: Feeds) -> Arrays | None:
        try:
            return run(copy.deepcopy(module).double(), feeds, torch.float64, 0)
        except Exception:  # a module may insist on float32, or on being there once
            return None

    def training(feeds: Feeds) -> InTraining | None:
        modes = _trained(module, call, spec)
        if modes is None:
            return None
        step, whole = modes

        def answered(parts: Collection[str]) -> Arrays | None:
            try:
                return run(module, feeds, torch.float32, 0, parts)
            except Exception:  # as above
                return None

        def alone() -> Mapping[str, Arrays]:
            answers = {path: answered({*step, path}) for path in sorted(whole - step)}
            return {path: arrays for path, arrays in answers.items() if arrays is not None}

        of_step, of_whole = answered(step), answered(whole)
        return None if of_step is None or of_whole is None else InTraining(of_step, of_whole, alone)

    return Original(
        example={name: _array(tensor) for name, tensor in tensors.items()},
        names=names,
        answer=answer,
        exact=exact,
        training=training,
        parts=lambda feeds: _parts(module, lambda: answer(feeds)),
    )


def _trained(module: Any, call: Call, spec: Training) -> tuple[frozenset[str], frozenset[str]] | None:
    """Parts that train in a step, and those that train in the module: all but what draws or averages otherwise.

    None where a step trains none, or the module does not run in training mode (which an export tells).
    """
    if not (spec.drops or spec.averages):
        return None
    modes = modes_of(module)
    with as_it_was(module):
        drawing = dropping(module, call.args, call.kwargs, modes)
    if drawing.problem:
        return None
    parts = dict(module.named_modules())
    layers = frozenset(path for path, part in parts.items() if isinstance(part, LAYERS))
    norms = modes.norms - modes.staying() if spec.averages else frozenset()
    step = layers | norms | frozenset(drawing.parts if spec.drops else ())
    silent = frozenset(parts) - modes.norms - {*drawing.parts, *drawing.lost, *drawing.staying}
    is_apart = bool(modes.staying() or drawing.staying)
    return step, step | (silent & modes.training if is_apart else silent)


def _parts(module: Any, run: Callable[[], Any]) -> list[Part]:
    """Calls of the parts that have no parts below them, in the order in which they end."""
    calls: list[Part] = []

    def heard(path: str) -> Callable[..., None]:
        def hear(part: Any, args: Any, gave: Any) -> None:
            tensor = gave[0] if isinstance(gave, tuple) and gave else gave
            if isinstance(tensor, torch.Tensor):
                read = [_array(operand) for operand in args if isinstance(operand, torch.Tensor)]
                calls.append(Part(path, type(part).__name__, read, _array(tensor)))

        return hear

    parts = [(path, part) for path, part in module.named_modules() if path and not any(part.children())]
    hooks = [part.register_forward_hook(heard(path)) for path, part in parts]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _like(tensor: Any, array: Any, real: torch.dtype) -> Any:
    converted = torch.from_numpy(array.copy()).to(tensor.device)
    return (
        converted.to(real)
        if converted.is_floating_point() and tensor.dtype == torch.float32
        else converted.to(tensor.dtype)
    )


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy().copy()
