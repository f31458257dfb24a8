"""Exit code 0 if what is named lives (for container health checks): a URL that answers 200, or a file touched lately.

A file's name may hold `{host}`: workers of one volume have a file each. A part that is hung or dead does not touch its
file any more, so a file that is merely there says nothing.
"""

import socket
import sys
import time
import urllib.request
from pathlib import Path

FRESH_S = 15.0
"""Parts touch their files every two seconds; `watched.py` ends one that has not for so long."""


def alive_path(name: str) -> Path:
    """The file that is meant."""
    return Path(name.replace("{host}", socket.gethostname()))


def is_healthy(what: str) -> bool:
    """Whether the URL answers, or the file was touched lately."""
    if what.startswith(("http://", "https://")):
        return bool(urllib.request.urlopen(what, timeout=4).status == 200)
    try:
        age_s = time.time() - alive_path(what).stat().st_mtime
    except OSError:
        return False
    return abs(age_s) < FRESH_S


if __name__ == "__main__":
    sys.exit(0 if is_healthy(sys.argv[1]) else 1)
