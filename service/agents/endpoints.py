"""The agent's side of the API: `/agent/…`, as `device_agents/wire/` says."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from device_agents import wire
from device_agents.wire.log_lines import note
from service.access import FarmDep, bearer_token
from service.agents import enrolment, leasing, recording
from service.agents.bodies import described, sent
from service.agents.enrolment import Agent
from service.database.models import Run
from service.farm import Farm
from service.files import BINARY, file_response, store_body
from service.identifiers import DIGEST
from service.problems import Invalid, NotFound

LEASE_POLL_S = 0.5


def _check_protocol(request: Request) -> None:
    spoken = request.headers.get(wire.PROTOCOL_HEADER)
    if spoken != wire.PROTOCOL:
        raise Invalid("protocol.version", f"this farm speaks {wire.PROTOCOL}, the request {spoken or 'nothing'}",
                      where=wire.PROTOCOL_HEADER, hint="update the agent")  # fmt: skip


def _authenticate(request: Request, farm: FarmDep) -> Agent:
    with farm.database.read() as session:
        agent = enrolment.authenticate(session, bearer_token(request))
    note(device=agent.device_id)
    return agent


router = APIRouter(tags=["agents"], dependencies=[Depends(_check_protocol)], default_response_class=Response)
AgentDep = Annotated[Agent, Depends(_authenticate)]


def _json(value: object, status: int = 200) -> Response:
    return Response(wire.dumps(value), status, media_type="application/json")


@router.post(wire.ENROL_PATH, status_code=201, openapi_extra=described(wire.EnrolRequest))
def enrol(farm: FarmDep, body: Annotated[wire.EnrolRequest, sent(wire.EnrolRequest)]) -> Response:
    """Become a device, by a one-time token."""
    with farm.database.transaction() as session:
        return _json(enrolment.enrol(session, farm, body), 201)


@router.post(wire.CHALLENGE_PATH, openapi_extra=described(wire.ChallengeRequest))
def challenge(farm: FarmDep, body: Annotated[wire.ChallengeRequest, sent(wire.ChallengeRequest)]) -> Response:
    """Something fresh to sign."""
    with farm.database.read() as session:
        return _json(enrolment.challenge(session, farm, body.device_id))


@router.post(wire.RENEW_PATH, openapi_extra=described(wire.RenewRequest))
def renew(request: Request, farm: FarmDep, body: Annotated[wire.RenewRequest, sent(wire.RenewRequest)]) -> Response:
    """A fresh credential, by the device's signature."""
    with farm.database.transaction() as session:
        return _json(enrolment.renew(session, farm, body, clock=_clock_of(request)))


@router.post(wire.LEASE_PATH, responses={204: {"description": "No work now"}},
             openapi_extra=described(wire.LeaseRequest))  # fmt: skip
async def lease(
    request: Request, farm: FarmDep, agent: AgentDep, body: Annotated[wire.LeaseRequest, sent(wire.LeaseRequest)]
) -> Response:
    """Ask for work; held open until there is some."""
    give_up_at = time.monotonic() + max(0.0, min(wire.MAX_LONG_POLL_S, body.wait_s))
    seeker = await run_in_threadpool(_seek, farm, agent, body, _clock_of(request))
    while seeker.is_welcome:
        assignment = await run_in_threadpool(_try_lease, farm, agent, seeker)
        if assignment is not None:
            return _json(assignment)
        if time.monotonic() >= give_up_at or await request.is_disconnected():
            break
        await asyncio.sleep(min(LEASE_POLL_S, farm.settings.poll_s))
    if not seeker.is_welcome:
        await asyncio.sleep(max(0.0, give_up_at - time.monotonic()))
    return Response(status_code=204)


def _clock_of(request: Request) -> float | None:
    """What time it is to the device; None if its agent does not say."""
    try:
        return float(request.headers.get(wire.CLOCK_HEADER, ""))
    except ValueError:
        return None


def _seek(farm: Farm, agent: Agent, body: wire.LeaseRequest, clock: float | None) -> leasing.Seeker:
    with farm.database.transaction() as session:
        return leasing.seek(session, farm, agent, body, clock=clock)


