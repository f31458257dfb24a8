"""Every mistake, in one list."""

from __future__ import annotations

from tests.mistakes.by_admin import ADMIN
from tests.mistakes.by_api import API
from tests.mistakes.by_sdk import SDK
from tests.mistakes.on_the_farm import FARM
from tests.mistakes.on_this_machine import BUILD, EXEC, MACHINE
from tests.mistakes.record import Mistake

MISTAKES: tuple[Mistake, ...] = (*BUILD, *EXEC, *MACHINE, *FARM, *SDK, *API, *ADMIN)
