"""That a farm's log of results has only grown since it was looked at last."""

from __future__ import annotations

from pathlib import Path

from device_agents.wire import ProtocolError, loads, merkle
from device_agents.wire.receipt import Checkpoint, Signed
from pockfarm.client.synchronous.record import Record
from pockfarm.errors import UsageError
from pockfarm.files.written import write_whole
from pockfarm.verification.findings import Finding, NotVerified
from pockfarm.verification.papers import read_paper


def check_log(farm: Record, keep: Path, *, trusted: str | None) -> list[Finding]:
    """Hold the farm to the head in `keep`, if there is one, and to those that it kept itself; the newest is kept then.

    Without `trusted` the root (or key) of the kept head is the one to follow. Raises: NotVerified, and the file stays
    as it is; UsageError (it cannot be read or written).
    """
    kept_head = _read(keep)
    anchor = trusted or (_anchor(kept_head) if kept_head is not None else None)
    old = _head(kept_head, anchor) if kept_head is not None else None
    newest = farm.log_head()
    head = _head(newest, anchor)
    if old is not None:
        _hold(farm, old, head, f"the head in {keep}")
    count = 0
    for paper in farm.log_heads(old.size if old else 0):
        farm_head = _head(paper, None)  # by whichever of its keys: the farm itself says that this is its log
        if farm_head.size > head.size and farm_head.at > head.at:
            break  # it has grown while we looked
        _hold(farm, farm_head, head, f"the head that the farm signed and kept at {farm_head.size} results")
        count += 1
    _write(keep, newest)
    since = f"begins with the {old.size} of {keep}" if old else f"{keep} is new: there was nothing to hold it to"
    return [
        *read_paper(newest, anchor).findings,
        Finding("grew", since),
        Finding("kept", f"{count} heads that the farm kept since fit it"),
    ]


def _hold(farm: Record, old: Checkpoint, new: Checkpoint, what: str) -> None:
    if old.size == 0:
        return
    if old.size > new.size:
        raise NotVerified(
            f"{what} is of {old.size} results, and the log has {new.size} now: results were taken away "
            "(a restore from an older backup does that too: ask the farm's operator)"
        )
    if not merkle.grew((old.size, old.root_hash), (new.size, new.root_hash), farm.log_proof(old.size, new.size)):
        raise NotVerified(
            f"the {old.size} results of {what} are not the first of the {new.size} that the log has now: "
            "some were changed"
        )


def _head(paper: bytes, anchor: str | None) -> Checkpoint:
    head = read_paper(paper, anchor).head
    if head is None:
        raise NotVerified("it is signed, and no head of a log")
    return head


def _anchor(paper: bytes) -> str:
    try:
        signed = loads(Signed, paper)
    except ProtocolError as error:
        raise NotVerified(f"the kept head cannot be read: {error}") from None
    return signed.root or signed.signing_key.public_key


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(error.strerror, where=f"--keep {path}") from None


def _write(path: Path, data: bytes) -> None:
    """In one step: a head that was kept is never lost to a full disk."""
    try:
        write_whole(path, data + b"\n")
    except OSError as error:
        raise UsageError(error.strerror, where=f"--keep {path}", hint="the head before stays") from None
