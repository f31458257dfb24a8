"""Import rows: pooling windows over images [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.frontend.shapes import pair, window_pads
from compiler.graph import AttrValue


def _pool(op: str) -> Rule:
    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        call.only_outputs(1)
        call.attributes.ignore("storage_order")
        if call.rank(0) != 4:
            call.unsupported(f"pools rank {call.rank(0)}; only 2-D images [N, C, H, W] are supported")
        attrs = _window(call)
        if op == "average_pool":
            attrs["count_pads"] = _counts_pads(call)
        return call.from_last(call.emit(op, call.to_last(call.value(0), 1), **attrs), 1)

    return rule


def _window(call: Call) -> dict[str, AttrValue]:
    if "kernel_shape" not in call.attributes:
        call.fail("kernel_shape is missing")
    kernel, strides = pair(call, "kernel_shape"), pair(call, "strides")
    if pair(call, "dilations") != (1, 1):
        call.unsupported("dilated pooling is not supported")
    size = (call.shape(0)[2], call.shape(0)[3])
    pads = window_pads(call, size, kernel, strides, (1, 1))
    if call.attributes.integer("ceil_mode", 0):
        pads = _ceiling_pads(size, kernel, strides, pads)
    return {"kernel": kernel, "strides": strides, "pads": pads}


def _ceiling_pads(
    size: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Pads at the end that make the rounded-up windows fit; a window that would start past the input is dropped."""
    ends = []
    for extent, reach, stride, first, last in zip(size, kernel, strides, pads[:2], pads[2:], strict=True):
        count = -(-(extent + first + last - reach) // stride) + 1
        count -= (count - 1) * stride >= extent + first
        ends.append(max(last, (count - 1) * stride + reach - extent - first))
    return (pads[0], pads[1], ends[0], ends[1])


def _counts_pads(call: Call) -> bool:
    counted = bool(call.attributes.integer("count_include_pad", 0))
    if counted and call.attributes.integer("ceil_mode", 0):
        call.unsupported("ceil_mode together with count_include_pad is not supported", "export with ceil_mode=False")
    return counted


ROWS: Mapping[str, Rule] = {"AveragePool": _pool("average_pool"), "MaxPool": _pool("max_pool")}
