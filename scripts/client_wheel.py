"""Which files are the client's, and which the farm's: two wheels, no file in both (docs/decisions/0076).

The client's are all of `pockfarm/` and what that imports, module by module; but for what the command line loads where a
farm or the compiler is installed too (`DOORS`). Both are built from copies of the tree, each with its own
`pyproject.toml`, made here from the one that is tracked: versions and ranges are said there once.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

CLIENT = "pockfarm-client"
OURS = ("compiler", "device_agents", "pockfarm")
DOORS = frozenset({"pockfarm/local/toolchain.py"})
"""Modules of the client that only work beside the farm's wheel: what they import is not the client's."""
EXTRAS = ("client", "fine-tune")
"""Of pyproject.toml: what the client depends on."""


def client_files(root: Path) -> frozenset[str]:
    """Every file of the client in this tree."""
    left = sorted(path.relative_to(root).as_posix() for path in (root / "pockfarm").rglob("*") if path.is_file())
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found and "__pycache__" not in name:
            found.add(name)
            if name.endswith(".py") and name not in DOORS:
                left += imported(root, (root / name).read_text())
    return frozenset(found)


def imported(root: Path, text: str) -> Iterator[str]:
    """Files of ours that a module imports, anywhere in it, and those of the packages that they are in."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield from files_of(root, name)


def files_of(root: Path, module: str) -> Iterator[str]:
    parts = module.split(".")
    if parts[0] not in OURS:
        return
    for count in range(1, len(parts) + 1):
        for path in (Path(*parts[:count], "__init__.py"), Path(*parts[: count - 1], f"{parts[count - 1]}.py")):
            if (root / path).is_file():
                yield path.as_posix()


def keep_only_client(tree: Path) -> None:
    """Leave of the tree what the client's wheel is built from."""
    kept = client_files(tree) | {"README.md", "LICENSE", "THIRD_PARTY.md", "pyproject.toml"}
    remove(tree, lambda name: name not in kept)
    (tree / "pyproject.toml").write_text(client_project((tree / "pyproject.toml").read_text()))


def remove_client(tree: Path) -> None:
    """Leave of the tree what the farm's wheel is built from."""
    client = client_files(tree)
    remove(tree, client.__contains__)
    (tree / "pyproject.toml").write_text(farm_project((tree / "pyproject.toml").read_text()))


def remove(tree: Path, is_unwanted: Callable[[str], bool]) -> None:
    for path in [path for path in tree.rglob("*") if path.is_file() and is_unwanted(path.relative_to(tree).as_posix())]:
        path.unlink()


def client_project(text: str) -> str:
    """The client's own pyproject.toml."""
    project = tomllib.loads(text)["project"]
    needs = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return f'''\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{CLIENT}"
version = "{project["version"]}"
description = "{project["description"]}: the client"
readme = "README.md"
license = "{project["license"]}"
license-files = {project["license-files"]}
requires-python = "{project["requires-python"]}"
keywords = {project["keywords"]}
classifiers = [
    "Development Status :: 4 - Beta",
    "Operating System :: MacOS",
    "Operating System :: Microsoft :: Windows",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
]
dependencies = {needs}

[project.scripts]
pockfarm = "{project["scripts"]["pockfarm"]}"

[tool.setuptools.packages.find]
include = ["compiler*", "device_agents*", "pockfarm*"]

[tool.setuptools.package-data]
"*" = ["py.typed"]
'''


def farm_project(text: str) -> str:
    """The tracked pyproject.toml, with the client in place of its files and of its command."""
    version = tomllib.loads(text)["project"]["version"]
    with_client, count = re.subn(r"^dependencies = \[\]$", f'dependencies = ["{CLIENT}=={version}"]', text, flags=re.M)
    without_command, more = re.subn(r'^\[project\.scripts\]\npockfarm = ".*"\n', "", with_client, flags=re.M)
    assert (count, more) == (1, 1), "pyproject.toml has another shape: see scripts/client_wheel.py"
    return without_command
