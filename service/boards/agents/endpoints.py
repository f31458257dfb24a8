"""The agent's side of the API: `/agent/…`, as `device_agents/wire/` says.

The body of an agent's request, as a dependency: `Annotated[EnrolRequest, sent(EnrolRequest)]`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from device_agents import wire
from device_agents.wire import DIGEST_HEADER, ProtocolError, loads
from device_agents.wire.log_lines import note
from device_agents.wire.paths import OLDER_PROTOCOLS
from service.base.identifiers import DIGEST
from service.base.problems import Invalid, NotFound, Problem
from service.base.text import strange_character
from service.boards.agents import enrolment, leasing, recording, trained
from service.boards.agents.enrolment import Agent, Caller, Present
from service.boards.releases.offering import offer, offered_release, program_of
from service.devices import machines
from service.devices.conditions import Conditions
from service.people.access import WholeFarmDep, bearer_token
from service.people.audit.command_entries import address_of
from service.people.holdings.keeping import removed_if_refused
from service.people.limits import declared_bytes
from service.store.database.models import Device, Run
from service.store.farm import Farm
from service.store.files import BINARY, file_response, store_body
from service.store.garbage.collecting import remove_unneeded
from service.store.storage import StoredFile
from service.work.lanes.claim import Seeker
from service.work.lanes.dispatch import Dispatcher
from service.work.runs import checkpoints

T = TypeVar("T")
AT_ONCE_BYTES = 16 << 10
"""A body up to this long is read quicker than a thread is woken."""
FREE_TEXTS = ("phase",)
"""Cleaned, not refused: they are for people."""


def wire_body(kind: type[T]) -> Any:
    """Returns the annotation that reads the body as one wire type, with its texts (ids, keys, secrets, lists of ids)
    fit to be looked up.

    Raises: ProtocolError. Whoever calls is known by then if its dependency comes first in the signature.
    """
    return Depends(_reader(kind))


def described(kind: type) -> dict[str, Any]:
    """Describes the body for OpenAPI, field by field, as the agent protocol has it."""
    text = f"`{kind.__name__}` of the agent protocol (docs/protocol.md)"
    schema = TypeAdapter(kind).json_schema()
    whole = _closed(schema, schema.get("$defs", {}))
    return {"requestBody": {"required": True, "description": text, "content": {"application/json": {"schema": whole}}}}


def described_file() -> dict[str, Any]:
    """Describes a raw file as the body, with its digest beside it, for OpenAPI."""
    digest = {
        "name": DIGEST_HEADER,
        "in": "header",
        "required": True,
        "description": "`sha256:` of the body",
        "schema": {"type": "string", "pattern": f"^{DIGEST.pattern}$"},
    }
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"parameters": [digest], "requestBody": {"required": True, "content": content}}


def _closed(schema: Any, parts: Mapping[str, Any]) -> Any:
    """Returns the schema with its references replaced by what they refer to, and with objects that allow no unknown
    fields.
    """
    if isinstance(schema, list):
        return [_closed(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _closed(parts[schema["$ref"].rpartition("/")[2]], parts)
    closed = {name: _closed(part, parts) for name, part in schema.items() if name != "$defs"}
    return {**closed, "additionalProperties": False} if "properties" in closed else closed


def _reader(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    async def read(request: Request) -> T:
        data = await request.body()
        body = loads(kind, data) if len(data) <= AT_ONCE_BYTES else await run_in_threadpool(loads, kind, data)
        for name, value in vars(body).items():
            texts = value if isinstance(value, tuple) else (value,)
            strange = next(filter(None, (strange_character(text) for text in texts if isinstance(text, str))), None)
            if strange is not None and name not in FREE_TEXTS:
                raise ProtocolError(name, f"a text with the character {strange}, which is not text")
        return body

    return read


async def _check_protocol(request: Request) -> None:
    spoken = request.headers.get(wire.PROTOCOL_HEADER)
    is_finishing = spoken in OLDER_PROTOCOLS and request.url.path != wire.LEASE_PATH
    if spoken != wire.PROTOCOL and not is_finishing:
        raise Invalid(
            "protocol.version",
            f"this farm speaks {wire.PROTOCOL}, the request {spoken or 'nothing'}",
            where=wire.PROTOCOL_HEADER,
            hint="update the agent: run its line of enrolment again",
        )


def _authenticate(request: Request, farm: WholeFarmDep) -> Agent:
    with farm.database.read() as session:
        agent = enrolment.authenticate(session, bearer_token(request))
    note(device=agent.device_id)
    return agent


def _present(request: Request, farm: WholeFarmDep) -> Present:
    with farm.database.read() as session:
        present = enrolment.present(session, bearer_token(request))
    note(device=present.agent.device_id)
    return present


router = APIRouter(tags=["agents"], dependencies=[Depends(_check_protocol)], default_response_class=Response)
AgentDep = Annotated[Agent, Depends(_authenticate)]
PresentDep = Annotated[Present, Depends(_present)]


def _json(value: object, status: int = 200) -> Response:
    return Response(wire.dumps(value), status, media_type="application/json")


def _answered(answer: object, status: int = 200) -> Response:
    """Raises the problem that came instead of an answer, now that what was noted of it is committed."""
    if isinstance(answer, Problem):
        raise answer
    return _json(answer, status)


@router.post(wire.ENROL_PATH, status_code=201, openapi_extra=described(wire.EnrolRequest))
def enrol(
    request: Request, farm: WholeFarmDep, body: Annotated[wire.EnrolRequest, wire_body(wire.EnrolRequest)]
) -> Response:
    """Enrols a device by a one-time token."""
    with farm.database.transaction() as session:
        answer = enrolment.enrol(session, farm, body, _caller(request))
    return _answered(answer, 201)


@router.post(wire.CHALLENGE_PATH, openapi_extra=described(wire.ChallengeRequest))
def challenge(farm: WholeFarmDep, body: Annotated[wire.ChallengeRequest, wire_body(wire.ChallengeRequest)]) -> Response:
    """Returns a fresh challenge to sign."""
    with farm.database.read() as session:
        return _json(enrolment.challenge(session, farm, body.device_id))


@router.post(wire.RENEW_PATH, openapi_extra=described(wire.RenewRequest))
def renew(
    request: Request, farm: WholeFarmDep, body: Annotated[wire.RenewRequest, wire_body(wire.RenewRequest)]
) -> Response:
    """Returns a fresh credential, by the device's signature."""
    with farm.database.transaction() as session:
        answer = enrolment.renew(session, farm, body, _caller(request))
    return _answered(answer)


