"""Finished results that the farm does not have yet. They outlive the agent, the network and the lease.

spool/pending/<lease token>/{report.json, weights.safetensors, meta.json}    to be sent, again and again
spool/kept/<lease token>/...                                                 refused by the farm: evidence, newest 20
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_agents import retry
from device_agents.errors import FarmError, Refused, Stale
from device_agents.farm import FarmClient

MAX_KEPT = 20
MAX_PENDING = 100


@dataclass(frozen=True)
class SpooledResult:
    """One result on disk."""

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
        """Keep a result; whole or not at all."""
        half = self.pending_folder / f".{lease_token}"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700)
        (half / "report.json").write_bytes(envelope)
        (half / "meta.json").write_text(json.dumps({"weights_digest": weights_digest if weights else None}))
        if weights:
            shutil.copyfile(weights, half / "weights.safetensors")
        folder = self.pending_folder / lease_token
        half.rename(folder)
        self._prune(self.pending_folder, MAX_PENDING)
        return SpooledResult(folder)

    def pending(self) -> list[SpooledResult]:
        """Oldest first."""
        return [SpooledResult(folder) for folder in _by_age(self.pending_folder)]

    def kept(self) -> list[SpooledResult]:
        return [SpooledResult(folder) for folder in _by_age(self.kept_folder)]

    def send(
        self, result: SpooledResult, client: FarmClient, *, policy: retry.Policy, sleep: Callable[[float], object]
    ) -> str:
        """Send one result and drop it, or keep it as evidence when the farm refuses it. Returns what the farm said.

        Raises: `FarmError` when the farm cannot be reached for now; the result stays pending.
        """
        try:
            digest = result.weights_digest()
            if digest:
                retry.call(policy, lambda: client.send_weights(result.lease_token, result.weights, digest), sleep=sleep)
            answer = retry.call(policy, lambda: client.send_report(result.lease_token, result.envelope()), sleep=sleep)
        except FarmError as error:
            if not isinstance(error, (Stale, Refused)):
                raise
            self.keep(result, str(error))
            return f"refused: {error}"
        shutil.rmtree(result.folder, ignore_errors=True)
        return answer.state

    def keep(self, result: SpooledResult, why: str) -> None:
        """Move a result to the evidence."""
        (result.folder / "why.txt").write_text(why)
        target = self.kept_folder / result.lease_token
        shutil.rmtree(target, ignore_errors=True)
        result.folder.rename(target)
        self._prune(self.kept_folder, MAX_KEPT)

    def _prune(self, folder: Path, most: int) -> None:
        for old in _by_age(folder)[:-most]:
            shutil.rmtree(old, ignore_errors=True)


def _by_age(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)
