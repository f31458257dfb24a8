"""The product has no module that only tests, benchmarks or examples use: its entry points reach all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, imports, python_files
from tests.architecture.test_circles import module_of

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once for all of them

PRODUCT = ("compiler", "service", "workers", "device_agents", "pockfarm")
ENTRY_POINTS: Mapping[str, str] = {
    "pockfarm.cli": "the console script; it starts the farm's parts by their names",
    "pockfarm.ondevice": "users import it",
    "pockfarm.webhooks": "users import it",
    "service.base.child_probe": "operators run it, to see what confines a child here",
    "service.root": "operators run it, away from any farm",
    "service.features.webhooks.__main__": "deployments run it",
    "device_agents.devices.ask_accelerator": "run as a script by its path",
    "device_agents.job.launch_facts": "run as a script by its path",
    "device_agents.unpack": "the start of the one-file agent, which carries its text",
}


@cache
def names_in(path: Path, text: str | None = None) -> frozenset[str]:
    """What the file imports, and its strings: tables of emitters and `python -m` name modules so."""
    text = (ROOT / path).read_text() if text is None else text
    nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return imports(path, text) | {value.split(":")[0] for value in nodes if isinstance(value, str)}


def unreached(names: Mapping[str, Iterable[str]], entry_points: Iterable[str]) -> set[str]:
    """The modules that no chain of names leads to from the entry points; naming a module reaches its packages too."""
    reached: set[str] = set()
    pending = list(entry_points)
    while pending:
        module = pending.pop()
        if module in names and module not in reached:
            reached.add(module)
            pending += [module.rpartition(".")[0], *names[module]]
    return set(names) - reached


def test_every_module_of_the_product_is_used_by_the_product() -> None:
    names = {module_of(path): names_in(path) for path in python_files(*PRODUCT)}
    assert unreached(names, ENTRY_POINTS) == set()


def test_no_entry_point_is_used_by_another_module() -> None:
    names = {module_of(path): names_in(path) for path in python_files(*PRODUCT)}
    for entry_point in ENTRY_POINTS:
        assert entry_point in unreached(names, set(ENTRY_POINTS) - {entry_point})


def test_the_rule_itself() -> None:
    texts = {
        "p": "",
        "p.start": "from p import a",
        "p.a": "TABLE = {'b': 'p.b', 'c': 'p.c:main'}",
        "p.b": "",
        "p.c": "def f():\n    import p.q.d",
        "p.q": "",
        "p.q.d": "",
        "p.left": "import p.right",
        "p.right": "import p.left",
    }
    names = {module: names_in(Path("p/x.py"), text) for module, text in texts.items()}
    assert unreached(names, ["p.start"]) == {"p.left", "p.right"}