@router.post(
    wire.LEASE_PATH, responses={204: {"description": "No work now"}}, openapi_extra=described(wire.LeaseRequest)
)
async def lease(
    request: Request,
    farm: WholeFarmDep,
    caller: PresentDep,
    body: Annotated[wire.LeaseRequest, wire_body(wire.LeaseRequest)],
) -> Response:
    """Asks for work. The request is held open until there is some."""
    until = time.monotonic() + max(0.0, min(wire.MAX_LONG_POLL_S, body.wait_s))
    dispatcher, clock, agent = farm.part(Dispatcher), _clock_of(request), caller.agent
    if agent.session == caller.device.session:
        _note_condition(request, farm, agent)
    seeker, called_for = leasing.seeker_at_rest(farm, caller, body, clock), dict[str, bool]()
    if seeker is None:
        answer = await run_in_threadpool(_seek, farm, agent, body, clock)
        if isinstance(answer, wire.Envelope):
            return _json(answer)
        seeker = answer
    with dispatcher.room.waiting(seeker) as waiter:
        while True:
            work = await run_in_threadpool(leasing.work_for, farm, agent, waiter.seeker)
            if work is not None:
                dispatcher.pass_on(called_for | waiter.hear(), taken_from=work.lane_id)
                return _json(work.assignment)
            if not await waiter.is_called(until):
                return Response(status_code=204)
            called_for = waiter.hear()
            if await request.is_disconnected():
                dispatcher.pass_on(called_for)
                return Response(status_code=204)
            changed = await run_in_threadpool(_seek, farm, agent, body, clock) if waiter.is_outdated else None
            if isinstance(changed, wire.Envelope):
                return _json(changed)
            dispatcher.room.back_in_line(waiter, changed)


def _clock_of(request: Request) -> float | None:
    """Returns the device's time; None if its agent does not say, not a number if the agent says nonsense."""
    header = request.headers.get(wire.CLOCK_HEADER)
    try:
        return None if header is None else float(header)
    except ValueError:
        return math.nan


