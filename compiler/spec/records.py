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
    """The description of a record's field."""

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
        """Returns the value of the field where the document leaves it out."""
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
    attributes = {
        "form": form,
        "words": words,
        "called": called,
        "always": always,
        "kinds": kinds,
        "defaults": dict(defaults or {}),
    }
    return field(default=default, metadata={"member": attributes})


def members_of(kind: type[Any]) -> tuple[Member, ...]:
    """The fields of a record, in order."""
    members = []
    for record_field in dataclasses.fields(kind):
        attributes = record_field.metadata.get("member")
        if attributes is not None:
            members.append(
                Member(
                    record_field.name,
                    **{**attributes, "called": attributes["called"] or record_field.name},
                    default=record_field.default,
                )
            )
    return tuple(members)


def read_record(kind: type[Record], value: object, place: Place, *, without: Collection[str] = ()) -> Record:
    """A record of what a document holds at `place`. A field that is null is as if it were left out.

    Raises: the place's error for a field that nobody knows (with the nearest name), or of a value that does not fit.
    """
    mapping = as_mapping(value, place, kind_hint(kind, value))
    members = [spec_field for spec_field in members_of(kind) if spec_field.called not in without]
    variant = _variant(members, mapping, place)
    _check_names(members, variant, mapping, place)
    read = {}
    for spec_field in members:
        if not spec_field.is_for(variant):
            continue
        default, entry = spec_field.default_for(variant), mapping.get(spec_field.called)
        read[spec_field.name] = (
            default
            if entry is None and default is not MISSING
            else spec_field.form.read(entry, place.field(spec_field.called))
        )
    return kind(**read)


def kind_hint(kind: type[Any], value: object) -> str:
    """Returns how to say what a word alone in place of a record means: its kind."""
    forms = [spec_field.form for spec_field in members_of(kind) if spec_field.called == "kind"]
    is_kind = any(isinstance(form, OneOf) and value in form.choices for form in forms)
    return f"say {{kind: {value}}}" if is_kind else ""


def plain_record(record: Any) -> dict[str, Json]:
    """Plain data that `read_record` makes the same record of, without what has its default and is not always there."""
    variant = getattr(record, "kind", "")
    plain = {}
    for spec_field in members_of(type(record)):
        value = getattr(record, spec_field.name)
        if spec_field.is_for(variant) and (spec_field.always or value != spec_field.default_for(variant)):
            plain[spec_field.called] = spec_field.form.plain(value)
    return plain


def every_field(record: Any, where: str = "") -> Iterator[tuple[str, Json, bool]]:
    """(place, value, whether it is the default) of every field that a record has, those of records in it too."""
    variant, without = str(getattr(record, "kind", "")), getattr(record, "without", ())
    for spec_field in members_of(type(record)):
        if not spec_field.is_for(variant) or spec_field.called in without:
            continue
        value, place = getattr(record, spec_field.name), f"{where}{spec_field.called}"
        inner = _records_in(value)
        if inner:
            for name, entry in inner:
                yield from every_field(entry, f"{place}{name}.")
        else:
            plain = None if value is None else spec_field.form.plain(value)
            yield place, plain, value == spec_field.default_for(variant)


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
    members = [spec_field for spec_field in members_of(kind) if spec_field.called not in without]
    kind_field = next((spec_field for spec_field in members if spec_field.called == "kind"), None)
    if (
        kind_field is None
        or not isinstance(kind_field.form, OneOf)
        or not any(spec_field.kinds or spec_field.defaults for spec_field in members)
    ):
        return _object(members, "", kind_field)
    return {"oneOf": [_object(members, variant, kind_field) for variant in kind_field.form.choices]}


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


def _variant(members: Collection[Member], mapping: Mapping[str, object], place: Place) -> str:
    """The record's kind; empty if it has none."""
    kind_field = next((spec_field for spec_field in members if spec_field.called == "kind"), None)
    if kind_field is None:
        return ""
    value = mapping.get("kind")
    return str(kind_field.default if value is None else kind_field.form.read(value, place.field("kind")))


def _check_names(members: Collection[Member], variant: str, mapping: Mapping[str, object], place: Place) -> None:
    allowed = [spec_field.called for spec_field in members if spec_field.is_for(variant)]
    unknown = [name for name in mapping if name not in allowed]
    of_no_kind = [name for name in unknown if not any(spec_field.called == name for spec_field in members)]
    for name in (*of_no_kind, *unknown):  # a misspelt `kind` is why others are of another kind
        other_kind_field = next((spec_field for spec_field in members if spec_field.called == name), None)
        if other_kind_field is not None:
            hint = f"kind: {variant} has none; it is for {', '.join(other_kind_field.kinds)}"
        else:
            hint = near_hint(name, allowed) or f"known fields: {', '.join(allowed)}"
        raise place.field(name[:60]).refused("unknown field", hint)


def _object(members: Collection[Member], variant: str, kind_field: Member | None) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    required: list[str] = []
    for spec_field in members:
        if not spec_field.is_for(variant):
            continue
        default = spec_field.default_for(variant)
        if variant and spec_field is kind_field:
            properties[spec_field.called] = {"const": variant, "description": spec_field.words}
            required += [spec_field.called] if variant != spec_field.default else []
            continue
        properties[spec_field.called] = {**spec_field.form.schema(), "description": spec_field.words}
        if default is MISSING:
            required.append(spec_field.called)
        elif default is None:
            properties[spec_field.called] |= {"default": None} if isinstance(spec_field.form, Optional) else {}
        elif default != ():
            properties[spec_field.called]["default"] = spec_field.form.plain(default)
    body: dict[str, Json] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**body, "required": required} if required else body
