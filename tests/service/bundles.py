"""Small bundles in the real format, made without the compiler. The executable is an ELF header and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True)
class MadeBundle:
    data: bytes
    digest: str
    manifest: dict[str, Any]

    def write_to(self, stream: IO[bytes]) -> None:
        stream.write(self.data)


def make_manifest(
    *, target: str = "x86-64-v3", features: tuple[str, ...] = ("avx2", "fma"), **digests: str
) -> dict[str, Any]:
    return {
        "digests": digests,
        "target": target,
        "required_features": list(features),
        "plan": "sparse",
        "batch": 8,
        "threads": 2,
        "inputs": [{"name": "input", "dtype": "f32", "shape": [8, 1, 8, 8]}],
        "labels": {"name": "labels", "dtype": "i64", "shape": [8]},
        "outputs": [{"name": "logits", "dtype": "f32", "shape": [8, 10]}],
        "memory": {"arena_bytes": 4096, "weights_bytes": 1024, "optimizer_bytes": 0, "peak_bytes": 5120},
        "kernels": [{"name": "conv1", "phase": "forward", "flops": 10, "bytes_read": 4, "bytes_written": 4}],
    }


def make_bundle(
    manifest: dict[str, Any],
    *,
    step: bytes = b"\x7fELF" + b"\0" * 60,
    warnings: object = (),
    weights: bytes = b"weights",
) -> MadeBundle:
    """A deterministic archive of `manifest` and small files; the report has `warnings`, whatever they are, or none."""
    report = {
        "schema": "pockfarm.compile-report/1",
        "arena": {"arena_bytes": 4096, "values": []},
        "graph": {},
        "notes": [],
        **({} if warnings is None else {"warnings": warnings}),
    }
    files = {
        "bin/step": step,
        "weights.safetensors": weights,
        "training.onnx": b"onnx",
        "report.json": json.dumps(report).encode(),
    }
    listed = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    whole = {"schema": "pockfarm.bundle/1", **manifest, "files": listed}
    files["manifest.json"] = json.dumps(whole, sort_keys=True).encode()
    data = archived(files)
    return MadeBundle(data, "sha256:" + hashlib.sha256(data).hexdigest(), whole)


def archived(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of them, the same each time."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            archive.addfile(entry, io.BytesIO(files[name]))
    return stream.getvalue()


def unpacked(bundle: bytes) -> dict[str, bytes]:
    """The files of a bundle, its manifest among them."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        return {entry.name: stream.read() for entry in archive if (stream := archive.extractfile(entry)) is not None}


def rebuilt(bundle: bytes, name: str, data: bytes, **fields: Any) -> bytes:
    """The bundle with one file changed and a manifest, perhaps with other fields, that agrees with it."""
    files = unpacked(bundle) | {name: data}
    manifest = json.loads(files["manifest.json"]) | fields
    manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    return archived(files | {"manifest.json": json.dumps(manifest, sort_keys=True).encode()})