def _note_condition(request: Request, farm: Farm, agent: Agent) -> None:
    """Records the device's condition, if its agent sends it."""
    farm.part(Conditions).note(agent.device_id, request.headers.get(wire.CONDITION_HEADER))


def _caller(request: Request) -> Caller:
    headers = request.headers
    return Caller(
        program_of(headers.get(wire.PROGRAM_HEADER)),
        machines.read(headers.get(wire.MACHINE_HEADER)),
        address_of(request),
        _clock_of(request),
    )


def _seek(farm: Farm, agent: Agent, body: wire.LeaseRequest, clock: float | None) -> Seeker | wire.Envelope:
    """Records that the device seeks work and returns it as a seeker, or returns the agent that it is to become before
    it gets any.
    """
    with farm.database.transaction() as session:
        seeker = leasing.seek(session, farm, agent, body, clock=clock)
        return offer(session, farm, session.get_one(Device, agent.device_id)) or seeker


@router.post(wire.REFUSAL_PATH, status_code=204, openapi_extra=described(wire.Outcome))
def refuse(farm: WholeFarmDep, agent: AgentDep, body: Annotated[wire.Outcome, wire_body(wire.Outcome)]) -> Response:
    """Refuses the assignment that was given last, with the reason."""
    with farm.database.transaction() as session:
        recording.take_refusal(session, farm, agent, body)
    return Response(status_code=204)


@router.post(wire.KEPT_PATH, openapi_extra=described(wire.KeptRuns))
def still_open(
    farm: WholeFarmDep, agent: AgentDep, body: Annotated[wire.KeptRuns, wire_body(wire.KeptRuns)]
) -> Response:
    """Returns which of the runs whose checkpoints the device has stored may still go on there."""
    with farm.database.read() as session:
        return _json(wire.KeptRuns(checkpoints.still_open(session, agent.device_id, body.runs)))


@router.post(wire.HEARTBEAT_PATH, openapi_extra=described(wire.HeartbeatRequest))
def heartbeat(
    lease_token: str,
    request: Request,
    farm: WholeFarmDep,
    agent: AgentDep,
    body: Annotated[wire.HeartbeatRequest, wire_body(wire.HeartbeatRequest)],
) -> Response:
    """Renews the lease of an attempt."""
    with farm.database.transaction() as session:
        answer = recording.heartbeat(session, farm, agent, lease_token, body)
    _note_condition(request, farm, agent)
    return _json(answer)


@router.post(wire.EVENTS_PATH, openapi_extra=described(wire.EventBatch))
def take_events(
    lease_token: str, farm: WholeFarmDep, agent: AgentDep, body: Annotated[wire.EventBatch, wire_body(wire.EventBatch)]
) -> Response:
    """Records what happens in an attempt."""
    with farm.database.transaction() as session:
        return _json(recording.take_events(session, farm.settings, agent, lease_token, body))


@router.post(wire.REPORT_PATH, openapi_extra=described(wire.Envelope))
def take_report(
    lease_token: str, farm: WholeFarmDep, agent: AgentDep, body: Annotated[wire.Envelope, wire_body(wire.Envelope)]
) -> Response:
    """Records how an attempt ended."""
    with farm.database.transaction() as session:
        answer = recording.take_report(session, farm, agent, lease_token, body)
    return _answered(answer)


