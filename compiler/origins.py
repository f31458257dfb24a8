"""The relation of a checkpoint's tensors to those of the file that the model came in, so that they can be brought back.

A checkpoint holds the author's parameters under the author's names, with two exceptions: an exporter may store a
parameter otherwise (transposed, once with an equal one, not at all), and a BatchNormalization may be folded into the
layer before it. Adapters of a plan stand beside them. All of it is said here, as data that travels in the bundle;
`compiler/trained/` undoes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = "pockfarm.origins/1"


@dataclass(frozen=True)
class Step:
    """An ONNX node of what makes a stored tensor of the author's; an attribute is one number or several."""

    op_type: str
    inputs: tuple[str, ...]
    output: str
    attributes: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Constant:
    """A tensor that steps read and that is no author's: positions, shapes, a number that is added."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: tuple[float, ...]


@dataclass(frozen=True)
class Reading:
    """Input `index` of the node that makes `node` reads the author's tensor `tensor`, which the file has as `stored`.

    `stored` is empty where the exporter dropped the input. `view` is the ONNX operator (Transpose with `perm`, Reshape,
    Expand) that makes what is stored of the tensor; empty: they are equal. Where it takes more than that, `steps` make
    it, of `tensor` and of the `others`.
    """

    node: str
    index: int
    stored: str
    tensor: str
    view: str = ""
    perm: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    constants: tuple[Constant, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reading:
        """Reads a reading from what `asdict` made of it; bundles from before there were steps have none."""
        steps = tuple(
            Step(
                step["op_type"],
                tuple(step["inputs"]),
                step["output"],
                tuple(
                    (key, tuple(number) if isinstance(number, list) else number) for key, number in step["attributes"]
                ),
            )
            for step in value.get("steps", ())
        )
        constants = tuple(
            Constant(constant["name"], constant["dtype"], tuple(constant["shape"]), tuple(constant["elements"]))
            for constant in value.get("constants", ())
        )
        read = {**value, "perm": tuple(value["perm"]), "others": tuple(value.get("others", ()))}
        return cls(**{**read, "steps": steps, "constants": constants})


@dataclass(frozen=True)
class FoldedNorm:
    """A BatchNormalization that the step computes as weight' and bias': parameters of the checkpoint.

    factor = scale / sqrt(variance + epsilon). With a layer before it: weight' = weight * factor along its outputs,
    bias' = (own_bias - mean) * factor + shift. A weight is [O, ...], or, if `transposed_groups` is not 0, that of a
    ConvTranspose in so many groups, [I, O / groups, ...]. Alone (`alone`): weight' = factor, bias' = shift - mean *
    factor, under the names of scale and shift. All names but `bias` are the author's; `own_bias` is empty if the layer
    has none, `weight` and `bias` if they do not learn. `takes_bias` is the one of `shift` and `own_bias` to which what
    the bias learned belongs.
    """

    weight: str
    bias: str
    own_bias: str
    scale: str
    shift: str
    mean: str
    variance: str
    epsilon: float
    takes_bias: str
    transposed_groups: int = 0
    alone: bool = False


@dataclass(frozen=True)
class Adapter:
    """Tensors of the checkpoint that learned beside the author's tensor `weight`, of the module `module`.

    The layer computes with W + s B A, where s is alpha / rank, or alpha / sqrt(rank) if `rslora`. Of a layer of `form`
    linear `a` is A: [rank, inputs], `b` is B: [outputs, rank], and W has its outputs in axis `out_axis`; of a conv A
    is [rank, C, KH, KW], B [K, rank, 1, 1]; of an embedding A is [rank, rows], B [width, rank], W [rows, width]. With a
    `magnitude` m (else empty) each output's row is then scaled to that length. `export` is how the plan wants it back.
    """

    weight: str
    module: str
    form: str
    rank: int
    alpha: float
    rslora: bool
    out_axis: int
    a: str
    b: str
    magnitude: str
    export: str

    @property
    def scaling(self) -> float:
        """Returns the factor by which the product of B and A counts."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def names(self) -> tuple[str, ...]:
        """Its tensors."""
        return tuple(name for name in (self.a, self.b, self.magnitude) if name)


@dataclass(frozen=True)
class Origins:
    """The origins of one model's tensors. `parameters` are the checkpoint's tensors that may learn, without adapters.

    `created` are those that neither the file nor the author's model has: biases that the plan asks for.
    """

    parameters: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    norms: tuple[FoldedNorm, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    created: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {"schema": SCHEMA, **asdict(self)}
        return {name: entry for name, entry in plain.items() if entry or name not in ("adapters", "created")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origins:
        """Reads origins from what `to_json` made of them."""
        readings = (Reading.from_json(reading) for reading in value["readings"])
        norms = (FoldedNorm(**norm) for norm in value["norms"])
        adapters = (Adapter(**adapter) for adapter in value.get("adapters", ()))
        created = tuple(value.get("created", ()))
        return cls(tuple(value["parameters"]), tuple(readings), tuple(norms), tuple(adapters), created)


def outputs_first(weight: NDArray[Any], transposed_groups: int) -> NDArray[Any]:
    """A weight as [O, ...]; that of a ConvTranspose is stored as [I, O / groups, ...], a group one run of I."""
    if not transposed_groups:
        return weight
    apart = weight.reshape(transposed_groups, weight.shape[0] // transposed_groups, *weight.shape[1:])
    return apart.swapaxes(1, 2).reshape(-1, apart.shape[1], *apart.shape[3:])


def as_stored(weight: NDArray[Any], transposed_groups: int) -> NDArray[Any]:
    """The inverse of `outputs_first`."""
    if not transposed_groups:
        return weight
    apart = weight.reshape(transposed_groups, weight.shape[0] // transposed_groups, *weight.shape[1:])
    return np.ascontiguousarray(apart.swapaxes(1, 2).reshape(-1, apart.shape[1], *apart.shape[3:]))
