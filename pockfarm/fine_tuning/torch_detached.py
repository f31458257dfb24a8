"""Marks the places where a module turns gradients off (`torch.no_grad()`) in a way that an export keeps: as `detach()`.

An exported program knows `detach()` as an operator, and nothing of the region that a call stood in. So while a module
is exported, whatever is called inside such a region reads detached tensors: what it gives has no gradient there either.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


@contextlib.contextmanager
def told_by_detach(module: Any) -> Iterator[None]:
    """Inside, `module` runs with gradients on, and reads detached tensors wherever it turns them off itself."""

    def wrapped(whole: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with _Detaching():
                return whole(*args, **kwargs)

        return forward

    with torch.enable_grad(), forward_replaced(module, wrapped):
        yield


@contextlib.contextmanager
def forward_replaced(module: Any, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside, the module's `forward` is another one made of it: its parameters keep their names, unlike a wrapper's."""
    override, whole = module.__dict__.get("forward"), module.forward
    module.forward = functools.wraps(whole)(wrapped(whole))
    try:
        yield
    finally:
        if override is None:
            del module.forward
        else:
            module.forward = override


class _Detaching(TorchFunctionMode):  # type: ignore[misc]
    """Gives each function that is called where the module turned gradients off detached tensors.

    A `torch.autograd.Function` also runs with gradients off, and has one: only what is turned off by name counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: list[bool] = []
        """Whether gradients were on before each change that stands."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func is torch._C._set_grad_enabled:
            self._turned(torch.is_grad_enabled(), bool(args[0]))
        is_off = bool(self._before) and self._before[-1]
        if not is_off or func is torch._C._set_grad_enabled or _changes(func):
            return func(*args, **keywords)
        return func(*_cut(args), **_cut(keywords))

    def _turned(self, was_on: bool, is_on: bool) -> None:
        if was_on == is_on:
            return
        if self._before and self._before[-1] == is_on:
            self._before.pop()
        else:
            self._before.append(was_on)


def _changes(func: Any) -> bool:
    """True for what changes a tensor in place, or reads or sets an attribute of it."""
    name = str(getattr(func, "__name__", ""))
    return name == "detach" or (name.endswith("_") and not name.startswith("_")) or name.startswith("__")


def _cut(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach() if tensor.requires_grad else tensor, values)