@router.put(wire.WEIGHTS_PATH, status_code=201, openapi_extra=described_file())
async def put_weights(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Stores an attempt's trained weights, before the report that names them."""
    digest = request.headers.get(wire.DIGEST_HEADER, "")
    if not DIGEST.fullmatch(digest):
        raise Invalid("upload.digest", "missing, or not sha256:<hex>", where=wire.DIGEST_HEADER, cause="device")

    def most_bytes() -> int:
        with farm.database.read() as session:
            return trained.most_bytes(session, agent, lease_token, digest)

    def act(stored: StoredFile) -> None:
        with removed_if_refused(farm, stored), farm.database.transaction() as session:
            before = trained.take_weights(session, agent, lease_token, stored)
        if before is not None:
            remove_unneeded(farm.database, farm.storage, before)

    limit_bytes = min(await run_in_threadpool(most_bytes), farm.settings.weights_limit_bytes)
    stored = await store_body(request, farm.storage, limit_bytes=limit_bytes, what="weights", digest=digest)
    await run_in_threadpool(act, stored)
    return Response(status_code=201)


def _attempt_run(farm: Farm, agent: Agent, lease_token: str) -> Run:
    """Returns the run of the agent's live attempt. Raises: Conflict."""
    with farm.database.read() as session:
        return session.get_one(Run, recording.live_attempt(session, agent, lease_token).run_id)


@router.get(wire.WEIGHTS_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_weights(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Returns the attempt's starting weights."""
    digest = _attempt_run(farm, agent, lease_token).weights_digest
    return _download(request, farm, digest, "the run starts from the bundle's own weights")


@router.put(wire.CHECKPOINT_PATH, status_code=201, openapi_extra=described_file())
async def put_checkpoint(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Stores a checkpoint of an attempt that trains; another attempt of the run can go on from it."""
    digest = request.headers.get(wire.DIGEST_HEADER, "")
    if not DIGEST.fullmatch(digest):
        raise Invalid("upload.digest", "missing, or not sha256:<hex>", where=wire.DIGEST_HEADER, cause="device")

    def sender() -> checkpoints.Sender:
        with farm.database.read() as session:
            size_bytes = declared_bytes(request.scope)
            return recording.checkpoint_sender(session, farm.settings, agent, lease_token, size_bytes)

    def act(stored: StoredFile) -> None:
        with removed_if_refused(farm, stored):
            past = checkpoints.look_at(farm.storage, stored, expected)
            with farm.database.transaction() as session:
                unneeded = recording.take_checkpoint(session, farm.settings, agent, lease_token, stored, past)
        if unneeded is not None:
            remove_unneeded(farm.database, farm.storage, unneeded)

    expected = await run_in_threadpool(sender)
    most_bytes = min(expected.most_bytes, farm.settings.checkpoint_limit_bytes)
    stored = await store_body(request, farm.storage, limit_bytes=most_bytes, what="checkpoint", digest=digest)
    await run_in_threadpool(act, stored)
    return Response(status_code=201)


@router.get(wire.CHECKPOINT_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_checkpoint(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Returns the checkpoint of an earlier attempt of the run."""
    with farm.database.read() as session:
        run = session.get_one(Run, recording.live_attempt(session, agent, lease_token).run_id)
        digest = checkpoints.of_run(session, run).digest
    return _download(request, farm, digest, "")


@router.get(wire.BUNDLE_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_bundle(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Returns the attempt's bundle."""
    return _download(request, farm, _attempt_run(farm, agent, lease_token).bundle_digest, "")


@router.get(wire.OTHER_BUNDLE_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_other_bundle(
    lease_token: str,
    place: Annotated[int, Path(ge=1, lt=wire.MOST_BUNDLES)],
    request: Request,
    farm: WholeFarmDep,
    agent: AgentDep,
) -> Response:
    """Sends one of the bundles that take turns with the attempt's own."""
    with farm.database.read() as session:
        run = session.get_one(Run, recording.live_attempt(session, agent, lease_token).run_id)
        others = run.others  # while the session is open
    return _download(request, farm, others[place - 1] if place <= len(others) else None, "the run has no such bundle")


@router.get(wire.DATASET_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_dataset(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Returns the attempt's data set."""
    return _download(request, farm, _attempt_run(farm, agent, lease_token).dataset_digest, "the run has no data set")


@router.get(wire.VALIDATION_DATASET_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_validation_dataset(lease_token: str, request: Request, farm: WholeFarmDep, agent: AgentDep) -> Response:
    """Returns the data set that the attempt's training is validated on."""
    digest = _attempt_run(farm, agent, lease_token).validation_dataset_digest
    return _download(request, farm, digest, "the run has no data set to validate on")


@router.get(wire.RELEASE_PATH, responses=BINARY)  # type: ignore[arg-type]
def get_release(
    sequence: Annotated[int, Path(ge=0, le=1 << 53)], request: Request, farm: WholeFarmDep, agent: AgentDep
) -> Response:
    """Returns the agent's file of a release that the device was offered."""
    with farm.database.read() as session:
        digest = offered_release(session, agent.device_id, sequence).digest
    return _download(request, farm, digest, "")


def _download(request: Request, farm: Farm, digest: str | None, without: str) -> Response:
    if digest is None:
        raise NotFound("attempt.no-file", without)
    return file_response(request, farm, digest, filename=digest.removeprefix("sha256:")[:12])
