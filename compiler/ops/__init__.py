"""The operators of the intermediate representation, by family. Adding one: a record in its family's file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from compiler.ops.along_axis import ALONG_AXIS
from compiler.ops.attention import ATTENTION
from compiler.ops.batch_norm import BATCH_NORM
from compiler.ops.bce import BCE_WITH_LOGITS
from compiler.ops.convolution import CONVOLUTION
from compiler.ops.cross_entropy import CROSS_ENTROPY_OPERATORS
from compiler.ops.depthwise import DEPTHWISE_OPERATORS
from compiler.ops.elements import ELEMENT_MOVEMENT
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.lookup import LOOKUPS
from compiler.ops.masks import MASKS
from compiler.ops.matmul import MATMUL
from compiler.ops.movement import MOVEMENT
from compiler.ops.normalization import NORMALIZATION
from compiler.ops.normalize import NORMALIZE_OPERATORS
from compiler.ops.optimizer import OPTIMIZERS
from compiler.ops.paired import DEQUANTIZE_INT4
from compiler.ops.pool_places import POOL_PLACES
from compiler.ops.pooling import POOLING
from compiler.ops.random import DROPOUT, RANDOM
from compiler.ops.record import Operator
from compiler.ops.recurrence import RECURRENCE
from compiler.ops.reduction import REDUCTION
from compiler.ops.softmax import SOFTMAX_OPERATORS

FAMILIES = (
    ELEMENTWISE,
    MOVEMENT,
    LOOKUPS,
    ELEMENT_MOVEMENT,
    ALONG_AXIS,
    REDUCTION,
    MATMUL,
    CONVOLUTION,
    DEPTHWISE_OPERATORS,
    POOLING,
    POOL_PLACES,
    SOFTMAX_OPERATORS,
    NORMALIZE_OPERATORS,
    CROSS_ENTROPY_OPERATORS,
    (BCE_WITH_LOGITS,),
    NORMALIZATION,
    BATCH_NORM,
    ATTENTION,
    RANDOM,
    DROPOUT,
    MASKS,
    (DEQUANTIZE_INT4,),
    RECURRENCE,
    OPTIMIZERS,
)

OPERATORS: Mapping[str, Operator] = MappingProxyType({record.name: record for family in FAMILIES for record in family})
WEIGHTED = frozenset(
    (
        "attention",
        "conv2d",
        "conv2d_input_grad",
        "depthwise_conv2d",
        "depthwise_input_grad",
        "embedding",
        "matmul",
        "recurrence",
    )
)
"""Operators that multiply with a weight and sum, or look one up: what they give of one are any numbers."""
