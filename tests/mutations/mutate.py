"""One change to a signed message: of a field, its type, its place, its bytes. Drawn by a seed, over every field."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
Change = Callable[[random.Random], bytes]


@dataclass(frozen=True)
class Mutation:
    """`make` gives the changed bytes; the same bytes as before when the draw has changed nothing."""

    stratum: str
    make: Change


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of everything that is no object or array, and of what is empty."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    if not items:
        yield path
    for name, inner in items:
        yield from leaves(inner, (*path, name))


def lists(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of every array that holds something."""
    if isinstance(value, list) and value:
        yield path
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from lists(inner, (*path, name))


def payloads(value: Any, path: Path = ()) -> Iterator[Path]:
    """The place of every envelope's payload."""
    if isinstance(value, dict):
        if {"payload", "payloadType"} <= value.keys():
            yield (*path, "payload")
        for name, inner in value.items():
            yield from payloads(inner, (*path, name))


def at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


def changed(value: Any, path: Path, new: Any) -> Any:
    """A copy with another value in one place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)  # type: ignore[index]
    return copy


def dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def other_value(value: Any, rng: random.Random) -> Any:
    """Near the old one, of its type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return rng.choice((value + 1, value - 1, -value, value * 2, 0, 1 << 62, 1e-9))
    if isinstance(value, str):
        place = rng.randrange(len(value) + 1)
        longer = value[:place] + rng.choice("0aZ-/+= \u00e9") + value[place:]
        return rng.choice((longer, value[:place] + value[place + 1 :], value.upper(), value.lower(), "", value * 2))
    return rng.choice(([None], ["x"], {"x": 1}, 0, ""))


def other_type(value: Any, rng: random.Random) -> Any:
    kinds: tuple[Any, ...] = (None, True, 0, 1, 1.5, "", "1", [], {}, [value], {"value": value}, str(value))
    return rng.choice([one for one in kinds if type(one) is not type(value)])


def without(value: Any, path: Path) -> Any:
    inside = at(value, path[:-1])
    remaining = (
        {name: item for name, item in inside.items() if name != path[-1]}
        if isinstance(inside, dict)
        else [item for number, item in enumerate(inside) if number != path[-1]]
    )
    return changed(value, path[:-1], remaining)


def more(value: Any, path: Path, rng: random.Random) -> Any:
    """Something beside the field that nobody asked for."""
    inside = at(value, path[:-1])
    extra = rng.choice((None, 1, "x", at(value, path)))
    added = {**inside, f"{path[-1]}_": extra} if isinstance(inside, dict) else [*inside, extra]
    return changed(value, path[:-1], added)


def relisted(value: Any, path: Path, rng: random.Random) -> bytes:
    """An item again, one missing, none, or in another order."""
    items = at(value, path)
    one = rng.randrange(len(items))
    made: tuple[list[Any], ...] = (
        [*items, items[one]],
        items[:one] + items[one + 1 :],
        [],
        items[::-1],
        [items[one], *items],
    )
    return dump(changed(value, path, rng.choice(made)))


def swapped(value: Any, path: Path, rng: random.Random) -> Any:
    """Two fields change places."""
    other = rng.choice([one for one in leaves(value) if one[:-1] == path[:-1]])
    return changed(changed(value, path, at(value, other)), other, at(value, path))


def twice(value: Any, path: Path, rng: random.Random) -> bytes:
    """The name stands twice in its object: with another value first, or last."""
    inside = at(value, path[:-1])
    if not isinstance(inside, dict):
        return dump(changed(value, path[:-1], [*inside, at(value, path)]))
    mark = "\u2603twice"
    other = dump(other_value(at(value, path), rng)).decode()
    pair = [f"{json.dumps(path[-1])}:{dump(at(value, path)).decode()}", f"{json.dumps(path[-1])}:{other}"]
    rng.shuffle(pair)
    text = dump(changed(value, path, mark)).decode()
    return text.replace(f"{json.dumps(path[-1])}:{json.dumps(mark)}", ",".join(pair)).encode()


FIELD_CHANGES: dict[str, Callable[[Any, Path, random.Random], bytes]] = {
    "value": lambda value, path, rng: dump(changed(value, path, other_value(at(value, path), rng))),
    "type": lambda value, path, rng: dump(changed(value, path, other_type(at(value, path), rng))),
    "absent": lambda value, path, rng: dump(without(value, path)),
    "beside": lambda value, path, rng: dump(more(value, path, rng)),
    "swap": lambda value, path, rng: dump(swapped(value, path, rng)),
    "twice": twice,
}


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit, a piece cut out, a piece again, or the end gone."""
    place = rng.randrange(len(data))
    length = rng.randrange(1, 64)
    return rng.choice(
        (
            data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :],
            data[:place] + data[place + length :],
            data[: place + length] + data[place:],
            data[:place],
        )
    )


def mutations(wire: bytes, others: tuple[bytes, ...]) -> list[Mutation]:
    """Every way to change a message, one for each field and kind; `others` are good ones that pieces come from."""
    value = json.loads(wire)
    made = [Mutation("bytes", lambda rng: flipped(wire, rng))] * 3
    for path in leaves(value):
        for kind, change in FIELD_CHANGES.items():
            made.append(Mutation(f"{kind} {_name(path)}", _of_field(change, value, path)))
        for other in map(json.loads, others):
            made.append(Mutation(f"another's {_name(path)}", _of_other(value, other, path)))
    made += [Mutation(f"items {_name(path)}", _of_field(relisted, value, path)) for path in lists(value)] * 2
    for place in payloads(value):
        made.append(Mutation(f"bytes of {_name(place)}", _of_payload(value, place, flipped)))
        inner = json.loads(base64.b64decode(at(value, place)))
        for path in leaves(inner):
            for kind, change in FIELD_CHANGES.items():
                act = _of_field(change, inner, path)
                made.append(Mutation(f"{kind} signed {_name(path)}", _of_payload(value, place, _ignoring(act))))
    return made


def _name(path: Path) -> str:
    return ".".join("*" if isinstance(one, int) else one for one in path)


def _of_field(change: Callable[[Any, Path, random.Random], bytes], value: Any, path: Path) -> Change:
    return lambda rng: change(value, path, rng)


def _of_other(value: Any, other: Any, path: Path) -> Change:
    def make(_: random.Random) -> bytes:
        try:
            return dump(changed(value, path, at(other, path)))
        except (KeyError, IndexError, TypeError):
            return dump(value)

    return make


def _of_payload(value: Any, place: Path, act: Callable[[bytes, random.Random], bytes]) -> Change:
    def make(rng: random.Random) -> bytes:
        inner = act(base64.b64decode(at(value, place)), rng)
        return dump(changed(value, place, base64.b64encode(inner).decode()))

    return make


def _ignoring(act: Change) -> Callable[[bytes, random.Random], bytes]:
    return lambda _, rng: act(rng)
