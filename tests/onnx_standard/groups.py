"""Which of the standard's cases count, and which of their inputs are constants: two tables by operator."""

from __future__ import annotations

from collections.abc import Mapping

OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "sequences and optional values": (
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
    ),
    "control flow": ("If", "Loop", "Scan"),
    "signal processing": ("BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT"),
    "strings, text and ai.onnx.ml": (
        "ArrayFeatureExtractor",
        "Binarizer",
        "LabelEncoder",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TfIdfVectorizer",
        "TreeEnsemble",
    ),
    "detection post-processing": ("NonMaxSuppression", "RoiAlign", "MaxRoiPool"),
    "image decoding": ("ImageDecoder",),
    "training operators": ("Adagrad", "Adam", "Gradient", "Momentum"),
}
"""What the quota leaves out. The cases run all the same: none of them may be wrong or crash."""

_ALL = tuple(range(8))
_SHAPE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": _ALL,
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": _ALL,
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


def shape_inputs(op_type: str) -> tuple[int, ...]:
    """Inputs that say shapes, axes, counts or what is left out: exporters hold them as constants.

    The type of the output, or which axis is meant, depends on their elements. All others stay run-time inputs.
    """
    return (1,) if op_type.startswith("Reduce") else _SHAPE_INPUTS.get(op_type, ())


def outside(op_types: frozenset[str]) -> str:
    """The group that leaves a case with these operators out of the quota; empty if it counts."""
    return next((group for group, names in OUTSIDE.items() if not op_types.isdisjoint(names)), "")


RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Their elements are not prescribed; nor are those of a Dropout in training mode."""
