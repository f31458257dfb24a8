"""The tree as the architecture tests see it: tracked files, and the imports of each Python file."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files under version control or about to be (not ignored), relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = sorted(name for name in listing.stdout.decode().split("\0") if name)
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def python_files(*folders: str) -> Iterator[Path]:
    for path in tracked_files():
        if path.suffix == ".py" and (not folders or path.parts[0] in folders):
            yield path


@cache
def imports(path: Path, text: str | None = None) -> frozenset[str]:
    """Every dotted module that the file imports, anywhere in it; `from a import b` counts as `a` and `a.b`."""
    tree = ast.parse((ROOT / path).read_text() if text is None else text, filename=str(path))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, path)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            found.update(_dynamic_import(node))
    return frozenset(found)


def _base_of(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    package = path.parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _dynamic_import(node: ast.Call) -> Iterator[str]:
    """`importlib.import_module("x")` and `__import__("x")` with a literal name."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in {"import_module", "__import__"} or not node.args:
        return
    first = node.args[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield first.value


def modules(folder: str) -> list[str]:
    """Dotted names of the modules right in a folder."""
    paths = sorted((ROOT / folder).glob("*.py"))
    return [f"{folder.replace('/', '.')}.{path.stem}" for path in paths if path.stem != "__init__"]


def functions_returning(result: str, names: list[str]) -> set[str]:
    """Public functions of these modules that say that they return `result`."""
    return {
        label
        for name in names
        for label, function in inspect.getmembers(importlib.import_module(name), inspect.isfunction)
        if function.__module__ == name and not label.startswith("_")
        if inspect.signature(function).return_annotation == result
    }
