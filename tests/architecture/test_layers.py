"""The floors of a package: which of its rooms may import which. A room imports from those below it, never from above.

A package's layers are one list of its rooms (folders or single files right under the package), from bottom to top.
Rooms that share an entry stand side by side: none of them imports another. Whatever is at the package's own root
(`__init__.py`) is below all rooms, but for `FACADES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.architecture.sources import imports, python_files

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once for all of them

Layers = Sequence[str | tuple[str, ...]]

LAYERS: dict[str, Layers] = {
    "device_agents": (
        "figures",  # what times come to
        "wire",  # what both ends say
        "slots",  # which of the agent's files runs
        ("unpack", "errors", "own_file"),  # the start of the one-file agent
        "devices",  # what this machine is
        "measure",  # what the numbers mean
        ("farm", "job"),  # a job knows no farm, and the farm's client no job
        ("attempt", "execute"),  # a job for the farm, a job without one
        ("joining", "self_test", "updating"),  # how it enrols; what a board can do, before it does; how it is renewed
        "options",  # the words of its command line
        "agent",
    ),
    "service": (
        "base",  # settings, problems, logs, confined children
        "store",  # rows, files and keys, and what happens in a transaction
        "people",  # who may do what, and how much
        "artefacts",  # files, and the jobs that make them
        "devices",  # rules about devices
        "work",  # runs on devices
        "boards",  # addresses for boards and their operators
        "operations",  # running a farm
        "dashboard",
        "features",  # optional ones, each a folder with its record
        "feature_list",  # their records
        "farm",  # puts a farm together
        "app",
        ("admin", "root"),  # commands on the farm's own machine
    ),
    "compiler": (
        "errors",
        "naming",  # what was meant
        ("cache_folder", "element_types", "external", "identity", "origins", "targets", "values", "warnings"),
        "tensors",  # arrays and their types
        "graph",  # what a model is inside
        "kernels",  # what a kernel computes
        "ops",
        "rewriting",  # writing, checking and running passes
        ("axes", "frontend", "passes", "spec"),  # through operators, from the file, on the graph, from the user
        "channels",  # which of them learn, side by side
        "step",  # plan, loss, gradients, optimizer
        "program",  # calls in order, and their memory
        ("codegen", "export", "fusion", "rematerialisation"),
        ("slicing", "splitting"),  # by the batch, which adds up its parts by fusion; by hidden channels
        "call_passes",
        "tuning",
        "settings",
        "placement",  # which way to run fits
        "stages",
        "bundle",  # what leaves
        "trained",  # what comes back
        "pipeline",
        "explain",  # a plan's meaning
        "api",
    ),
    "pockfarm": (
        ("errors", "ondevice", "suggestions", "values", "version"),  # who must act; a step on a device; what was meant
        ("files", "profiles", "screen", "webhooks"),  # what callers give, where farms are, what a terminal shows
        "output",  # tables, summaries, error messages
        "own_farm",  # what `pockfarm up` runs
        "local",  # building and running without a farm
        "fine_tuning",  # a module trained and given back
        "client",  # a farm's API, and fine-tuning there
        ("command_line", "doctor", "verification"),  # its words; what is wrong; what holds
        "commands",  # the verbs
        "cli",
    ),
    "compiler.frontend": (
        ("file", "number_patterns"),  # what the file says; numbers that no training gives
        # What exporters did, undone; what an import knows; where samples lie; what stays in evaluation mode.
        ("exporters", "scope", "input_axes", "modes"),
        "call",  # one node
        ("batch_norm", "expansion", "folds", "remarks", "input_types"),
        "pieces",  # what rows are written with
        "sliding",
        "rows",
        "folding",  # what is known already
        "fixed_numbers",  # what is no weight
        "source_passes",  # the file, as its author meant it
        ("importer", "source_text"),
    ),
    "compiler.codegen": (
        ("artefacts", "choice"),  # what is built, and one way to schedule it
        "symbols",
        "tir",  # writing and compiling TIR
        "tile",  # what contractions share
        (
            "attention",
            "elements",
            "gather",
            "map",
            "matmul",
            "norm_grad",
            "pool",
            "recurrence",
            "reduce",
            "resample",
            "row",
            "scan",
            "select",
            "winograd",
        ),
        "conv",  # also by Winograd's algorithm
        "depthwise",
        "grid",  # the same families for devices that run groups of items
        "family",  # which plan and which emitter
        "worker",
        "workers",  # its processes, seen from here
        ("api", "linking"),
    ),
}

FACADES = frozenset({"pockfarm"})
"""Packages whose `__init__.py` is above all rooms: users import their names from there."""


def floors(layers: Layers) -> dict[str, int]:
    """The floor that each room is on, from 0."""
    entries = [(entry,) if isinstance(entry, str) else entry for entry in layers]
    return {room: floor for floor, entry in enumerate(entries) for room in entry}


def files_of(package: str) -> list[Path]:
    """The Python files of a package, given as `a.b`."""
    folder = Path(*package.split("."))
    return [path for path in python_files(folder.parts[0]) if path.is_relative_to(folder)]


def room_of(path: Path, package: str) -> str:
    """The room of the package that a file lies in; empty for the package's own `__init__.py`."""
    inner = path.relative_to(Path(*package.split(".")))
    return inner.parts[0] if len(inner.parts) > 1 else inner.stem.removeprefix("__init__")


def climbing(path: Path, package: str, modules: frozenset[str], layers: Layers) -> list[str]:
    """What the file imports from rooms that are not below its own."""
    own, floor, depth = room_of(path, package), floors(layers), package.count(".") + 1
    rooms = {module: module.split(".")[depth] for module in modules if module.startswith(package + ".")}
    return sorted(
        module
        for module, room in rooms.items()
        if room in floor and room != own and (not own or floor[room] >= floor[own])
    )


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_a_room_imports_only_from_the_rooms_below_it(package: str) -> None:
    paths = [path for path in files_of(package) if package not in FACADES or room_of(path, package)]
    climbing_imports = {path.as_posix(): climbing(path, package, imports(path), LAYERS[package]) for path in paths}
    assert {path: modules for path, modules in climbing_imports.items() if modules} == {}


@pytest.mark.parametrize("package", sorted(LAYERS))
def test_every_room_has_its_floor(package: str) -> None:
    assert {room_of(path, package) for path in files_of(package)} - {""} == set(floors(LAYERS[package]))


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("p/low/a.py", "from p.low import b", []),
        ("p/low/a.py", "from p.left import b", ["p.left", "p.left.b"]),
        ("p/left/a.py", "import p.low.b, json, q.top", []),
        ("p/left/a.py", "from p import right", ["p.right"]),
        ("p/left/a.py", "def f():\n    import p.top", ["p.top"]),
        ("p/top.py", "from p.left import a\nfrom p.right import b\nfrom p import VERSION", []),
        ("p/__init__.py", "from p import low", ["p.low"]),
    ],
)
def test_the_rule_itself(path: str, text: str, expected: list[str]) -> None:
    layers = ("low", ("left", "right"), "top")
    assert climbing(Path(path), "p", imports(Path(path), text), layers) == expected


def test_a_package_within_another_has_floors_too() -> None:
    path, text = Path("o/p/low/a.py"), "from o.p.top import b\nimport o.top"
    assert climbing(path, "o.p", imports(path, text), ("low", "top")) == ["o.p.top", "o.p.top.b"]
