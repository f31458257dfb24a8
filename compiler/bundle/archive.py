"""The bundle: a deterministic, unsigned archive of everything a board needs for one training step."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler.warnings import CompileWarning

SCHEMA = "pockfarm.bundle/1"
REPORT_SCHEMA = "pockfarm.compile-report/1"
STEP, WEIGHTS, TRAINING, ORIGINS, REPORT, KERNELS, MANIFEST = (
    "bin/step",
    "weights.safetensors",
    "training.onnx",
    "origins.json",
    "report.json",
    "kernels.json",
    "manifest.json",
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A built bundle: its bytes, `sha256:<hex>` of them, the manifest inside, and what its report warns of."""

    data: bytes
    digest: str
    manifest: Mapping[str, Any]
    warnings: tuple[CompileWarning, ...] = ()


def sha256_of(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def make_bundle(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> Bundle:
    """Archive the files with a manifest that lists them. Same input, same bytes."""
    listed = {name: {"sha256": sha256_of(data), "bytes": len(data)} for name, data in files.items()}
    whole = {"schema": SCHEMA, **manifest, "files": listed}
    members = {**files, MANIFEST: to_json(whole)}
    data = _tar(members)
    return Bundle(data, f"sha256:{sha256_of(data)}", whole)


def to_json(value: object) -> bytes:
    """Stable JSON: sorted keys, no NaN, one trailing newline."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def _tar(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members):
            entry = tarfile.TarInfo(name)
            entry.size = len(members[name])
            entry.mode = 0o755 if name == STEP else 0o644
            archive.addfile(entry, io.BytesIO(members[name]))
    return stream.getvalue()
