"""The record of an optional feature: everything that the farm takes from it, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fastapi import APIRouter
from pydantic_settings import BaseSettings

from service.dashboard.extensions import AdminEntry, ConcernFinder
from service.operations.sweeper import Step
from service.people.permissions import Rule
from service.store.announcements import Listener
from service.store.farm import Farm


class BackgroundService(Protocol):
    """Something that works beside the requests of one process, from its start to its end."""

    def start(self) -> None:
        """Starts the service."""
        ...

    def stop(self) -> None:
        """Stops the service once its current work is done."""
        ...


@dataclass(frozen=True, kw_only=True)
class Feature:
    """An optional feature. Without its line in `service/feature_list.py` the farm starts and knows nothing of it.

    Its tables stay in the schema (`service/store/database/models`), which migrations, backups and retention read whole.
    """

    name: str
    routers: tuple[APIRouter, ...] = ()
    """Addresses of the API and of the dashboard."""
    permissions: Mapping[str, Rule] = field(default_factory=dict)
    """A rule for each address of its routers: `METHOD /path`."""
    settings: type[BaseSettings] | None = None
    """Settings of its own (`POCKFARM_<NAME>`); read by `Settings.section`, and checked when the farm starts."""
    events: tuple[str, ...] = ()
    """Names of the events that it sends, beyond those of `service/store/announcements.py`."""
    listeners: tuple[Listener, ...] = ()
    """Called with each announcement, in its transaction."""
    sweeps: tuple[Step, ...] = ()
    """Steps of each sweep, after the farm's own."""
    services: tuple[Callable[[Farm], BackgroundService], ...] = ()
    """Creates what works beside the requests of each API process."""
    admin_pages: tuple[AdminEntry, ...] = ()
    """Its pages in the navigation of the administration."""
    concerns: tuple[ConcernFinder, ...] = ()
    """Finders of what needs attention, for the dashboard's first page."""
