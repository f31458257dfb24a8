"""Records of plans and specs: dataclasses whose fields say what they may hold.

    @dataclass(frozen=True)
    class UpdateRule:
        parameters: tuple[str, ...] = member(Names(), "names or globs")
        ratio: float = member(Number(0, 1), "share of the channels that learns", default=1.0)

From such a class follow the reader (`read_record`), the plain data of the canonical text (`plain_record`) and the JSON
Schema (`schema_of`). Where a record has kinds (a loss, an optimizer), it has a field `kind`, and the others say which
kinds take them and, where kinds differ, their defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar

from compiler.spec.forms import Form, Json, OneOf, Optional, Place, as_mapping, near_hint

Record = TypeVar("Record")


@dataclass(frozen=True)
class Member:
    """What is known of a record's field."""

    name: str
    """The attribute."""
    called: str
    """The field in a document."""
    form: Form
    words: str
    default: Any
    """`MISSING` if it must be given."""
    always: bool
    """Whether the canonical text holds it even where it is the default."""
    kinds: Collection[str]
    """Kinds of the record that take it; empty: all."""
    defaults: Mapping[str, Any]
    """Defaults of kinds that have their own."""

    def is_for(self, kind: str) -> bool:
        """Whether a record of this kind has it."""
        return not self.kinds or kind in self.kinds

    def default_for(self, kind: str) -> Any:
        """What it is where the document leaves it out."""
        return self.defaults.get(kind, self.default)


def member(
    form: Form,
    words: str,
    *,
    default: Any = MISSING,
    called: str = "",
    always: bool = False,
    kinds: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """A field of a record; see `Member`. A new one is not `always`: documents without it keep their digest."""
    known = {
        "form": form,
        "words": words,
        "called": called,
        "always": always,
        "kinds": kinds,
        "defaults": dict(defaults or {}),
    }
    return field(default=default, metadata={"member": known})


def members_of(kind: type[Any]) -> tuple[Member, ...]:
    """The fields of a record, in order."""
    found = []
    for one in dataclasses.fields(kind):
        known = one.metadata.get("member")
        if known is not None:
            found.append(Member(one.name, **{**known, "called": known["called"] or one.name}, default=one.default))
    return tuple(found)


def read_record(kind: type[Record], value: object, place: Place, *, without: Collection[str] = ()) -> Record:
    """A record of what a document holds at `place`. A field that is null is as if it were left out.

    Raises: the place's error for a field that nobody knows (with the nearest name), or of a value that does not fit.
    """
    given = as_mapping(value, place, kind_hint(kind, value))
    members = [one for one in members_of(kind) if one.called not in without]
    variant = _variant(members, given, place)
    _check_names(members, variant, given, place)
    read = {}
    for one in members:
        if not one.is_for(variant):
            continue
        default, entry = one.default_for(variant), given.get(one.called)
        read[one.name] = (
            default if entry is None and default is not MISSING else one.form.read(entry, place.field(one.called))
        )
    return kind(**read)


def kind_hint(kind: type[Any], value: object) -> str:
    """How to say what a word alone in place of a record means: its kind."""
    forms = [one.form for one in members_of(kind) if one.called == "kind"]
    is_kind = any(isinstance(form, OneOf) and value in form.choices for form in forms)
    return f"say {{kind: {value}}}" if is_kind else ""


def plain_record(record: Any) -> dict[str, Json]:
    """Plain data that `read_record` makes the same record of, without what has its default and is not always there."""
    variant = getattr(record, "kind", "")
    told = {}
    for one in members_of(type(record)):
        value = getattr(record, one.name)
        if one.is_for(variant) and (one.always or value != one.default_for(variant)):
            told[one.called] = one.form.plain(value)
    return told


def every_field(record: Any, where: str = "") -> Iterator[tuple[str, Json, bool]]:
    """(place, value, whether it is the default) of every field that a record has, those of records in it too."""
    variant, without = str(getattr(record, "kind", "")), getattr(record, "without", ())
    for one in members_of(type(record)):
        if not one.is_for(variant) or one.called in without:
            continue
        value, place = getattr(record, one.name), f"{where}{one.called}"
        inner = _records_in(value)
        if inner:
            for name, entry in inner:
                yield from every_field(entry, f"{place}{name}.")
        else:
            plain = None if value is None else one.form.plain(value)
            yield place, plain, value == one.default_for(variant)


def _records_in(value: object) -> list[tuple[str, Any]]:
    """(where, record) if a value is a record, some in a list, or some by name."""
    if _is_record(value):
        return [("", value)]
    entries = value if isinstance(value, tuple) else ()
    if entries and all(_is_record(entry) for entry in entries):
        return [(f"[{number}]", entry) for number, entry in enumerate(entries)]
    if entries and all(isinstance(entry, tuple) and len(entry) == 2 and _is_record(entry[1]) for entry in entries):
        return [(f".{name}", entry) for name, entry in entries]
    return []


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and bool(members_of(type(value)))


def schema_of(kind: type[Any], *, without: Collection[str] = ()) -> dict[str, Json]:
    """JSON Schema of what `read_record` takes: one object, or one for each kind."""
    members = [one for one in members_of(kind) if one.called not in without]
    told = next((one for one in members if one.called == "kind"), None)
    if told is None or not isinstance(told.form, OneOf) or not any(one.kinds or one.defaults for one in members):
        return _object(members, "", told)
    return {"oneOf": [_object(members, variant, told) for variant in told.form.choices]}


@dataclass(frozen=True)
class RecordOf:
    """A form: a record of this class."""

    kind: type[Any]
    without: tuple[str, ...] = ()

    def read(self, value: object, place: Place) -> Any:
        """The record."""
        return read_record(self.kind, value, place, without=self.without)

    def plain(self, value: Any) -> Json:
        """Its fields."""
        return plain_record(value)

    def schema(self) -> dict[str, Json]:
        """An object."""
        return schema_of(self.kind, without=self.without)


def _variant(members: Collection[Member], given: Mapping[str, object], place: Place) -> str:
    """The record's kind; empty if it has none."""
    told = next((one for one in members if one.called == "kind"), None)
    if told is None:
        return ""
    value = given.get("kind")
    return str(told.default if value is None else told.form.read(value, place.field("kind")))


def _check_names(members: Collection[Member], variant: str, given: Mapping[str, object], place: Place) -> None:
    known = [one.called for one in members if one.is_for(variant)]
    unknown = [name for name in given if name not in known]
    of_no_kind = [name for name in unknown if not any(one.called == name for one in members)]
    for name in (*of_no_kind, *unknown):  # a misspelt `kind` is why others are of another kind
        elsewhere = next((one for one in members if one.called == name), None)
        if elsewhere is not None:
            hint = f"kind: {variant} has none; it is for {', '.join(elsewhere.kinds)}"
        else:
            hint = near_hint(name, known) or f"known fields: {', '.join(known)}"
        raise place.field(name[:60]).refused("unknown field", hint)


def _object(members: Collection[Member], variant: str, told: Member | None) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    required: list[str] = []
    for one in members:
        if not one.is_for(variant):
            continue
        default = one.default_for(variant)
        if variant and one is told:
            properties[one.called] = {"const": variant, "description": one.words}
            required += [one.called] if variant != one.default else []
            continue
        properties[one.called] = {**one.form.schema(), "description": one.words}
        if default is MISSING:
            required.append(one.called)
        elif default is None:
            properties[one.called] |= {"default": None} if isinstance(one.form, Optional) else {}
        elif default != ():
            properties[one.called]["default"] = one.form.plain(default)
    body: dict[str, Json] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**body, "required": required} if required else body
