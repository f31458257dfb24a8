"""For a process that is to see another time: on its PYTHONPATH, Python loads this before anything else.

`time.time` is off by what the file says that `CHAOS_CLOCK` names, read anew each time. The agent and its heartbeat take
the time from nowhere else. (libfaketime, which would do it below Python, makes `time.sleep` of Python 3.11 fail.)
"""

import os
import time

_true_time = time.time


def _off_time() -> float:
    try:
        with open(os.environ["CHAOS_CLOCK"]) as file:
            return _true_time() + float(file.read())
    except (OSError, KeyError, ValueError):
        return _true_time()


time.time = _off_time
