"""Reads what the farm needs out of a bundle file, which is a compile child's output and so checked again here."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.artefacts.bundles.warnings import find_problem

SCHEMA = "pockfarm.bundle/1"
MAX_JSON_BYTES = 32 << 20
MAX_ENTRIES = 64
REQUIRED = ("manifest.json", "bin/step", "weights.safetensors", "report.json")
_ELF_MAGIC = b"\x7fELF"


class BadBundle(Exception):
    """The archive is not what the contract says; the message names the entry."""


@dataclass(frozen=True, slots=True)
class BundleContent:
    """The two JSON files of a bundle."""

    manifest: dict[str, Any]
    compile_report: dict[str, Any]


def read_bundle(path: Path) -> BundleContent:
    """Returns the manifest and the compile report of the bundle at `path`. Raises: BadBundle."""
    try:
        with tarfile.open(path, "r:") as archive:
            return _read(archive)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadBundle(f"not a readable tar archive: {error}") from None


def _read(archive: tarfile.TarFile) -> BundleContent:
    members: dict[str, tarfile.TarInfo] = {}
    for member in archive:
        if not member.isreg() or member.name in members or len(members) >= MAX_ENTRIES:
            raise BadBundle(f"entry {member.name!r:.100}: only {MAX_ENTRIES} distinct plain files may be in a bundle")
        members[member.name] = member
    missing = [name for name in REQUIRED if name not in members]
    if missing:
        raise BadBundle(f"missing: {', '.join(missing)}")
    step = archive.extractfile(members["bin/step"])
    if step is None or step.read(4) != _ELF_MAGIC:
        raise BadBundle("bin/step is not an ELF executable")
    manifest = _json(archive, members["manifest.json"])
    if manifest.get("schema") != SCHEMA:
        raise BadBundle(f"manifest.json: schema {manifest.get('schema')!r:.60}, expected {SCHEMA}")
    report = _json(archive, members["report.json"])
    problem = find_problem(report)
    if problem:
        raise BadBundle(f"report.json: {problem}")
    return BundleContent(manifest, report)


def _json(archive: tarfile.TarFile, member: tarfile.TarInfo) -> dict[str, Any]:
    stream = archive.extractfile(member)
    if stream is None or member.size > MAX_JSON_BYTES:
        raise BadBundle(f"{member.name}: {member.size:,} bytes, the limit is {MAX_JSON_BYTES:,}")
    try:
        body = json.loads(stream.read())
    except (ValueError, RecursionError):
        raise BadBundle(f"{member.name} is not JSON") from None
    if not isinstance(body, dict):
        raise BadBundle(f"{member.name} is not a JSON object")
    return body
