"""A downloaded bundle to files on disk: hostile until proven otherwise.

The tar's own headers are never trusted with a path, a link, a mode or an owner: only regular files with plain relative
names come out, each created anew (no following of links), not executable, and matching the manifest's size and digest.
`make_executable` is a separate last step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from device_agents.errors import BadBundle
from device_agents.job.dataset import LABELS
from device_agents.measure.tuning import Trial
from device_agents.wire import CHECKPOINT_VERSION

SCHEMA = "pockfarm.bundle/1"
STEP = "bin/step"
WEIGHTS = "weights.safetensors"
MANIFEST = "manifest.json"

MAX_ENTRIES = 64
MAX_MANIFEST_BYTES = 32 << 20
MAX_TOTAL_BYTES = 8 << 30
MAX_KERNELS = 20_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){0,3}")
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class UnpackedBundle:
    """A checked bundle on disk, and what its manifest says that a run needs."""

    folder: Path
    target: str
    inputs: tuple[str, ...]
    """Model inputs in order."""
    batch: int
    """Samples of a step."""
    required_features: tuple[str, ...]
    threads: int | None
    """Default (and most) threads of the binary; None when the manifest does not say."""
    trials: tuple[Trial, ...] | None = None
    """Trials that a tuning bundle measures; None for a bundle that trains."""
    labels: tuple[str, ...] = (LABELS,)
    """Arrays of a data set that hold labels, in order."""
    weights_bytes: int = 0
    """Size of the initial checkpoint."""
    can_go_on: bool = False
    """Its binary leaves checkpoints of an unfinished run, and goes on from one; older bundles are to be built again."""
    max_kernels: int = MAX_KERNELS
    """Kernel calls of a training step; when the manifest does not say, the most there may be."""

    @property
    def engine(self) -> str:
        """Returns the engine that runs its kernels, if that is not the CPU: the end of its target's name."""
        return self.target.partition("/")[2]

    @property
    def step(self) -> Path:
        return self.folder / STEP

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS


def unpack(archive: Path, folder: Path, *, max_total_bytes: int = MAX_TOTAL_BYTES) -> UnpackedBundle:
    """Unpacks `archive` into the new folder `folder` and checks it against its manifest.

    Raises: `BadBundle` (`bundle.unsafe` for what no compiler of ours writes, `bundle.invalid` for the rest).
    """
    folder.mkdir(mode=0o755)
    try:
        with tarfile.open(archive, "r:") as tar:
            members = _extract(tar, folder, max_total_bytes)
    except (tarfile.TarError, EOFError, ValueError, UnicodeError) as error:
        raise BadBundle("bundle.invalid", f"not a bundle archive: {error}") from None
    manifest = _manifest(folder, members)
    _check_files(manifest, members)
    return _describe(manifest, folder)


def make_executable(bundle: UnpackedBundle) -> None:
    """Allow the binary to be run. Call it last, when everything else has been checked."""
    bundle.step.chmod(0o755)


def read_manifest(archive: Path) -> Mapping[str, Any]:
    """The manifest of a bundle file, without unpacking the rest. Raises: `BadBundle`."""
    try:
        with tarfile.open(archive, "r:") as tar:
            member = tar.getmember(MANIFEST)
            source = tar.extractfile(member) if member.isreg() and member.size <= MAX_MANIFEST_BYTES else None
            return _parse_manifest(source.read() if source else b"")
    except (tarfile.TarError, EOFError, ValueError, KeyError, OSError) as error:
        raise BadBundle("bundle.invalid", f"{archive.name} is not a bundle: {error}") from None


def _extract(tar: tarfile.TarFile, folder: Path, max_total_bytes: int) -> dict[str, tuple[int, str]]:
    members: dict[str, tuple[int, str]] = {}
    left_bytes = max_total_bytes
    for member in tar:
        _check_member(member, members, left_bytes)
        left_bytes -= member.size
        source = tar.extractfile(member)
        if source is None:
            raise BadBundle("bundle.unsafe", f"entry {member.name!r:.120} is not a file")
        members[member.name] = (member.size, _write(source, folder / member.name, member.size))
    return members


