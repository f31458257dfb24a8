"""`GET /enrol.sh` and `GET /agent.pyz`: open to all, since a board has no key yet; neither holds anything secret."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.base.problems import Invalid
from service.boards.installation.agent_file import agent_digest, agent_file
from service.people.access import WholeFarmDep

router = APIRouter(tags=["agents"])
FOLDER = Path(__file__).parent
ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAME_EACH_TIME = {"Cache-Control": "no-store"}


@router.get("/agent.pyz", response_class=Response)
def get_agent() -> Response:
    """Returns the agent as one file, which Python 3.9 or newer runs. It needs `cryptography` and nothing else."""
    headers = {**SAME_EACH_TIME, "X-Pockfarm-Digest": f"sha256:{agent_digest()}"}
    return Response(agent_file(), media_type="application/zip", headers=headers)


@router.get("/enrol.sh", response_class=Response)
def get_enrolment_script(request: Request, farm: WholeFarmDep) -> Response:
    """Returns a POSIX shell script that enrols a board with this farm: `curl -fsS FARM/enrol.sh | sh`."""
    address = farm_address(farm.settings.public_url, str(request.base_url))
    return Response(enrolment_script(address), media_type="text/x-shellscript", headers=SAME_EACH_TIME)


def farm_address(public_url: str, request_url: str) -> str:
    """Returns the farm's address for a board: the public one, or, if that is the loopback, the one to which the request
    went.

    Raises: Invalid for what is no plain address: it becomes part of a script.
    """
    is_public = urlsplit(public_url).hostname not in LOOPBACK
    address = (public_url if is_public else request_url).rstrip("/")
    if not ADDRESS.fullmatch(address):
        raise Invalid(
            "enrol.address",
            f"the address {address!r:.80} cannot stand in a script",
            where="Host",
            hint="ask by host name or IP address, or set POCKFARM_PUBLIC_URL",
        )
    return address


def enrolment_script(address: str) -> str:
    """Returns the script for boards of the farm at that address."""
    text = (FOLDER / "enrol.sh").read_text()
    unit = (FOLDER / "pockfarm-agent.service").read_text()
    return text.replace("@UNIT@\n", unit).replace("@FARM@", address).replace("@DIGEST@", agent_digest())
