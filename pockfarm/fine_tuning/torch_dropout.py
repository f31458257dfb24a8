"""Finds the parts of a PyTorch module that drop values at random while it trains, so that an export can keep just that.

The door to PyTorch: imported only when a caller brings a module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from compiler.warnings import few_of
from pockfarm.fine_tuning.torch_modes import Modes, told_of
from pockfarm.values import CompileWarning

DROPS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
)
"""Functions whose dropout an export keeps."""
DRAWS = (
    "alpha_dropout",
    "feature_alpha_dropout",
    "feature_dropout",
    "rrelu",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "bernoulli",
    "bernoulli_",
    "uniform_",
    "normal_",
)
"""Functions that draw otherwise: in a file they would do so in evaluation too."""
_CHANNELS = ("dropout1d", "dropout2d", "dropout3d")
LAYERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer)
"""In evaluation they may take a path of their own, around the dropouts below them."""


@dataclass(frozen=True)
class Dropping:
    """Parts (paths) that are to be in training mode for an export, and those whose randomness it cannot keep.

    `staying` would drop too, and are in evaluation mode.
    """

    parts: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    staying: tuple[str, ...] = ()
    problem: str = ""
    """Why the module could not be looked at while it trains: what it does beside its Dropout modules is unknown."""

    @property
    def warnings(self) -> tuple[CompileWarning, ...]:
        """Warnings of differences between a training step and the module."""
        noticed = []
        if self.lost:
            noticed.append(
                CompileWarning(
                    "fine_tune.dropout_lost",
                    few_of(list(self.lost)),
                    "draw at random while they train in a way that no file keeps: a step trains them as in evaluation",
                    "use nn.Dropout there, or say dropout: ignore",
                )
            )
        if self.problem:
            noticed.append(
                CompileWarning(
                    "fine_tune.dropout_unknown",
                    "model",
                    f"does not run in training mode ({self.problem}): only its Dropout modules drop values",
                    "use nn.Dropout in place of functions that ask self.training",
                )
            )
        return (*noticed, *told_of(self.staying, "dropout"))


def dropping(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> Dropping:
    """Look at a run in training mode (its norms stay in evaluation); the module's buffers are as they were afterwards.

    `modes` are those that the module was brought with. The caller restores them, and the random state.
    """
    paths = {part: path for path, part in module.named_modules()}
    random_parts = set(modes.dropouts)
    lost: set[str] = set()
    problem = ""
    watch = _Watch(lambda part: random_parts.add(paths[part]), lambda part: lost.add(paths[part]))
    with buffers_restored(module):
        for part in paths:
            part.training = not isinstance(part, _NormBase)
        try:
            with watch.following(set(paths)), watch:
                module(*args, **kwargs)
        except Exception as error:  # whatever a module's own code may raise
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
                :200
            ]
    staying = modes.staying(random_parts | lost) & (random_parts | lost)
    random_parts, lost = random_parts - staying, lost - staying
    if random_parts:
        random_parts |= {path for part, path in paths.items() if isinstance(part, LAYERS)}
    return Dropping(tuple(sorted(random_parts - lost)), tuple(sorted(lost)), tuple(sorted(staying)), problem)


@contextlib.contextmanager
def in_training(module: nn.Module, parts: Sequence[str]) -> Iterator[None]:
    """These parts train, in a way that an exporter can write: whole channels are dropped by a dropout of their mask."""
    for path in parts:
        module.get_submodule(path).training = True
    originals = {name: getattr(functional, name) for name in _CHANNELS}
    try:
        for name, rank in zip(_CHANNELS, (3, 4, 5)):
            setattr(functional, name, _by_mask(rank))
        yield
    finally:
        for name, function in originals.items():
            setattr(functional, name, function)


def _by_mask(rank: int) -> Callable[..., Any]:
    """Dropout of channels; `rank` is that of a batch. Source: torch.nn.functional.dropout1d, 2d, 3d."""

    def drop(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        channels = input.shape[: input.ndim - rank + 2]
        mask = torch.ones((*channels, *[1] * (rank - 2)), dtype=input.dtype, device=input.device)
        return input * functional.dropout(mask, p, training)

    return drop


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Hears which modules call functions that draw at random."""

    def __init__(self, dropped: Callable[[Any], None], drew: Callable[[Any], None]) -> None:
        super().__init__()
        self._dropped, self._drew = dropped, drew
        self._running: list[Any] = []

    @contextlib.contextmanager
    def following(self, parts: set[nn.Module]) -> Iterator[None]:
        """Inside, the module whose forward runs is known."""

        def enter(part: nn.Module, _: Any) -> None:
            if part in parts:
                self._running.append(part)

        def leave(part: nn.Module, *_: Any) -> None:
            if self._running and self._running[-1] is part:
                self._running.pop()

        hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._running and name in DROPS and _has_effect(name, args, kwargs):
            self._dropped(self._running[-1])
        elif self._running and name in DRAWS:
            self._drew(self._running[-1])
        return func(*args, **kwargs)


def _has_effect(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call drops anything: its probability is above 0, and it trains."""
    if name == "scaled_dot_product_attention":
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)) > 0
    if name == "multi_head_attention_forward":
        return bool(kwargs.get("training", True))
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    trains = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(trains) and float(p) > 0


@contextlib.contextmanager
def buffers_restored(module: nn.Module) -> Iterator[None]:
    """Puts back what a run changes (statistics, the vectors of a spectral norm, a counter in forward())."""
    before = [(part, dict(part._buffers)) for part in module.modules()]
    values = {id(buffer): buffer.detach().clone() for buffer in module.buffers()}
    try:
        yield
    finally:
        for part, buffers in before:
            part._buffers.clear()
            part._buffers.update(buffers)
        with torch.no_grad():
            for buffer in module.buffers():
                buffer.copy_(values[id(buffer)])
