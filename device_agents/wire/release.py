"""The renewal of an agent: what it says of the file that it runs from, and what the farm offers. Standard library only.

The offer comes in place of an assignment, to an agent that has said that it updates itself; so older agents never see
one. What an agent says goes in a header, which a farm that is older than it does not read.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, Optional

from device_agents.wire.codec import SENT_IF_SET, check
from device_agents.wire.report import Blob

OFFER_TYPE = "application/vnd.pockfarm.agent-offer+json"
"""DSSE payload type of `AgentOffer`."""
PROGRAM_HEADER = "X-Pockfarm-Program"
"""The header on enrolments and renewals: `dumps(Program)`."""
RELEASE_PATH = "/agent/releases/{sequence}"
"""GET, to a device that was offered it -> 200 the agent as one file."""
UPDATE_REFUSED = "update."
"""The prefix of codes of an `Outcome` at `REFUSAL_PATH` that are about an offer, not an assignment."""
MOST_AGENT_BYTES = 32 << 20
MOST_REASON = 500
Updates = Literal["on", "off", "installed", "trial"]
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,3}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def version_order(version: str) -> tuple[int, ...]:
    """Returns the key by which versions are compared. Raises: ValueError for text that is no version."""
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r:.40} is no version: numbers with dots between, at most four")
    numbers = [int(number) for number in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


@dataclass(frozen=True)
class UpdateFailure:
    """An update after which the agent from before runs on."""

    sequence: int
    reason: str


@dataclass(frozen=True)
class Program:
    """The program that an agent runs from, and whether it renews that."""

    updates: Updates
    """`on`; `off`: its operator does not want it; `installed`: not from one file, so another tool updates it; `trial`:
    it is being tried, takes no work, and ends when the farm has answered it."""
    digest: str = ""
    """Digest of the one file that it runs from; empty: from none."""
    failed: Optional[UpdateFailure] = field(default=None, metadata=SENT_IF_SET)
    """The newest update that came to nothing here."""

    def __post_init__(self) -> None:
        check(not self.digest or bool(_DIGEST.fullmatch(self.digest)), "digest", "sha256:<64 hex digits>")


@dataclass(frozen=True)
class AgentOffer:
    """An agent that the farm wants on one device: payload of the envelope that answers a request for a lease."""

    sequence: int
    """Sequence number of the release; goes up with each. A device takes none that is not above those that it is done
    with.
    """
    version: str
    program: Blob
    device_id: str
    oldest_python: str
    protocol: str
    not_before: float
    expires_at: float
    release_number: int
    """The number of the release, as in an assignment: never below the highest that the device has seen."""
    is_rollback: bool = False
    """The farm means it if the version is lower than the device's."""

    def __post_init__(self) -> None:
        check(self.sequence >= 1, "sequence", "at least 1")
        check(bool(_DIGEST.fullmatch(self.program.digest)), "program.digest", "sha256:<64 hex digits>")
        for name in ("version", "oldest_python"):
            check(bool(_VERSION.fullmatch(getattr(self, name))), name, "numbers with dots between, at most four")


def release_path(sequence: int) -> str:
    """Returns where a device fetches a release."""
    return RELEASE_PATH.replace("{sequence}", str(sequence))