def _check_member(member: tarfile.TarInfo, members: Mapping[str, object], left_bytes: int) -> None:
    name = member.name
    if not member.isreg() or member.issparse():
        raise BadBundle("bundle.unsafe", f"entry {name!r:.120} is a link, a folder or a device; only files are allowed")
    if not _NAME.fullmatch(name) or ".." in name:
        raise BadBundle("bundle.unsafe", f"entry name {name!r:.120} is not a plain relative path")
    if name in members:
        raise BadBundle("bundle.unsafe", f"entry {name} appears twice")
    if len(members) >= MAX_ENTRIES:
        raise BadBundle("bundle.unsafe", f"more than {MAX_ENTRIES} entries")
    if member.size > left_bytes:
        raise BadBundle(
            "bundle.unsafe", f"entry {name} has {member.size:,} bytes, {left_bytes:,} are left of the limit"
        )


def _write(source: IO[bytes], path: Path, size_bytes: int) -> str:
    """Returns the sha256 of what was written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise BadBundle("bundle.unsafe", f"entry {path.name}: {error.strerror}") from None
    digest, written_bytes = hashlib.sha256(), 0
    with os.fdopen(descriptor, "wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            written_bytes += file.write(chunk)
    if written_bytes != size_bytes:
        raise BadBundle("bundle.invalid", f"entry {path.name} ends after {written_bytes:,} of {size_bytes:,} bytes")
    return digest.hexdigest()


def _manifest(folder: Path, members: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    for name in (MANIFEST, STEP, WEIGHTS):
        if name not in members:
            raise BadBundle("bundle.invalid", f"{name} is missing")
    if members[MANIFEST][0] > MAX_MANIFEST_BYTES:
        raise BadBundle("bundle.invalid", f"{MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes")
    return _parse_manifest((folder / MANIFEST).read_bytes())


def _parse_manifest(data: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadBundle("bundle.invalid", f"{MANIFEST} is not JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        raise BadBundle("bundle.invalid", f"{MANIFEST} has schema {schema!r:.60}, this agent knows {SCHEMA}")
    return manifest


def _check_files(manifest: Mapping[str, Any], members: Mapping[str, tuple[int, str]]) -> None:
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise BadBundle("bundle.invalid", f"{MANIFEST} lists no files")
    extra = sorted(set(members) - set(listed) - {MANIFEST})
    missing = sorted(set(listed) - set(members))
    if extra or missing:
        raise BadBundle("bundle.invalid", f"files not in the manifest: {extra[:5]}; missing: {missing[:5]}")
    for name, entry in listed.items():
        size_bytes, digest = members[name]
        expected = (entry.get("bytes"), str(entry.get("sha256")).removeprefix("sha256:")) if entry else (None, "")
        if expected != (size_bytes, digest):
            raise BadBundle("bundle.invalid", f"{name} is not the file that the manifest describes")


def _describe(manifest: Mapping[str, Any], folder: Path) -> UnpackedBundle:
    try:
        inputs = manifest["inputs"]
        names = tuple(str(entry["name"]) for entry in inputs) if isinstance(inputs, list) else tuple(map(str, inputs))
        threads, kernels = manifest.get("threads"), manifest.get("kernels")
        return UnpackedBundle(
            folder=folder,
            target=str(manifest["target"]),
            inputs=names,
            batch=_batch(manifest),
            required_features=tuple(map(str, manifest.get("required_features") or ())),
            threads=min(threads, 1024) if isinstance(threads, int) and threads > 0 else None,
            trials=tuple(map(_trial, manifest["trials"])) if manifest.get("kind") == "tuning" else None,
            labels=_labels(manifest.get("labels")),
            can_go_on=manifest.get("checkpoints") == CHECKPOINT_VERSION,
            weights_bytes=(folder / WEIGHTS).stat().st_size,
            max_kernels=min(MAX_KERNELS, len(kernels)) if isinstance(kernels, list) and kernels else MAX_KERNELS,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise BadBundle("bundle.invalid", f"{MANIFEST}: field missing or ill-typed: {error!r:.200}") from None


def _labels(entry: Any) -> tuple[str, ...]:
    """A list says which arrays there are; one tensor, or nothing, that it is the one of most bundles."""
    return tuple(str(label["name"]) for label in entry) if isinstance(entry, list) else (LABELS,)


def _trial(row: Mapping[str, Any]) -> Trial:
    return Trial(str(row["kernel"]), str(row["name"]), int(row["calls"]), tuple(map(str, row["choices"])))


def _batch(manifest: Mapping[str, Any]) -> int:
    inputs = manifest["inputs"]
    if "batch" in manifest:
        batch = int(manifest["batch"])
    else:
        first = inputs[0] if isinstance(inputs, list) else next(iter(inputs.values()))
        batch = int((first["shape"] if isinstance(first, dict) else first)[0])
    if not 1 <= batch < 1 << 31:
        raise ValueError(f"batch {batch:.3g}")
    return batch
