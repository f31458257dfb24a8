"""Models of which one field of one message is changed: every field of the format in turn, in every way that fits it.

Changes are made in the bytes of the file, not by a library: so a field can have another type than it should, come
twice, or hold what is no text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}
"""Of everything else: `VARINT`."""
MANY = 20_000
DEEP = 150
LONG = 70_000
TEXTS = {
    "empty": b"",
    "escapes": b"\x1b[2J\"';--<script>${x}%n\\\r\n",
    "nul": b"a\0b",
    "long": b"x" * LONG,
    "no text": b"\xff\xfe\xc0\x80\xed\xa0\x80",
    "path": b"../../../../etc/passwd",
    "far": "\u202e\U0001f4a9".encode(),
}
NUMBERS = {"zero": 0, "negative": -1, "huge": (1 << 63) - 1, "most negative": -(1 << 63), "a million": 10**6}
Path = tuple[tuple[str, int], ...]
"""From the model to a message: the field, and which of its elements."""


@dataclass(frozen=True)
class Mutant:
    """One changed model."""

    message: str
    field: str
    change: str
    data: bytes

    @property
    def name(self) -> str:
        return f"{self.message}.{self.field}: {self.change}"


def mutants(models: Mapping[str, bytes], seed: int) -> Iterator[Mutant]:
    """Without end: each round changes every field of the format once, each in the next way that fits it."""
    rng = random.Random(seed)
    parsed = [onnx.load_from_string(data) for data in models.values()]
    fields = list(all_fields())
    turn = 0
    while True:
        rng.shuffle(fields)
        for descriptor, field in fields:
            changes = _changes(field, rng)
            change = sorted(changes)[turn % len(changes)]
            yield _changed(rng.choice(parsed), descriptor, field, change, changes[change], rng)
        turn += 1


def all_fields() -> Iterator[tuple[Descriptor, FieldDescriptor]]:
    """Every field of every message that a model may hold."""
    waiting, seen = [onnx.ModelProto.DESCRIPTOR], set[str]()
    while waiting:
        descriptor = waiting.pop()
        if descriptor.full_name in seen:
            continue
        seen.add(descriptor.full_name)
        for field in descriptor.fields:
            yield descriptor, field
            if field.message_type is not None:
                waiting.append(field.message_type)


Change = Callable[[bytes, bytes], bytes]
"""From the message without the field, and the field's own bytes in it, to the message's new bytes."""


def _changes(field: FieldDescriptor, rng: random.Random) -> dict[str, Change]:
    number, wire = field.number, WIRE_TYPES.get(field.type, VARINT)

    def put(encoded: bytes) -> Change:
        return lambda rest, own: rest + encoded

    changes: dict[str, Change] = {
        "missing": lambda rest, own: rest,
        "twice": lambda rest, own: rest + own + own,
        "another type": put(_tag(number, FIXED64 if wire != FIXED64 else VARINT) + rng.randbytes(7) + b"\x01"),
        "cut off": put(_tag(number, BYTES) + _varint(1 << 20) + b"abc"),
    }
    if field.is_repeated:
        changes["very many"] = lambda rest, own: (
            rest + (own or _own(field, rng))[:200] * (MANY if len(own) < 200 else 50)
        )
    if field.message_type is not None:
        changes |= {
            "random bytes": put(_sized(number, rng.randbytes(40))),
            "empty": put(_sized(number, b"")),
            "in itself": lambda rest, own: _nested(number, rest + own),
        }
    elif wire == BYTES:
        changes |= {name: put(_sized(number, text)) for name, text in TEXTS.items()}
        changes["random bytes"] = put(_sized(number, rng.randbytes(rng.randrange(1, 64))))
    elif wire == VARINT:
        changes |= {name: put(_tag(number, VARINT) + _varint(value)) for name, value in NUMBERS.items()}
        changes["any"] = put(_tag(number, VARINT) + _varint(rng.randrange(0, 40)))
    else:
        width = 4 if wire == FIXED32 else 8
        changes |= {
            "not a number": put(_tag(number, wire) + b"\xff" * width),
            "any": put(_tag(number, wire) + rng.randbytes(width)),
        }
    return changes


def _own(field: FieldDescriptor, rng: random.Random) -> bytes:
    """One element of a repeated field that the message does not have."""
    wire = WIRE_TYPES.get(field.type, VARINT)
    body = {VARINT: b"\x07", FIXED32: rng.randbytes(4), FIXED64: rng.randbytes(8), BYTES: b"\x01a"}[wire]
    return _tag(field.number, wire) + (b"\x00" if field.message_type is not None else body)


def _nested(number: int, body: bytes) -> bytes:
    for _ in range(DEEP):
        body = _sized(number, body)
    return body


def _changed(
    model: Any, descriptor: Descriptor, field: FieldDescriptor, change: str, act: Change, rng: random.Random
) -> Mutant:
    paths = [path for path, message in messages_of(model) if message.DESCRIPTOR is descriptor]
    if not paths:
        return Mutant(descriptor.name, field.name, change, _placed(model, descriptor, act(b"", _own(field, rng)), rng))
    path = rng.choice(paths)
    message = message_at(model, path)
    parts = [(found.number, part) for found, part in _parts(message)]
    rest = b"".join(part for number, part in parts if number != field.number)
    own = b"".join(part for number, part in parts if number == field.number)
    return Mutant(descriptor.name, field.name, change, encoded(model, path, act(rest, own)))


def _placed(model: Any, descriptor: Descriptor, body: bytes, rng: random.Random) -> bytes:
    """The model with a message that it does not have, where there could be one; in further ones that it lacks."""
    fits = [
        (path, message, field)
        for path, message in messages_of(model)
        for field in message.DESCRIPTOR.fields
        if field.message_type is descriptor
    ]
    if fits:
        path, parent, field = rng.choice(fits)
        return encoded(model, path, parent.SerializeToString() + _sized(field.number, body))
    outer = next(
        field
        for _, field in all_fields()
        if field.message_type is descriptor and field.containing_type is not descriptor
    )
    return _placed(model, outer.containing_type, _sized(outer.number, body), rng)


def messages_of(message: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The message and all below it."""
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for index, child in enumerate(value if field.is_repeated else [value]):
                yield from messages_of(child, (*path, (field.name, index)))


def message_at(message: Any, path: Path) -> Any:
    for name, index in path:
        value = getattr(message, name)
        message = value[index] if message.DESCRIPTOR.fields_by_name[name].is_repeated else value
    return message


def _parts(message: Any) -> Iterator[tuple[FieldDescriptor, bytes]]:
    """The bytes of each field that is there."""
    for field, value in message.ListFields():
        alone = type(message)()
        if field.is_repeated:
            getattr(alone, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(alone, field.name).CopyFrom(value)
        else:
            setattr(alone, field.name, value)
        yield field, alone.SerializeToString()


def encoded(message: Any, path: Sequence[tuple[str, int]], new: bytes) -> bytes:
    """The message's bytes, with `new` for those of the one at `path`."""
    if not path:
        return new
    (name, index), *deeper = path
    data = b""
    for field, part in _parts(message):
        if field.name != name:
            data += part
            continue
        value = getattr(message, name)
        for number, child in enumerate(value if field.is_repeated else [value]):
            data += _sized(field.number, encoded(child, deeper, new) if number == index else child.SerializeToString())
    return data


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _sized(number: int, body: bytes) -> bytes:
    return _tag(number, BYTES) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
