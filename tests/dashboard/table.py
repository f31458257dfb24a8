"""What each page costs and whether it breaks a rule: `python -m tests.dashboard.table [PAGE ...]`.

A farm as it is deployed (an API process, PostgreSQL, Valkey) holds the rows that screenshots show and very many runs
beside them. Of each page, by name of `screenshots.pages_of`: processor time of the API and of the database for one
visit, bytes as they travel, and how many rules axe finds broken at each width, light and dark together. Ends with 1 if
a page takes more than `MOST_MS` or `MOST_KB`, or breaks a rule; which ones, it says below the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from playwright.sync_api import Browser, Page

from service.app import create_app
from service.base.settings import Settings
from tests.dashboard.axe import WIDTHS, violations_by_look
from tests.dashboard.conftest import BROWSER, SeededFarm
from tests.dashboard.screenshots import LOOKS, chromium, open_page, pages_of
from tests.dashboard.seed import seed
from tests.load.farm import LoadedFarm, loaded_farm
from tests.load.parts import measured
from tests.load.rows import add_results

MOST_MS, MOST_KB = 50.0, 100.0
VISITS = 10
"""After two that fill what is kept from one to the next. Processor time comes in steps of 10 ms."""


@dataclass(frozen=True)
class Line:
    """One page's figures. `broken`: look -> lines of axe."""

    name: str
    api_ms: float
    database_ms: float
    sent_kb: float
    broken: dict[str, list[str]]

    @property
    def total_ms(self) -> float:
        """Processor time of one visit."""
        return self.api_ms + self.database_ms

    def at(self, width: int) -> int:
        """Rules broken at that width, light and dark together."""
        return len({line for look, lines in self.broken.items() if look.startswith(f"{width} ") for line in lines})

    @property
    def is_kept(self) -> bool:
        """Whether it keeps every limit."""
        return self.total_ms <= MOST_MS and self.sent_kb <= MOST_KB and not any(self.broken.values())


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 if a limit is broken."""
    chosen = _parse(arguments)
    with loaded_farm("postgresql", boards=8) as farm, seeded_beside(farm) as seeded, chromium() as browser:
        add_results(farm, chosen.results)
        found = {name: path for name, path in pages_of(seeded).items() if not chosen.pages or name in chosen.pages}
        print(
            f"{len(found)} pages, {chosen.results:,} runs beside those of the screenshots, {VISITS} visits each; "
            f"limits: {MOST_MS:g} ms of processor time, {MOST_KB:g} kB compressed, no rule of axe\n"
        )
        lines = list(_lines(farm, seeded, None if chosen.no_axe else browser, found))
    for line in lines:
        for look, rules in line.broken.items():
            print("".join(f"\n{line.name}, {look}: {rule}" for rule in rules), end="")
    broken = [line.name for line in lines if not line.is_kept]
    print(
        f"\n{len(lines) - len(broken)} of {len(lines)} pages keep all limits"
        + (f"; not {', '.join(broken)}" if broken else "")
    )
    return 1 if broken else 0


@contextmanager
def seeded_beside(farm: LoadedFarm) -> Iterator[SeededFarm]:
    """The rows of the screenshots in the loaded farm's database, written through an application of our own."""
    app = create_app(Settings(state=farm.state, database_url=farm.url, sweep_s=0))
    with app.state.farm.database.transaction() as session:
        ids = seed(session)
    yield SeededFarm(app, app.state.farm, ids)
    app.state.farm.close()


def _lines(farm: LoadedFarm, seeded: SeededFarm, browser: Browser | None, found: dict[str, str]) -> Iterator[Line]:
    print(
        "| page | ms | of the API | of the database | kB | " + " | ".join(f"axe at {width}" for width in WIDTHS) + " |"
    )
    print("|---" * (5 + len(WIDTHS)) + "|")
    window = open_page(browser, LOOKS[0], farm.address, seeded.link()) if browser is not None else None
    with httpx.Client(base_url=farm.address, headers={**BROWSER, "accept-encoding": "gzip"}, timeout=60.0) as http:
        http.get(seeded.link())
        for name, path in found.items():
            line = _visited(farm, http, name, path, window)
            times = (f"{part:.0f}" for part in (line.total_ms, line.api_ms, line.database_ms))
            axe = (f"{line.at(width)}" if window is not None else "" for width in WIDTHS)
            print(f"| {' | '.join((name, *times, f'{line.sent_kb:.1f}', *axe))} |", flush=True)
            yield line


def _visited(farm: LoadedFarm, http: httpx.Client, name: str, path: str, window: Page | None) -> Line:
    for _ in range(2):
        answer = http.get(path)
    with measured(farm) as cost:
        for _ in range(VISITS):
            http.get(path)
    if answer.status_code >= 500 or answer.headers.get("content-type", "").partition(";")[0] != "text/html":
        raise RuntimeError(f"{name} ({path}) answers {answer.status_code}: {answer.text:.300}")
    broken: dict[str, list[str]] = {}
    if window is not None:
        window.goto(path)
        broken = violations_by_look(window)
    sent = int(answer.headers["content-length"])
    return Line(name, 1000 * cost.api_s / VISITS, 1000 * cost.database_s / VISITS, sent / 1000, broken)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.dashboard.table", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these, by name")
    parser.add_argument("--results", type=int, default=100_000, help="runs in the database")
    parser.add_argument("--no-axe", action="store_true", help="only processor time and bytes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