def _try_lease(farm: Farm, agent: Agent, seeker: leasing.Seeker) -> wire.Assignment | None:
    with farm.database.read() as session:
        found = leasing.candidates(session, seeker)
    for run_id in found:
        with farm.database.transaction() as session:
            assignment = leasing.lease(session, farm, agent, run_id)
        if assignment is not None:
            return assignment
    return None


@router.post(wire.HEARTBEAT_PATH, openapi_extra=described(wire.HeartbeatRequest))
def heartbeat(
    lease_token: str, farm: FarmDep, agent: AgentDep,
    body: Annotated[wire.HeartbeatRequest, sent(wire.HeartbeatRequest)],
) -> Response:  # fmt: skip
    """Renew the lease of an attempt."""
    with farm.database.transaction() as session:
        return _json(recording.heartbeat(session, farm, agent, lease_token, body))


@router.post(wire.EVENTS_PATH, openapi_extra=described(wire.EventBatch))
def take_events(
    lease_token: str, farm: FarmDep, agent: AgentDep, body: Annotated[wire.EventBatch, sent(wire.EventBatch)]
) -> Response:
    """Record what happens in an attempt."""
    with farm.database.transaction() as session:
        return _json(recording.take_events(session, agent, lease_token, body))


@router.post(wire.REPORT_PATH, openapi_extra=described(wire.Envelope))
def take_report(
    lease_token: str, farm: FarmDep, agent: AgentDep, body: Annotated[wire.Envelope, sent(wire.Envelope)]
) -> Response:
    """Record how an attempt ended."""
    with farm.database.transaction() as session:
        answer = recording.take_report(session, farm, agent, lease_token, body)
    if isinstance(answer, Invalid):
        raise answer  # after the transaction: the attempt has ended
    return _json(answer)


@router.put(wire.WEIGHTS_PATH, status_code=201)
async def put_weights(lease_token: str, request: Request, farm: FarmDep, agent: AgentDep) -> Response:
    """Upload an attempt's trained weights, before the report that names them."""
    digest = request.headers.get(wire.DIGEST_HEADER, "")
    if not DIGEST.fullmatch(digest):
        raise Invalid("upload.digest", "missing, or not sha256:<hex>", where=wire.DIGEST_HEADER, cause="device")
    await run_in_threadpool(_attempt_run, farm, agent, lease_token, live=False)
    stored = await store_body(
        request, farm.storage, limit_bytes=farm.settings.weights_limit_bytes, what="weights", digest=digest
    )

    def act() -> None:
        with farm.database.transaction() as session:
            recording.take_weights(session, agent, lease_token, stored)

    await run_in_threadpool(act)
    return Response(status_code=201)


def _attempt_run(farm: Farm, agent: Agent, lease_token: str, *, live: bool = True) -> Run:
    """The run of the agent's attempt. Raises: Conflict."""
    with farm.database.read() as session:
        find = recording.live_attempt if live else recording.find_attempt
        return session.get_one(Run, find(session, agent, lease_token).run_id)


@router.get(wire.WEIGHTS_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_weights(lease_token: str, request: Request, farm: FarmDep, agent: AgentDep) -> Response:
    """The attempt's starting weights."""
    digest = _attempt_run(farm, agent, lease_token).weights_digest
    return _download(request, farm, digest, "the run starts from the bundle's own weights")


@router.get(wire.BUNDLE_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_bundle(lease_token: str, request: Request, farm: FarmDep, agent: AgentDep) -> Response:
    """The attempt's bundle."""
    return _download(request, farm, _attempt_run(farm, agent, lease_token).bundle_digest, "")


@router.get(wire.DATASET_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_dataset(lease_token: str, request: Request, farm: FarmDep, agent: AgentDep) -> Response:
    """The attempt's data set."""
    return _download(request, farm, _attempt_run(farm, agent, lease_token).dataset_digest, "the run has no data set")


@router.get(wire.VALIDATION_DATASET_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_validation_dataset(lease_token: str, request: Request, farm: FarmDep, agent: AgentDep) -> Response:
    """The data set that the attempt's training is validated on."""
    digest = _attempt_run(farm, agent, lease_token).validation_dataset_digest
    return _download(request, farm, digest, "the run has no data set to validate on")


def _download(request: Request, farm: Farm, digest: str | None, without: str) -> Response:
    if digest is None:
        raise NotFound("attempt.no-file", without)
    return file_response(request, farm, digest, filename=digest.removeprefix("sha256:")[:12])
