"""Where a run writes its figures and its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import WORKLOADS
from benchmarks.prepare import PLANS

PAGES = Path("docs/benchmarks")
INDEX, FIGURES = PAGES / "README.md", PAGES / "figures"


def machines() -> list[str]:
    """Kinds of machines that have figures."""
    return sorted(folder.name for folder in FIGURES.iterdir() if folder.is_dir())


@dataclass(frozen=True)
class Results:
    """`folder` holds the figures as JSON; `page` is made of them."""

    folder: Path
    page: Path
    title: str = "Benchmarks"

    @property
    def is_published(self) -> bool:
        """Whether the index of pages has this one."""
        return self.page.parent == PAGES

    @classmethod
    def published(cls, kind: str) -> Results:
        """Of one kind of machine: kept, so that another day's run goes on, and readers have what the page is made of.

        Times of two machines tell nothing of each other, so that each has figures and a page of its own.
        """
        return cls(FIGURES / kind, PAGES / f"{kind}.md", f"Benchmarks: {kind}")

    @classmethod
    def apart(cls, folder: Path) -> Results:
        """All in one folder: for runs whose figures are not to be published, such as those of a busy machine."""
        return cls(folder, folder / "benchmarks.md")

    def comparison(self, workload: str, plan: str) -> Path:
        """All sides on one workload and plan."""
        return self.folder / "results" / f"{workload}-{plan}.json"

    def roofline(self, workload: str, plan: str) -> Path:
        """Our kernels on one workload and plan."""
        return self.folder / "rooflines" / f"{workload}-{plan}.json"

    @property
    def scaling(self) -> Path:
        """Our step with threads, batch and depth."""
        return self.folder / "scaling.json"

    @property
    def compiling(self) -> Path:
        """Times of compiling."""
        return self.folder / "compiling.json"

    def beside(self, name: str) -> Path:
        """A plot or a long list of the page, which links it."""
        return self.page.with_name(f"{self.page.stem}-{name}")

    def comparisons(self) -> Iterator[Path]:
        """The comparisons that are there, in the order of workloads and plans."""
        return (path for path in self._each(self.comparison) if path.exists())

    def rooflines(self) -> Iterator[Path]:
        """The rooflines that are there, in the order of workloads and plans."""
        return (path for path in self._each(self.roofline) if path.exists())

    def _each(self, path_of: Callable[[str, str], Path]) -> Iterator[Path]:
        return (path_of(workload, plan) for workload in WORKLOADS for plan in PLANS)


def keep(figures: Mapping[str, object], path: Path) -> None:
    """Write figures as JSON with a line for each side, kernel or build."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [f"{json.dumps(name)}: {_entries(value)}" for name, value in figures.items()]
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def _entries(value: object) -> str:
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n]"
