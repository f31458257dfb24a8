"""The types in which a step holds its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from compiler.spec.forms import Number, OneOf, Optional
from compiler.spec.records import member

Compute = Literal["f32", "bf16", "f16"]
State = Literal["f32"]
Frozen = Literal["f32", "int8", "int4"]
FrozenProducts = Literal["f32", "int8"]
Products = Literal["f32", "tf32"]


@dataclass(frozen=True)
class PrecisionSpec:
    """The quantities that are held in fewer bits: activations and their gradients in sixteen, as in mixed precision;
    weights that nothing changes in eight or four.

    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018 (arXiv 1710.03740).
    """

    compute: Compute = member(
        OneOf(get_args(Compute)),
        "of activations and their gradients between kernels; sums, losses and statistics are f32 all the same",
        default="f32",
        always=True,
    )
    state: State = member(
        OneOf(get_args(State)), "of parameters, their gradients and optimizer state", default="f32", always=True
    )
    loss_scale: float | None = member(
        Optional(Number(2.0**-24, 2.0**24)),
        "what the loss's gradient is multiplied by on its way through f16, and gradients of parameters divided by; "
        "null: by what is measured",
        default=None,
    )
    frozen: Frozen = member(
        OneOf(get_args(Frozen)),
        "of weights that nothing changes: int8, with an f32 scale for each output channel, is a quarter of their "
        "bytes; int4, with one for each 64 inputs of a channel, a seventh of a linear layer's, and int8 of others",
        default="f32",
    )
    frozen_products: FrozenProducts = member(
        OneOf(get_args(FrozenProducts)),
        "how weights held in int8 are multiplied; int8: each row that they are multiplied with is rounded to eight "
        "bits too, forward and backward, where the target has instructions for it",
        default="f32",
    )
    products: Products = member(
        OneOf(get_args(Products)),
        "in what matrix products and convolutions multiply; tf32: their factors are rounded to ten bits of mantissa, "
        "and sums stay f32, on targets with tensor cores; elsewhere products are made in f32",
        default="f32",
    )
