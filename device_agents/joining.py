"""The way the agent becomes a device of its farm: by a token at first, by its own key ever after."""

from __future__ import annotations

import getpass
import hashlib
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from device_agents.errors import EnrolmentError, EnrolmentRefused, NameTaken
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.state import public_key_text

log = logging.getLogger("device_agents")
TOKEN_VARIABLE = "POCKFARM_ENROL_TOKEN"
HOW_TO_ENROL = f"put a one-time token of the farm into ${TOKEN_VARIABLE}, or into a file named by --enrol-token"


def join_farm(client: FarmClient, token: str | None, stop: threading.Event, *, has_chosen_name: bool = True) -> None:
    """Enrol, or renew the credential of an enrolled device; a name that nobody has chosen gives way if it is taken.

    Raises: `EnrolmentError`, `FarmError`.
    """
    identity = client.state.identity()
    if identity is not None:
        if identity.server != client.server and token is None:
            log.warning("enrolled at %s, now talking to %s", identity.server, client.server)
        try:
            retry.call(retry.LEASE, client.renew, sleep=stop.wait, trouble=client.trouble)
            if client.trusts_farm():
                return
            if token is None:
                log.warning("the farm signs with a key that this device does not know; %s", HOW_TO_ENROL)
                return
            log.warning("the farm signs with a new key; enrolling again")
        except EnrolmentError:
            if token is None:
                raise
            log.warning("the farm does not know this device any more; enrolling again")
    if token is None:
        raise EnrolmentRefused(f"this device is not enrolled; {HOW_TO_ENROL}")
    try:
        _enrol(client, token, stop)
    except NameTaken:
        if has_chosen_name:
            raise
        default_name = client.description.name
        suffix = hashlib.sha256(public_key_text(client.state.device_key()).encode()).hexdigest()[:4]
        client.description = replace(client.description, name=f"{default_name[:90]}-{suffix}")
        log.warning(
            "another device is called %s, so this one enrols as %s; --name chooses",
            default_name,
            client.description.name,
        )
        _enrol(client, token, stop)


def _enrol(client: FarmClient, token: str, stop: threading.Event) -> None:
    enrolled = retry.call(retry.ENROL, lambda: client.enrol(token), sleep=stop.wait, trouble=client.trouble)
    log.info("enrolled as device %s", enrolled.device_id)


def read_token(option: str | None) -> str | None:
    """The one-time token: from a file, from standard input (`-`), or from the environment, which then forgets it.

    Never from the command line itself: every user of a machine can read that. Raises: `EnrolmentError`.
    """
    from_environment = os.environ.pop(TOKEN_VARIABLE, "").strip()
    if option is None:
        return from_environment or None
    try:
        if option == "-":
            token = getpass.getpass("enrolment token: ") if sys.stdin.isatty() else sys.stdin.readline()
        else:
            token = Path(option).read_text()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        # The option is not repeated: it may be the token.
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise EnrolmentError(f"--enrol-token: that file cannot be read ({why}); {HOW_TO_ENROL}") from None
    return token.strip() or None
