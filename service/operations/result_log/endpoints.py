"""`/log`: the log of results for whoever audits the farm; and the receipt of a run's result, checked offline.

The log shows hashes: what an entry says is told to those whose run it was, by their receipt.

Answers of the log.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from device_agents.wire import dumps
from service.base.problems import Invalid, NotFound
from service.base.schemas import SIGNED, View
from service.operations.result_log import log
from service.people.access import FarmDep, PrincipalDep, WholeFarmDep
from service.work.runs import service as runs


class LeavesView(View):
    """A piece of the log."""

    start: int
    size: int
    """Size of the whole log."""
    leaves: list[str]
    """SHA-256 of a zero byte and the entry's canonical JSON, hex; the first is that of `start`."""


class HeadView(View):
    """A head that the farm kept."""

    size: int
    paper: dict[str, Any]
    """The signed head that `GET /log/head` returned then."""


class HeadsView(View):
    """Kept heads, the oldest first; empty: there are no more."""

    heads: list[HeadView]


class ConsistencyView(View):
    """A proof as in RFC 9162, 2.1.4."""

    first: int
    second: int
    proof: list[str]


router = APIRouter(tags=["log"])
Index = Annotated[int, Query(ge=0, le=1 << 53)]


@router.get("/log/checkpoint", response_class=Response, responses=SIGNED)
def show_checkpoint(farm: WholeFarmDep, _: PrincipalDep) -> Response:
    """Returns the log's size and root hash now, signed by the farm: a DSSE envelope."""
    with farm.database.read() as session:
        return Response(dumps(log.checkpoint(session, farm)), media_type="application/json")


@router.get("/log/head", response_class=Response, responses=SIGNED)
def show_head(farm: WholeFarmDep, _: PrincipalDep) -> Response:
    """Returns the same as `/log/checkpoint`, with the signing key and its chain to the root. `pockfarm log check`
    stores it.
    """
    with farm.database.read() as session:
        return Response(dumps(log.head(session, farm)), media_type="application/json")


@router.get("/log/heads")
def list_heads(
    farm: WholeFarmDep, _: PrincipalDep, after: Index = 0, limit: Annotated[int, Query(ge=1, le=100)] = 100
) -> HeadsView:
    """Lists heads that the farm signed and stored now and then, of more results than `after`, so that the log can be
    checked against them.
    """
    with farm.database.read() as session:
        heads = log.kept_heads(session, after, limit)
        return HeadsView(heads=[HeadView(size=head.size, paper=json.loads(head.paper)) for head in heads])


@router.get("/log/entries")
def list_leaves(
    farm: WholeFarmDep, _: PrincipalDep, start: Index = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> LeavesView:
    """Returns the leaf hashes of the log from an index on, in order."""
    with farm.database.read() as session:
        return LeavesView(start=start, size=log.size(session), leaves=log.leaves(session, start, limit))


@router.get("/log/consistency")
def show_consistency(farm: WholeFarmDep, _: PrincipalDep, first: Index, second: Index) -> ConsistencyView:
    """Returns the hashes that show the log of `first` results to be the beginning of that of `second`."""
    with farm.database.read() as session:
        count = log.size(session)
        if not 0 < first <= second <= count:
            raise Invalid(
                "log.sizes",
                f"{first} and {second}, the log has {count}",
                where="first",
                hint="0 < first <= second <= the size of a checkpoint",
            )
        return ConsistencyView(first=first, second=second, proof=list(log.consistency(session, first, second)))


@router.get("/runs/{run_id}/receipt", response_class=Response, responses=SIGNED, tags=["runs"])
def show_receipt(run_id: str, scoped_farm: FarmDep, farm: WholeFarmDep, _: PrincipalDep) -> Response:
    """Returns the proof of the run's result without the farm: `pockfarm verify` reads it."""
    with scoped_farm.database.read() as session:
        run = runs.find(session, run_id)
        runs.result_of(session, run)
    log.log_results(farm)
    with farm.database.read() as session:
        receipt = log.receipt(session, farm, run)
    if receipt is None:
        raise NotFound("receipt.later", "this result is not in the log yet", hint="ask again in a few seconds")
    return Response(dumps(receipt), media_type="application/json")
