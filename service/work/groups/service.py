"""Groups as their owners see them: made, followed, cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.artefacts.bundles import service as bundles
from service.base.identifiers import clean_name
from service.base.problems import Invalid, NotFound
from service.devices.wants import wants_of
from service.store.database.models import OPEN_RUN_STATES, Device, Run, RunGroup
from service.store.database.paging import newest_first
from service.store.farm import Farm
from service.work.groups.schemas import MOST_DEVICES, GroupCreate, GroupView
from service.work.runs import compared
from service.work.runs import service as runs
from service.work.runs.fitting import FEATURES, REMOVED, TARGET, WANTS, Standing, Wish, standings

NEVER = (TARGET, FEATURES, WANTS, REMOVED)
"""Reasons that keep a device from a run for good."""


def create(session: Session, farm: Farm, body: GroupCreate, *, api_key_id: str) -> RunGroup:
    """Queues a run for each device that may take it, or for `count` of them: those that may soonest.

    All or none: what does not fit one device, or a quota, refuses the whole. Raises: as `runs.create`, and Invalid if
    there are not so many devices.
    """
    bundle = bundles.held_bundle(session, body.bundle, where="bundle").bundle
    devices = _devices(session, farm, body, bundle)
    group = RunGroup(api_key_id=api_key_id, name=clean_name(body.name))
    session.add(group)
    session.flush()
    for standing in devices:
        runs.create(
            session,
            body.run_for(standing.device.id),
            bundle,
            api_key_id=api_key_id,
            limits=farm.settings,
            storage=farm.storage,
            group_id=group.id,
        )
    return group


def _devices(session: Session, farm: Farm, body: GroupCreate, bundle: bundles.Built) -> Sequence[Standing]:
    wants = wants_of(body.where, body.own_data, body.mode)
    features = compared.features(bundle, compared.compared_bundles(session, body.others, bundle))
    wish = Wish(bundle.target, features, None, body.device_class, frozenset(wants))
    every = standings(session, farm.settings, wish, most=MOST_DEVICES + 1)
    fitting = [standing for standing in every if standing.code not in NEVER]
    if not fitting or len(fitting) < (body.count or 1):
        others = "; ".join(f"{standing.device.name} {standing.message}" for standing in every if standing.code in NEVER)
        raise Invalid(
            "group.devices",
            f"{len(fitting)} devices could take it, {body.count or 'at least 1'} are asked "
            f"for{'; ' + others if others else ''}"[:2000],
            where="count",
            hint="ask for fewer, another class or other tags; GET /devices shows what there is",
        )
    if body.count is None and len(fitting) > MOST_DEVICES:
        raise Invalid(
            "group.devices",
            f"more than {MOST_DEVICES} devices could take it",
            where="count",
            hint=f"say how many: at most {MOST_DEVICES}",
        )
    return fitting[: body.count]


def find(session: Session, group_id: str) -> RunGroup:
    """Returns the group. Raises: NotFound."""
    group = session.get(RunGroup, group_id)
    if group is None:
        raise NotFound("group.unknown", f"no group {group_id!r:.60}", hint="GET /run-groups lists them")
    return group


def listed(session: Session, *, limit: int, cursor: str | None) -> tuple[Sequence[RunGroup], str | None]:
    """Returns a page of groups, the newest first."""
    return newest_first(session, select(RunGroup), RunGroup.id, limit=limit, cursor=cursor)


def view(session: Session, group: RunGroup) -> GroupView:
    """Returns a group and how far it is."""
    query = select(Run.state, func.count()).where(Run.group_id == group.id).group_by(Run.state)
    states = {row[0]: row[1] for row in session.execute(query)}
    is_open = any(state in OPEN_RUN_STATES for state in states)
    return GroupView(id=group.id, name=group.name, created_at=group.created_at, states=states, is_open=is_open)


def runs_of(session: Session, group: RunGroup) -> list[tuple[Run, str]]:
    """Returns the group's runs with the names of their devices, by these names."""
    query = select(Run, Device.name).join(Device, Device.id == Run.wanted_device_id).where(Run.group_id == group.id)
    return [(run, name) for run, name in session.execute(query.order_by(Device.name, Run.id))]


def cancel(session: Session, group_id: str) -> RunGroup:
    """Asks every run of the group that has not ended to stop. Raises: NotFound."""
    group = find(session, group_id)
    is_open = select(Run.id).where(Run.group_id == group.id, Run.state.in_(OPEN_RUN_STATES)).order_by(Run.id)
    for run_id in list(session.scalars(is_open)):
        runs.cancel(session, run_id)
    return group
