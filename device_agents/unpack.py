"""The start of the agent as one file (`python3 pockfarm-agent.pyz ...`): becomes the archive's `__main__.py`.

Jobs are started by a script of the agent's own, which has to be a file; so the archive's content is laid out in the
state folder, under the archive's digest, and runs from there; it is compared with the archive at each start. An
update may have brought another file, which then runs in place of this one (`slots/launcher.py`).
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

OLDEST = (3, 9)
OF_THIS_FILE = ("--probe", "--check", "--self-test", "--enrol-only", "--help", "-h")
"""Words with which this very file runs, whatever updates have brought."""


def state_folder(arguments: list[str]) -> Path | None:
    """Returns the folder that `--state` names; None if it is not given."""
    for number, word in enumerate(arguments):
        if word == "--state" and number + 1 < len(arguments):
            return Path(arguments[number + 1]).expanduser()
        if word.startswith("--state="):
            return Path(word.split("=", 1)[1]).expanduser()
    return None


def lay_out(archive: Path, state: Path) -> Path:
    """The folder that holds the archive's content, byte for byte."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = state / f"program-{digest[:16]}"
    with zipfile.ZipFile(archive) as content:
        files = {name: content.read(name) for name in content.namelist()}
    if all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in files.items()):
        return folder
    draft = Path(tempfile.mkdtemp(prefix="program-", dir=state))
    for name, data in files.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(draft, folder)
    return folder


def main() -> None:
    """Runs the agent with this command's arguments."""
    if sys.version_info < OLDEST:
        sys.exit(f"the agent needs Python 3.9 or newer, this is {sys.version.split()[0]}")
    state, archive = state_folder(sys.argv[1:]), Path(sys.argv[0]).resolve()
    if state is not None:
        if not set(OF_THIS_FILE) & set(sys.argv[1:]):
            _launch(archive, state)
        sys.path[0] = str(lay_out(archive, state))
    runpy.run_module("device_agents.agent", run_name="__main__", alter_sys=True)


def _launch(archive: Path, state: Path) -> None:
    from device_agents.slots.launcher import Start, launch

    launch(Start(archive, sys.argv[1:], state.resolve()))
    # What was imported came out of the archive; the agent comes from the folder, all of it.
    for name in [name for name in sys.modules if name.partition(".")[0] == "device_agents"]:
        del sys.modules[name]


if __name__ == "__main__":
    main()
