"""Very many rows, made by the database itself: copies of one that the farm has written."""

from __future__ import annotations

import httpx

from device_agents.measure.measurement import measure
from device_agents.wire import Block, Measurement
from service.store.database.models import Attempt, Lane, Result, Run
from tests.load.farm import LoadedFarm

OTHER_CLASS, OTHER_TAG = "a class that no board has", "a-tag-that-no-board-has"


def queue_for_others(farm: LoadedFarm, count: int) -> None:
    """Make it so many queued runs that no board may take."""
    _forget(farm, f"wanted_device_class = '{OTHER_CLASS}'")
    if count:
        _copies(farm, _send(farm, device_class=OTHER_CLASS, allow_waiting=True), count - 1)


def queue_wishes_of_others(farm: LoadedFarm, count: int) -> None:
    """Make it so many queued runs, each for a tag of its own that no board has: as many lanes. They stay when the runs
    are gone."""
    _forget(farm, f"wants LIKE 'tag:{OTHER_TAG}%'")
    if not count:
        return
    run_id, wish = _send(farm, where=[OTHER_TAG], allow_waiting=True), f"'tag:{OTHER_TAG}=' || number"
    _copies(farm, run_id, count - 1, lane_id="'lan_wish' || number", wants=wish, rarest_wish=wish)
    kept = [column.name for column in Lane.__table__.columns if column.name not in ("id", "wants")]
    farm.sql(
        f"INSERT INTO lanes (id, wants, {', '.join(kept)}) SELECT 'lan_wish' || number, {wish}, {', '.join(kept)} "
        f"FROM lanes, {_series(farm, count - 1)} WHERE wants = 'tag:{OTHER_TAG}'",
        "ANALYZE",
    )


def _forget(farm: LoadedFarm, condition: str) -> None:
    farm.sql(
        f"DELETE FROM events WHERE subject IN (SELECT id FROM runs WHERE {condition})",
        f"DELETE FROM runs WHERE {condition}",
        "ANALYZE",
    )


def queue_for_boards(farm: LoadedFarm, count: int) -> None:
    """So many more queued runs that any board may take."""
    _copies(farm, _send(farm), count - 1)


def _send(farm: LoadedFarm, **wish: object) -> str:
    answer = httpx.post(f"{farm.address}/runs", json={"bundle": farm.bundle, **wish}, headers=farm.headers)
    answer.raise_for_status()
    return str(answer.json()["id"])


def _copies(farm: LoadedFarm, run_id: str, count: int, **changes: str) -> None:
    columns = [column.name for column in Run.__table__.columns if column.name != "id"]
    values = ", ".join(changes.get(name, name) for name in columns)
    farm.sql(
        f"INSERT INTO runs (id, {', '.join(columns)}) SELECT {_id(farm, 'run')}, {values} "
        f"FROM runs, {_series(farm, count)} WHERE runs.id = '{run_id}'",
        "ANALYZE",
    )


def _series(farm: LoadedFarm, count: int) -> str:
    if farm.kind == "postgresql":
        return f"generate_series(1, {count}) AS series(number)"
    numbers = f"WITH RECURSIVE s(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM s WHERE number < {count})"
    return f"({numbers} SELECT number FROM s) AS series"


def _id(farm: LoadedFarm, kind: str) -> str:
    """Ids of the right length that sort by number, after all that there are."""
    if farm.kind == "postgresql":
        return f"'{kind}_02z' || lpad(number::text, 23, '0')"
    return f"'{kind}_02z' || printf('%023d', number + (SELECT count(*) FROM runs))"


def add_results(farm: LoadedFarm, count: int) -> None:
    """So many runs that have succeeded with a measurement, each with an attempt and a report, spread over the boards
    and a month."""
    taken = _one_result(farm)
    devices = "ARRAY[" + ", ".join(f"'{board.device_id}'" for board in farm.boards) + "]"
    device = f"({devices})[1 + number % {len(farm.boards)}]"
    values = {
        "runs": (
            Run,
            {
                "id": _id(farm, "run"),
                "device_id": device,
                "created_at": "created_at - 2592000 + number * 2.592",
                "finished_at": "finished_at - 2592000 + number * 2.592",
                "median_us": "1000.0 * (1 + number % 97 / 100.0)",
                "p90_us": "2100.0",
                "batch": "8",
                "samples_per_second": "4000.0",
                "verdict": "'valid'",
                "measurement_class": "'hardware'",
            },
        ),
        "attempts": (
            Attempt,
            {
                "id": _id(farm, "att"),
                "run_id": _id(farm, "run"),
                "device_id": device,
                "token_hash": "'t' || number",
                "finished_at": "finished_at - 2592000 + number * 2.592",
            },
        ),
        "results": (Result, {"attempt_id": _id(farm, "att"), "run_id": _id(farm, "run"), "log_index": "number"}),
    }
    statements = ["SET session_replication_role = replica", "SET synchronous_commit = off"]  # no checks of references
    for table, (kind, changes) in values.items():
        names = [column.name for column in kind.__table__.columns]
        made = ", ".join(changes.get(name, name) for name in names)
        key = "id" if table == "runs" else "run_id"
        statements.append(
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {made} FROM {table}, "
            f"{_series(farm, count)} WHERE {table}.{key} = '{taken}'"
        )
    farm.sql(*statements, "VACUUM ANALYZE")


def _one_result(farm: LoadedFarm) -> str:
    run_id, board = _send(farm), farm.boards[0]
    with httpx.Client(base_url=farm.address, timeout=60.0) as http:
        board.http = http
        work = board.lease(5.0)
        if work is None or work.run_id != run_id:
            raise RuntimeError("the one run that the others are copies of was not leased")
        answer = board.report(work, losses=(), measurement=_measured(), run_s=60.0)
    answer.raise_for_status()
    return run_id


def _measured() -> Measurement:
    """Five blocks: as many as it takes for an interval and a rank."""
    blocks = [Block(tuple(1000.0 * (1 + 0.001 * number + 0.0002 * step) for step in range(4))) for number in range(5)]
    return measure(blocks, batch=8, warmup_steps=0, threads=2)
