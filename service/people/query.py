"""What an address may be asked for: query fields that it does not have, and values that none of its rows can have, are
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


def meant(given: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'state'? `, before what to do `otherwise`; that alone if no known name is near."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(given[:LONGEST].lower(), names, n=1)
    return f"did you mean {names[near[0]]!r}? {otherwise}" if near else otherwise


def check_value(where: str, given: str | None, known: Sequence[str]) -> None:
    """Raises: Invalid if a value is given, and is none of those that there are."""
    if given and given not in known:
        raise Invalid(
            "query.value",
            f"there is no {where.replace('_', ' ')} {given[:LONGEST]!r}",
            where=where,
            hint=meant(given, known, f"there are: {', '.join(known)}"),
        )


async def refuse_unknown_fields(request: Request, farm: WholeFarmDep) -> None:
    """Of addresses that ask for a key; others are for devices and browsers, of other releases too. Raises: Invalid."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    address = f"{request.method} {route.path}"
    if farm.part(Permissions).rule_of(address).scope is None or not isinstance(route, APIRoute):
        return
    known = _known.get(address)
    if known is None:
        known = _known[address] = fields_of(route.dependant)
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1 and name not in _lists_of(route.dependant):
            raise Invalid(
                "query.repeated",
                f"{name[:LONGEST]} is asked for more than once",
                where=f"query.{name[:LONGEST]}",
                hint="ask once for each value",
            )
        if name not in known:
            there = f"it has: {', '.join(known)}" if known else "it has none"
            raise Invalid(
                "query.unknown",
                f"{route.path} has no query field {name[:LONGEST]!r}",
                where=f"query.{name[:LONGEST]}",
                hint=meant(name, known, there),
            )


def fields_of(dependant: Dependant) -> tuple[str, ...]:
    """An address's query fields, in the order in which the endpoint names them."""
    found = (one for one in get_flat_params(dependant) if isinstance(one.field_info, params.Query))
    return tuple(dict.fromkeys(one.alias for one in found))


def _lists_of(dependant: Dependant) -> frozenset[str]:
    """Those that may be given more than once."""
    found = ((one.alias, one.field_info.annotation) for one in get_flat_params(dependant))
    return frozenset(name for name, kind in found if any(get_origin(one) is list for one in (kind, *get_args(kind))))
