"""The ways in which ONNX says that a window moves over an image of any rank: kernel, strides, dilations, pads. All is
static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import ModelShapeError
from compiler.frontend.call import Call
from compiler.graph import AttrValue


@dataclass(frozen=True, slots=True)
class Window:
    """A window with one number per image axis; `first` and `last` are the pads before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Image axes."""
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions from the first tap to the last, both counted."""
        return tuple((taps - 1) * step + 1 for taps, step in zip(self.kernel, self.dilations, strict=True))

    def axes(self, *axes: int) -> Window:
        """The window along some of the axes; -1 stands for a new axis that it does not move along."""

        def picked(values: tuple[int, ...], none: int) -> tuple[int, ...]:
            return tuple(none if axis < 0 else values[axis] for axis in axes)

        return Window(
            picked(self.kernel, 1),
            picked(self.strides, 1),
            picked(self.dilations, 1),
            picked(self.first, 0),
            picked(self.last, 0),
        )

    def outputs(self, call: Call, size: Sequence[int]) -> tuple[int, ...]:
        """Positions along each axis. Raises: ModelShapeError if the window does not fit."""
        spans = zip(size, self.first, self.last, self.reach, self.strides, strict=True)
        counts = tuple((extent + first + last - reach) // stride + 1 for extent, first, last, reach, stride in spans)
        if min(counts) < 1:
            raise ModelShapeError(
                f"a window of {self.kernel} with pads {(*self.first, *self.last)} does not fit {list(size)}",
                where=call.node.where,
            )
        return counts

    def geometry(self) -> dict[str, AttrValue]:
        """The attributes of a 2-D convolution."""
        return {"strides": self.strides, "pads": (*self.first, *self.last), "dilations": self.dilations}


def window_of(call: Call, size: Sequence[int], kernel: tuple[int, ...]) -> Window:
    """The window of a node, from its attributes. Raises: ModelError if they contradict the rank."""
    rank = len(size)
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    none = (0,) * rank
    window = Window(kernel, strides, dilations, none, none)
    mode = call.attributes.text("auto_pad", "NOTSET") or "NOTSET"
    pads = call.attributes.integers("pads") or none + none
    if mode == "NOTSET":
        if len(pads) != 2 * rank or min(pads) < 0:
            call.unsupported(f"pads {list(pads)}: expected {2 * rank} numbers >= 0")
        return replace(window, first=pads[:rank], last=pads[rank:])
    if mode == "VALID":
        return window
    totals = [
        max((-(-extent // stride) - 1) * stride + reach - extent, 0)
        for extent, stride, reach in zip(size, strides, window.reach, strict=True)
    ]
    first, last = shared_out(call, mode, totals)
    return replace(window, first=first, last=last)


def shared_out(call: Call, mode: str, totals: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads before and after: half each; the odd one goes to the end for SAME_UPPER.

    Source: ONNX Conv, auto_pad: SAME pads so that output = ceil(input / stride).
    """
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.fail(f"auto_pad {mode!r} is unknown")
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def per_axis(call: Call, name: str, rank: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """An attribute with one positive number per image axis (strides, kernel_shape ...); else the default, or ones."""
    numbers = call.attributes.integers(name)
    if numbers is None:
        return default or (1,) * rank
    if len(numbers) != rank or min(numbers) < 1:
        call.unsupported(f"{name} {list(numbers)}: expected {rank} positive numbers")
    return numbers
