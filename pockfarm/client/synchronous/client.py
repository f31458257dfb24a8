# Made from pockfarm/client/asynchronous/client.py by scripts/synchronous.py: change that one, then `make golden`.
"""The client itself: all that can be asked of a farm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pockfarm.client.answers import json_of
from pockfarm.client.synchronous.submitting import Submitting
from pockfarm.client.threads import run_here
from pockfarm.values import text

if TYPE_CHECKING:
    from pockfarm.fine_tuning.result import FineTuned


class Client(Submitting):
    """A farm and one user's key to it. Methods raise `PockfarmError` (see `pockfarm.errors`) and nothing else."""

    def fine_tune(self, model: Any, example_inputs: Any = None, data: Any = None, **options: Any) -> FineTuned:
        """Train a model on a device of the farm, and give back its complete state: `pockfarm.fine_tune`, elsewhere.

        Beside what that takes: `device` or `device_class` says where (any real device by default), `target` what to
        build for (by default what the device runs best), `name` how the farm lists the model.
        """
        from pockfarm.client.fine_tuning import fine_tune

        return run_here(self, lambda farm: fine_tune(farm, model, example_inputs, data, **options))

    def dashboard_link(self, page: str = "") -> str:
        """A fresh link that opens the dashboard once, at a page such as `/dashboard/runs/run_1`."""
        url = text(json_of(self._send("POST", "/dashboard/links")), "url")
        return f"{url}?{urlencode({'to': page})}" if page else url
