"""Commands as processes of their own that need not load everything anew: a process that has, and forks for each.

A child does what `python -m PROGRAM …` does: its own folder, environment, streams and exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import Any

LOADED = (
    "pockfarm.cli",
    "pockfarm.local.toolchain",
    "pockfarm.local.preflight",
    "pockfarm.client",
    "service.admin",
    "device_agents.execute",
    "compiler.api",
)
MAINS = {"pockfarm": "pockfarm.cli", "service.admin": "service.admin"}


def main() -> None:
    """A request on each line of the standard input, its answer on one of the standard output."""
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os._exit(_child(asked, output.fileno()))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "text": output.read().decode()}


def _child(asked: dict[str, Any], output: int) -> int:
    empty = os.open(os.devnull, os.O_RDONLY)
    for stream, number in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(stream, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = [asked["program"], *asked["words"]]
    try:
        code = importlib.import_module(MAINS[asked["program"]]).main(asked["words"])
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


if __name__ == "__main__":
    main()
