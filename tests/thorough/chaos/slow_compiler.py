"""What the campaign's workers compile with: the real compiler, or a stand-in that takes some seconds and no processor.

A model that begins with `stand-in ` is bytes that become a bundle by `made_of`, so the right answer is known; whatever
else goes to the compiler, whose bundles are the same each time.
"""

from __future__ import annotations

import time
from typing import Any

from tests.thorough.chaos.answers import STAND_IN, made_of

SECONDS = 5.0


def compile_training(model: bytes, settings: Any, **more: Any) -> Any:
    """Like `compiler.api.compile_training`."""
    if not model.startswith(STAND_IN):
        from compiler.api import compile_training as compiled

        return compiled(model, settings, **more)
    ticks = int(SECONDS / 0.2)
    for tick in range(ticks):
        settings.progress("wait", 0.5 * tick / ticks)
        time.sleep(0.2)
    return made_of(model)
