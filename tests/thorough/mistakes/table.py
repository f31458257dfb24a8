"""Every mistake, in one list."""

from __future__ import annotations

from tests.mistakes.record import Mistake
from tests.mistakes.requests import API
from tests.thorough.mistakes.by_admin import ADMIN
from tests.thorough.mistakes.by_sdk import SDK
from tests.thorough.mistakes.on_the_farm import FARM
from tests.thorough.mistakes.on_this_machine import BUILD, EXEC, MACHINE

MISTAKES: tuple[Mistake, ...] = (*BUILD, *EXEC, *MACHINE, *FARM, *SDK, *API, *ADMIN)
