"""The state of the one-file agent's updates: the folder `slots/` of its state, and what may follow what.

standing.json     the record below; replaced as a whole, so that a process that dies leaves the old one or the new one
<digest>.pyz      what an update brought: the one that runs, the one before it, the one that is tried
download          what is still on its way

`base` is the file that the operator installed and that the service manager starts. No update changes it: it is the
launcher (`launcher.py`), and what runs if nothing else can.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from device_agents.wire import ProtocolError, UpdateFailure, dumps, loads
from device_agents.wire.release import MOST_REASON

FORM = 1
FOLDER = "slots"
MOST_STARTS = 3
"""Starts of a file that has not proven itself, at most: the next start is that of the file before it."""
MOST_BEGINNINGS = 3
"""Beginnings of one update, at most: an agent that ends each time is not tried for ever."""


class StandingDamaged(Exception):
    """The record cannot be read: the base runs, and takes no updates. The operator must act; see the message."""


@dataclass(frozen=True)
class Trial:
    """A file that has not proven itself."""

    sequence: int
    digest: str
    version: str
    starts: int = 0
    """Counted before each start."""
    is_reached: bool = False
    """Whether it has come up and reached the farm once, as a trial; now it runs in earnest."""


@dataclass(frozen=True)
class Standing:
    """The record. Digests are `sha256:<hex>`; empty: the base."""

    base: str
    current: str = ""
    """The proven file that runs."""
    previous: str = ""
    """The file that ran before that."""
    settled: int = 0
    """The highest sequence that has come to an end here, whatever end: what is not above it is not taken."""
    begun: int = 0
    beginnings: int = 0
    """The number of times that the update `begun` was begun."""
    # Python 3.9 reads these annotations too (`get_type_hints`), and knows no `|` of types.
    trial: Optional[Trial] = field(default=None)  # noqa: UP045
    failed: Optional[UpdateFailure] = field(default=None)  # noqa: UP045
    in_doubt: bool = False
    """The failed trial did not reach the farm: if it is away from the old agent too, that says nothing."""
    form: int = FORM


def begin(standing: Standing, sequence: int) -> Standing:
    """Returns the standing to store before anything of an update is done."""
    earlier_beginnings = standing.beginnings if standing.begun == sequence else 0
    return replace(standing, begun=sequence, beginnings=earlier_beginnings + 1)


def stage(standing: Standing, trial: Trial) -> Standing:
    """The file is there, and the next start tries it."""
    return replace(standing, trial=trial, failed=None, in_doubt=False)


def prove(standing: Standing) -> Standing:
    """Puts the file on trial in the place of the one that ran."""
    if standing.trial is None:
        return standing
    tried = standing.trial
    return replace(standing, current=tried.digest, previous=standing.current, settled=tried.sequence, trial=None)


def fail(standing: Standing, sequence: int, reason: str, *, in_doubt: bool = False) -> Standing:
    """Ends the trial: the file that ran runs on. `in_doubt`: perhaps it is not the update's fault."""
    failed = UpdateFailure(sequence, reason[:MOST_REASON])
    settled = standing.settled if in_doubt else max(standing.settled, sequence)
    return replace(standing, trial=None, failed=failed, in_doubt=in_doubt, settled=settled)


def judge(standing: Standing, *, farm_is_there: bool) -> Standing:
    """Once the old agent runs again: was it the update, or the farm?"""
    if not standing.in_doubt or standing.failed is None:
        return standing
    if farm_is_there:
        return fail(standing, standing.failed.sequence, standing.failed.reason)
    return replace(standing, failed=None, in_doubt=False)


class Slots:
    """The folder."""

    def __init__(self, state: Path) -> None:
        self.folder = state.resolve() / FOLDER
        self.record = self.folder / "standing.json"
        self.download = self.folder / "download"

    def read(self) -> Standing | None:
        """Returns the stored standing; None: there was never an update here. Raises: StandingDamaged."""
        try:
            standing = loads(Standing, self.record.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ProtocolError) as error:
            raise StandingDamaged(
                f"{self.record} cannot be read ({error}): updates are off here; remove {self.folder} to take them again"
            ) from None
        if standing.form != FORM:
            raise StandingDamaged(f"{self.record} is of form {standing.form}, this agent reads {FORM}: updates are off")
        return standing

    def write(self, standing: Standing) -> None:
        """Replaces the record, and puts it on disk before anything else happens."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.folder / "standing.new"
        keep(draft, dumps(standing))
        os.replace(draft, self.record)
        flush(self.folder)

    def path(self, digest: str) -> Path:
        """Returns where the file of that digest lies."""
        return self.folder / f"{digest.rpartition(':')[2][:32]}.pyz"

    def holds(self, digest: str) -> bool:
        """Whether it is there, byte for byte."""
        try:
            return digest_of(self.path(digest)) == digest
        except OSError:
            return False

    def take_in(self, digest: str) -> None:
        """Gives the downloaded file its name; it is on disk then."""
        with self.download.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(self.download, self.path(digest))
        flush(self.folder)

    def tidy(self, standing: Standing) -> None:
        """Removes files that the record does not name."""
        trial = standing.trial.digest if standing.trial else ""
        recorded = {self.path(digest) for digest in (standing.current, standing.previous, trial) if digest}
        for path in [*self.folder.glob("*.pyz"), self.download]:
            if path not in recorded:
                path.unlink(missing_ok=True)


def keep(path: Path, data: bytes) -> None:
    """Writes a file and puts it on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(folder: Path) -> None:
    """Puts a folder's names on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(path: Path) -> str:
    """`sha256:<hex>` of a file."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
