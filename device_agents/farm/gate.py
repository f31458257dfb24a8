"""The one gate: what the farm gave becomes an assignment here, or is refused. Nothing is fetched or run without it."""

from __future__ import annotations

import hashlib
import logging
import time

from device_agents.errors import AttemptError, Untrusted, of_the_system
from device_agents.farm.state import StateFolder
from device_agents.farm.trust import CLOCK_TOLERANCE_S, verify_assignment
from device_agents.wire import Assignment, DeviceDescription, Envelope, Outcome

log = logging.getLogger("device_agents")


def admit(envelope: Envelope, state: StateFolder, description: DeviceDescription) -> Assignment | Outcome:
    """The assignment, once it is verified and the board remembers it; or what the farm is told instead."""
    try:
        return _admitted(envelope, state, description)
    except AttemptError as error:
        log.error("the farm's assignment is refused: %s: %s", error.code, error)
        return error.outcome()
    except OSError as error:
        log.exception("the farm's assignment is refused: the state folder cannot be read or written")
        return of_the_system(error)


def _admitted(envelope: Envelope, state: StateFolder, description: DeviceDescription) -> Assignment:
    identity = state.identity()
    if identity is None:
        raise AttemptError("agent.identity", "the device has lost its identity", cause="device")
    now = time.time()
    assignment, key_id = verify_assignment(envelope, identity, description, now=now)
    if not state.use(_mark(assignment), expires_at=assignment.expires_at + CLOCK_TOLERANCE_S, now=now):
        message = f"run {assignment.run_id} attempt {assignment.attempt} was given to this board before"
        raise Untrusted("envelope.replayed", message, hint="somebody sends again what was sent before")
    state.raise_release(key_id, assignment.release_number)
    return assignment


def _mark(assignment: Assignment) -> str:
    """Returns the mark by which the assignment is remembered: neither its lease token nor anything else that would be
    of use to a thief.
    """
    whole = f"{assignment.run_id} {assignment.attempt} {assignment.lease_token}"
    return hashlib.sha256(whole.encode()).hexdigest()
