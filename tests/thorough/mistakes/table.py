"""Every mistake, in one list."""

from __future__ import annotations

from tests.mistakes.record import Mistake
from tests.mistakes.requests import API
from tests.thorough.mistakes.by_admin import ADMIN
from tests.thorough.mistakes.by_build import BUILD
from tests.thorough.mistakes.by_exec import EXEC
from tests.thorough.mistakes.by_own_farm import MACHINE
from tests.thorough.mistakes.by_sdk import SDK
from tests.thorough.mistakes.on_the_farm import FARM

MISTAKES: tuple[Mistake, ...] = (*BUILD, *EXEC, *MACHINE, *FARM, *SDK, *API, *ADMIN)
