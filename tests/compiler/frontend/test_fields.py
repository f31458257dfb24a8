"""The mutants that change one field: every field of the format, and nothing but that field."""

from __future__ import annotations

import itertools

import onnx
import pytest

from examples.models import MODELS
from tests.compiler.frontend.fields import all_fields, encoded, message_at, messages_of, mutants
from tests.sample import some

MODEL = MODELS["mlp"](features=5, hidden=4, classes=3)


def test_a_round_changes_every_field_of_the_format_once() -> None:
    fields = {(message.name, field.name) for message, field in all_fields()}
    assert {
        ("ModelProto", "graph"),
        ("TensorProto", "dims"),
        ("AttributeProto", "g"),
        ("Dimension", "dim_param"),
        ("FunctionProto", "attribute"),
        ("SparseTensorProto", "indices"),
    } <= fields
    count = sum(1 for _ in all_fields())
    drawn = list(itertools.islice(mutants({"mlp": MODEL}, 1), 2 * count))
    for one_round in (drawn[:count], drawn[count:]):
        assert {(one.message, one.field) for one in one_round} == fields
    assert len({one.data for one in drawn}) > count
    assert drawn == list(itertools.islice(mutants({"mlp": MODEL}, 1), 2 * count)), "the same each time"


def test_a_message_in_its_own_bytes_changes_nothing() -> None:
    model = onnx.load_from_string(MODEL)
    for path, message in some(messages_of(model)):
        assert onnx.load_from_string(encoded(model, path, message.SerializeToString())) == model


@pytest.mark.parametrize("change", ["huge", "negative"])
def test_a_change_is_in_the_file(change: str) -> None:
    drawn = (one for one in mutants({"mlp": MODEL}, 3) if (one.field, one.change) == ("ir_version", change))
    changed = onnx.load_from_string(next(drawn).data)
    assert changed.ir_version == {"huge": (1 << 63) - 1, "negative": -1}[change]
    changed.ir_version = onnx.load_from_string(MODEL).ir_version
    assert changed == onnx.load_from_string(MODEL)
    assert message_at(changed, (("graph", 0), ("node", 0))).op_type
