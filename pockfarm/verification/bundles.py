"""Findings about a bundle, from its own manifest."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pockfarm.verification.findings import MAX_TEXT_BYTES, Finding, NotVerified

CHUNK_BYTES = 1 << 20
MAX_FILES = 10_000
MANIFEST = "manifest.json"


def bundle_findings(path: Path) -> tuple[str, list[Finding]]:
    """Its digest; that its manifest names every file, with the digest and size that it has, and no other.

    That is all that a bundle says of itself: who changes a file can write the manifest anew. Raises: NotVerified.
    """
    digests: dict[str, tuple[str, int]] = {}
    manifest: dict[str, Any] = {}
    try:
        with tarfile.open(path, mode="r:") as tar:
            for entry in tar:
                if not entry.isreg() or entry.name in digests or len(digests) == MAX_FILES:
                    raise NotVerified(f"{entry.name!r:.100} is no plain file, or there twice")
                stream = tar.extractfile(entry)
                assert stream is not None
                if entry.name == MANIFEST:
                    manifest = _manifest(stream.read(MAX_TEXT_BYTES))
                    digests[entry.name] = ("", entry.size)
                else:
                    digests[entry.name] = (_sha256(stream.read), entry.size)
    except (tarfile.TarError, EOFError) as error:
        raise NotVerified(f"no bundle, or damaged: {error}") from None
    files, declared = manifest.get("files"), manifest.get("digests", {})
    if manifest.get("schema") != "pockfarm.bundle/1" or not (isinstance(files, dict) and isinstance(declared, dict)):
        raise NotVerified(f"its {MANIFEST} is missing, or not of pockfarm.bundle/1")
    _check_files(files, {name: file_digest for name, file_digest in digests.items() if name != MANIFEST})
    with path.open("rb") as file:
        digest = f"sha256:{_sha256(file.read)}"
    return digest, [
        Finding("bundle", digest),
        Finding("target", f"{manifest.get('target')}, as its manifest says"),
        *(Finding(name, f"{value}, as its manifest says") for name, value in sorted(declared.items())),
        Finding("files", f"all {len(files)} are those of its manifest, by size and SHA-256"),
    ]


def _manifest(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise NotVerified(f"its {MANIFEST} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotVerified(f"its {MANIFEST} is no object")
    return value


def _check_files(declared: dict[str, Any], present: dict[str, tuple[str, int]]) -> None:
    if declared.keys() != present.keys():
        odd = sorted(declared.keys() ^ present.keys())[0]
        raise NotVerified(f"{odd!r:.100} is in the manifest or in the archive, and not in both")
    for name, (digest, size_bytes) in present.items():
        if declared[name] != {"sha256": digest, "bytes": size_bytes}:
            raise NotVerified(f"{name} is not the file of the manifest: sha256 {digest}, {size_bytes:,} bytes")


def _sha256(read: Callable[[int], bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
