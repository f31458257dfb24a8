"""The query fields of addresses: fields that an address does not have, and values that none of its rows can have, are
refused, with the name that was meant. Left unsaid, a misspelt filter would show every row, or none, as if that were so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import get_args, get_origin

from fastapi import Request, params
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from service.base.problems import Invalid
from service.people.access import WholeFarmDep
from service.people.permissions import Permissions

LONGEST = 100
"""Characters of a name that was given which are looked up, and quoted."""
_known: dict[str, tuple[str, ...]] = {}
"""Query fields by address, worked out once in a process."""


def suggestion(text: str, choices: Iterable[str], otherwise: str) -> str:
    """Suggests a known name: `did you mean 'state'? `, before what to do `otherwise`; that alone if no known name is
    near.
    """
    names = {name.lower(): name for name in choices}
    near = difflib.get_close_matches(text[:LONGEST].lower(), names, n=1)
    return f"did you mean {names[near[0]]!r}? {otherwise}" if near else otherwise


def check_value(where: str, text: str | None, choices: Sequence[str]) -> None:
    """Raises: Invalid if a value is given, and is none of those that there are."""
    if text and text not in choices:
        raise Invalid(
            "query.value",
            f"there is no {where.replace('_', ' ')} {text[:LONGEST]!r}",
            where=where,
            hint=suggestion(text, choices, f"there are: {', '.join(choices)}"),
        )


async def refuse_unknown_fields(request: Request, farm: WholeFarmDep) -> None:
    """Refuses unknown query fields of addresses that ask for a key; others are for devices and browsers, of other
    releases too. Raises: Invalid.
    """
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    address = f"{request.method} {route.path}"
    if farm.part(Permissions).rule_of(address).scope is None or not isinstance(route, APIRoute):
        return
    fields = _known.get(address)
    if fields is None:
        fields = _known[address] = fields_of(route.dependant)
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1 and name not in _lists_of(route.dependant):
            raise Invalid(
                "query.repeated",
                f"{name[:LONGEST]} is asked for more than once",
                where=f"query.{name[:LONGEST]}",
                hint="ask once for each value",
            )
        if name not in fields:
            there = f"it has: {', '.join(fields)}" if fields else "it has none"
            raise Invalid(
                "query.unknown",
                f"{route.path} has no query field {name[:LONGEST]!r}",
                where=f"query.{name[:LONGEST]}",
                hint=suggestion(name, fields, there),
            )


def fields_of(dependant: Dependant) -> tuple[str, ...]:
    """Returns an address's query fields, in the order in which the endpoint names them."""
    parameters = (
        parameter for parameter in get_flat_params(dependant) if isinstance(parameter.field_info, params.Query)
    )
    return tuple(dict.fromkeys(parameter.alias for parameter in parameters))


def _lists_of(dependant: Dependant) -> frozenset[str]:
    """Returns the query parameters that may be given more than once."""
    annotations = ((parameter.alias, parameter.field_info.annotation) for parameter in get_flat_params(dependant))
    return frozenset(
        name
        for name, kind in annotations
        if any(get_origin(annotation) is list for annotation in (kind, *get_args(kind)))
    )
