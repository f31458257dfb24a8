"""A bundle's files on disk, for tests that look at them: of a bundle that we have built ourselves."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def unpacked(bundle: bytes, folder: Path) -> Path:
    """Write its files under the folder. Debian's Python 3.11.2 knows no filters for `extractall`."""
    with tarfile.open(fileobj=io.BytesIO(bundle)) as archive:
        for member in archive:
            source = archive.extractfile(member)
            assert source is not None, f"{member.name} is no file"
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read())
            path.chmod(member.mode)
    return folder
