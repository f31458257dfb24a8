"""A bundle's library and weights, checked before anything of them is used."""

from __future__ import annotations

import hashlib
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pockfarm.ondevice.errors import StepError

LIBRARY, WEIGHTS, MANIFEST = "lib/libpockfarm_step.so", "weights.safetensors", "manifest.json"
MAX_MANIFEST_BYTES = 32 << 20
CHUNK_BYTES = 1 << 20


def check_digest(path: Path, expected: str | None) -> None:
    """Raises: StepError for a file that is not there, or not the one that is meant."""
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while expected is not None:
                chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    break
                digest.update(chunk)
    except OSError as problem:
        raise StepError(f"{path}: {problem.strerror}", code="bundle.file") from None
    if expected is not None and expected.removeprefix("sha256:") != digest.hexdigest():
        raise StepError(
            f"{path} is sha256:{digest.hexdigest()}, not the {expected} that was asked for", code="bundle.digest"
        )


def unpack(bundle: Path, folder: Path) -> tuple[Path, Path]:
    """Library and weights of a bundle, each compared with the manifest, in `folder`. Raises: StepError."""
    try:
        with tarfile.open(bundle, "r:") as archive:
            with _opened(archive, MANIFEST, MAX_MANIFEST_BYTES) as file:
                manifest = json.loads(file.read())
            listed = manifest["files"]
            if LIBRARY not in listed:
                how = "build it with `library: true` in its spec, or with `pockfarm build --library`"
                raise StepError(f"{bundle} holds no library: {how}", code="bundle.library")
            _check_machine(bundle, manifest)
            library, weights = (_extract(archive, name, listed[name], folder) for name in (LIBRARY, WEIGHTS))
    except (tarfile.TarError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise StepError(f"{bundle} is not a bundle: {problem!r:.200}", code="bundle.invalid") from None
    return library, weights


def _opened(archive: tarfile.TarFile, name: str, most_bytes: int) -> IO[bytes]:
    member = archive.getmember(name)
    file = archive.extractfile(member) if member.isreg() and member.size <= most_bytes else None
    if file is None:
        raise ValueError(f"{name} is no plain file of at most {most_bytes:,} bytes")
    return file


def _extract(archive: tarfile.TarFile, name: str, listed: Mapping[str, Any], folder: Path) -> Path:
    """A file by itself in `folder`; nothing but a name of ours decides where. Raises: ValueError."""
    path, digest = folder / Path(name).name, hashlib.sha256()
    with _opened(archive, name, int(listed["bytes"])) as file, path.open("xb") as out:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != str(listed["sha256"]).removeprefix("sha256:"):
        raise ValueError(f"{name} is not the file that the manifest names")
    return path


def _check_machine(bundle: Path, manifest: Mapping[str, Any]) -> None:
    """Code for another processor would end the process. Raises: StepError."""
    have = _cpu_features()
    lacks = ", ".join(str(name) for name in manifest.get("required_features") or () if name not in have)
    if have and lacks:
        problem = f"{bundle} is for {manifest.get('target')}; this {platform.machine()} has no {lacks}"
        raise StepError(f"{problem}: build it for this machine", code="bundle.features")


def _cpu_features() -> set[str]:
    """As the system names them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return set()
    fields = (line.partition(":") for line in text.splitlines())
    return next((set(words.split()) for name, _, words in fields if name.strip() in ("flags", "Features")), set())
