"""Files that a command leaves, whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Put the bytes in the file's place in one step; what is there stays until then. Raises: OSError that names it.

    What is there and is no ordinary file (a pipe, `/dev/stdout`) is written to, and stays what it is.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
