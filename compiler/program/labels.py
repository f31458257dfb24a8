"""Texts that people read where a kernel call is meant: per-kernel tables, reports, error messages.

A label is made from the fields of a call where somebody reads it, and never read back: nothing may depend on its text.
"""

from __future__ import annotations

from compiler.program.program import KernelCall


def label_of(call: KernelCall) -> str:
    """`conv1`, `d conv1`, `d conv1.weight`, `update conv1.weight`, `conv1 (again) [1/2]`, `d fc.weight and update`."""
    return _work(call) + _share(call)


def _work(call: KernelCall) -> str:
    if call.again:
        return f"{call.layer} (again)"
    if call.phase == "forward":
        return call.layer
    subject = call.parameter or call.layer
    if call.phase == "update":
        return f"update {subject}"
    return f"d {subject}{' and update' if call.updates else ''}"


def _share(call: KernelCall) -> str:
    if call.sum_of:
        return f" [sum of {call.sum_of}]"
    part = f" [{call.part + 1}/{call.parts}]" if call.parts > 1 else ""
    return part + (f" [strip {call.strip + 1}/{call.strips}]" if call.strips > 1 else "")
