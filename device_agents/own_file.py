"""Scripts of the agent's own that run as processes of their own: they have to be files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8)
def own_file(name: str) -> str:
    """The path of a file of this package (`job/launch.py`); out of an agent that is an archive it is unpacked first."""
    path = Path(__file__).parent / name
    if path.exists():
        return str(path)
    folder = tempfile.mkdtemp(prefix="pockfarm-agent-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = next(parent for parent in path.parents if zipfile.is_zipfile(parent))
    unpacked = Path(folder) / path.name
    with zipfile.ZipFile(archive) as agent:
        unpacked.write_bytes(agent.read(str(path.relative_to(archive))))
    return str(unpacked)
