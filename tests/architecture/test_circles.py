"""No import circle in the product: its modules can be read one after another, each after what it stands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.sources import imports, python_files

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once for all of them

PRODUCT = ("compiler", "service", "workers", "device_agents", "pockfarm")
Edges = Mapping[str, frozenset[str]]


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def edges_of(files: Mapping[str, frozenset[str]]) -> Edges:
    """Module -> the modules among `files` that it imports anywhere: in functions and for type checking too.

    `from a import b` counts as `a.b` where that is a module, else as `a`.
    """

    def target(name: str, imported: frozenset[str]) -> str | None:
        is_only_a_parent = any(other.startswith(f"{name}.") and other in files for other in imported)
        return name if name in files and not is_only_a_parent else None

    return {
        module: frozenset(found for name in imported if (found := target(name, imported)) and found != module)
        for module, imported in files.items()
    }


def circles(edges: Edges) -> Iterator[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    for root in sorted(edges):
        if root in number:
            continue
        path = [(root, iter(sorted(edges[root])))]
        number[root] = low[root] = len(number)
        waiting.append(root)
        while path:
            module, rest = path[-1]
            following = next((one for one in rest if one not in number or one in waiting), None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[module])
                if low[module] == number[module]:
                    found = frozenset(waiting[waiting.index(module) :])
                    del waiting[waiting.index(module) :]
                    if len(found) > 1:
                        yield found
            elif following in number:
                low[module] = min(low[module], number[following])
            else:
                number[following] = low[following] = len(number)
                waiting.append(following)
                path.append((following, iter(sorted(edges[following]))))


@pytest.mark.parametrize("package", PRODUCT)
def test_no_import_circle_in_the_product(package: str) -> None:
    files = {module_of(path): imports(path) for path in python_files(package)}
    found = [sorted(circle) for circle in circles(edges_of(files))]
    assert found == []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "a", "c": "a"}, ["ab"]),
        ({"a": "b", "b": "c", "c": "ad", "d": "e", "e": "d"}, ["abc", "de"]),
        ({"a": "bc", "b": "d", "c": "d", "d": ""}, []),
        ({"a": "bd", "b": "c", "c": "b", "d": "a"}, ["ad", "bc"]),
    ],
)
def test_the_search_itself(edges: dict[str, str], expected: list[str]) -> None:
    found = circles({module: frozenset(others) for module, others in edges.items()})
    assert sorted("".join(sorted(circle)) for circle in found) == expected


def test_imports_in_functions_and_for_types_count() -> None:
    texts = {
        "p.a": "def f():\n    from p import b",
        "p.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import f",
        "p": "",
    }
    edges = edges_of({module: imports(Path("p/x.py"), text) for module, text in texts.items()})
    assert edges == {"p.a": frozenset({"p.b"}), "p.b": frozenset({"p.a"}), "p": frozenset()}
