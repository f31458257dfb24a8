"""Finished results that the farm does not have yet. They outlive the agent, the network and the lease.

spool/pending/<lease token>/{report.json, weights.safetensors, meta.json}    to be sent, again and again
spool/kept/<lease token>/...  + why.txt                                      refused by the farm: evidence, newest 20

A result that the farm refuses is kept, and the farm gets a bare report in its place: that the attempt failed, and why.
Without one it would wait for the lease to run out, and hold that against the device.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_agents.errors import Refused, Stale
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.state import seal
from device_agents.wire import REPORT_TYPE, Envelope, Memory, Outcome, ProtocolError, Report, dumps, loads

log = logging.getLogger("device_agents")

MAX_KEPT = 20
MAX_PENDING = 100


@dataclass(frozen=True)
class SpooledResult:
    """A result on disk."""

    folder: Path

    @property
    def lease_token(self) -> str:
        return self.folder.name

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    def envelope(self) -> bytes:
        """The signed report: the same bytes at each try."""
        return (self.folder / "report.json").read_bytes()

    def weights_digest(self) -> str | None:
        digest = json.loads((self.folder / "meta.json").read_bytes())["weights_digest"]
        return str(digest) if digest else None

    def report(self) -> Report:
        """Returns the report in the envelope. Raises: `ProtocolError`."""
        return loads(Report, loads(Envelope, self.envelope()).payload_bytes())


class Spool:
    """The folder of results."""

    def __init__(self, folder: Path) -> None:
        self.pending_folder = folder / "pending"
        self.kept_folder = folder / "kept"
        for path in (self.pending_folder, self.kept_folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for half in self.pending_folder.glob(".*"):
            shutil.rmtree(half, ignore_errors=True)

    def put(
        self, lease_token: str, envelope: bytes, *, weights: Path | None, weights_digest: str | None
    ) -> SpooledResult:
        """Stores a result, whole or not at all, also when the power fails. `weights` is moved here."""
        half = self.pending_folder / f".{lease_token}"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700)
        _write(half / "report.json", envelope)
        _write(half / "meta.json", json.dumps({"weights_digest": weights_digest if weights else None}).encode())
        if weights:
            shutil.move(str(weights), str(half / "weights.safetensors"))
        folder = self.pending_folder / lease_token
        shutil.rmtree(folder, ignore_errors=True)
        half.rename(folder)
        for old in self.pending()[:-MAX_PENDING]:
            log.warning("more than %d results wait for the farm; the oldest is put aside", MAX_PENDING)
            self.keep(old, f"more than {MAX_PENDING} results were waiting")
        return SpooledResult(folder)

    def pending(self) -> list[SpooledResult]:
        """Oldest first."""
        return [SpooledResult(folder) for folder in _by_age(self.pending_folder)]

    def refused(self) -> list[SpooledResult]:
        return [SpooledResult(folder) for folder in _by_age(self.kept_folder)]

    def send(
        self, result: SpooledResult, client: FarmClient, *, policy: retry.Policy, sleep: Callable[[float], object]
    ) -> str:
        """Sends one result and drops it, or stores it as evidence when the farm refuses it. Returns the farm's answer.

        Raises: `FarmError` when the farm cannot take it for now; the result stays pending.
        """
        try:
            answer = _send(result, client, policy, sleep)
        except Stale as error:
            self.keep(result, str(error))
            return f"refused: {error}"
        except Refused as error:
            outcome = _send_bare(result, client, policy, sleep, error)
            self.keep(result, str(error))
            return f"refused: {error}; {outcome}"
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.error("the result of lease %s... is damaged on disk, and put aside: %r", result.lease_token[:8], error)
            self.keep(result, f"damaged: {error!r}")
            return "damaged, and so not sent"
        shutil.rmtree(result.folder, ignore_errors=True)
        return answer

    def keep(self, result: SpooledResult, why: str) -> None:
        """Moves a result to the evidence."""
        (result.folder / "why.txt").write_text(why)
        target = self.kept_folder / result.lease_token
        shutil.rmtree(target, ignore_errors=True)
        result.folder.rename(target)
        self._prune(self.kept_folder, MAX_KEPT)

    def _prune(self, folder: Path, most: int) -> None:
        for old in _by_age(folder)[:-most]:
            log.warning("the evidence about lease %s... makes room for newer", old.name[:8])
            shutil.rmtree(old, ignore_errors=True)


def _send(result: SpooledResult, client: FarmClient, policy: retry.Policy, sleep: Callable[[float], object]) -> str:
    digest, envelope = result.weights_digest(), result.envelope()
    if digest:
        retry.call(policy, lambda: client.send_weights(result.lease_token, result.weights, digest), sleep=sleep)
    return retry.call(policy, lambda: client.send_report(result.lease_token, envelope), sleep=sleep).state


def _send_bare(
    result: SpooledResult, client: FarmClient, policy: retry.Policy, sleep: Callable[[float], object], why: Refused
) -> str:
    """Reports to the farm how the attempt ended, without the figures that it refused. Raises: `FarmError`."""
    try:
        report = bare(result.report(), f"the farm refused the report: {why}")
    except (OSError, ProtocolError):
        return "no bare report could be made of it"
    envelope = dumps(seal(client.state.device_key(), report.device_id, REPORT_TYPE, dumps(report)))
    try:
        answer = retry.call(policy, lambda: client.send_report(result.lease_token, envelope), sleep=sleep)
    except (Stale, Refused) as error:
        return f"a bare report too: {error}"
    return f"a bare report: {answer.state}"


def bare(report: Report, why: str) -> Report:
    """The report without what was found: how the attempt ended, or that it failed because of `why`."""
    outcome = report.outcome
    if outcome.state == "succeeded":
        outcome = Outcome("failed", "infra", "report.refused", why[:4000])
    return Report(
        run_id=report.run_id,
        attempt=report.attempt,
        device_id=report.device_id,
        bundle_digest=report.bundle_digest,
        mode=report.mode,
        outcome=outcome,
        measurement_class=report.measurement_class,
        started_at=report.started_at,
        finished_at=report.finished_at,
        transfer_s=report.transfer_s,
        run_s=report.run_s,
        memory=Memory(),
        isolation_level=report.isolation_level,
        environment=report.environment,
    )


def _write(path: Path, data: bytes) -> None:
    """A new file that is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _by_age(folder: Path) -> list[Path]:
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(folders, key=lambda path: path.stat().st_mtime_ns)
