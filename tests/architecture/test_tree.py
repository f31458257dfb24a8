"""Rules about the files themselves: length, names, words, hosts, and lists that must be complete."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from compiler import targets
from tests.architecture.sources import ROOT, python_files, tracked_files

MAX_LINES = 600
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
BINARY = {".png", ".onnx", ".npz", ".npy"}
CODE = {".py", ".c", ".h", ".js", ".html", ".css"}

UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|raise NotImplemented" + r"Error")
LEFT_OUT = re.compile(r"pytest\.(mark\.)?xf" + r"ail|unittest\.sk" + r"ip|importor" + r"skip")
"""Ways to leave a test out for which `tests/skips.py` has no reason to show."""
SHORTEST_S = 0.001
"""Lets other threads run."""
SKIPS = ("skip", "mark.skip", "mark.skipif")
REGISTRY_HOSTS = re.compile(
    r"pypi\.or" + r"g|pythonhosted\.or" + r"g|registry\.npmj" + r"s|docker\.i" + r"o|ghcr\.i" + r"o|quay\.i" + r"o"
    r"|download\.pytorch\.or" + r"g|conda\.anaconda\.or" + r"g"
)


def code_files() -> list[Path]:
    return [path for path in tracked_files() if path.suffix in CODE]


def offenders(paths: Iterable[Path], wrong: Callable[[str], object]) -> dict[str, object]:
    """What `wrong` finds in the text of each file, by file; empty when all is well."""
    found = {path.as_posix(): wrong((ROOT / path).read_text(errors="replace")) for path in paths}
    return {path: value for path, value in found.items() if value}


def test_a_file_is_short_enough_to_read() -> None:
    lengths = {path.as_posix(): (ROOT / path).read_text().count("\n") for path in code_files()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_a_module_is_named_after_the_thing_or_the_act() -> None:
    assert [path for path in python_files() if path.stem in VAGUE_NAMES] == []


def test_nothing_is_left_unfinished() -> None:
    assert offenders(code_files(), UNFINISHED.findall) == {}
    assert offenders(code_files(), LEFT_OUT.findall) == {}


def test_a_test_that_shows_nothing_says_so() -> None:
    """With a reason, and not by a guard that returns."""
    assert offenders(python_files("tests"), silent) == {}


def silent(text: str) -> list[str]:
    """Calls that leave a test out without a reason, and guards in tests that do it without a word, by their lines."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("pytest.") in SKIPS:
            is_plain = ast.unparse(node.func) == "pytest.skip" and node.args
            if not is_plain and "reason" not in {keyword.arg for keyword in node.keywords}:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            guards = [one for one in node.body if isinstance(one, ast.If) and isinstance(one.body[0], ast.Return)]
            found += [f"{one.lineno}: {node.name}" for one in guards]
    return found


def test_no_test_waits_for_a_clock() -> None:
    """What comes about is waited for by `tests/waiting.py`; where time is the subject, it is the test's own."""
    tests = [path for path in python_files("tests") if path.name.startswith("test_")]
    assert offenders(tests, sleeps) == {}


def sleeps(text: str) -> list[str]:
    """Calls that wait for a fixed time, but for the shortest."""
    if "sleep" not in text and "Timer" not in text:
        return []  # it need not be parsed
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in calls
        if ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "anyio.sleep", "threading.Timer")
        and not (isinstance(node.args[0], ast.Constant) and float(ast.unparse(node.args[0])) <= SHORTEST_S)
    ]


def test_what_is_silent_is_noticed() -> None:
    assert silent("def test_a() -> None:\n    if not there:\n        return\n    assert 1")
    assert silent("def test_a() -> None:\n    pytest.skip()")
    assert silent("@pytest.mark.skipif(True)\ndef test_a() -> None: ...")
    assert not silent("@pytest.mark.skipif(True, reason='x')\ndef test_a() -> None:\n    pytest.skip('none')")


def test_no_file_names_a_package_registry() -> None:
    texts = [path for path in tracked_files() if path.suffix not in BINARY]
    assert offenders(texts, REGISTRY_HOSTS.findall) == {}


@pytest.mark.parametrize("name", targets.names())
def test_every_target_is_described_completely(name: str) -> None:
    target = targets.load(name)
    table = tomllib.loads((targets.FOLDER / f"{name}.toml").read_text())
    defaults = {field.name: field.default for field in dataclasses.fields(target) if field.name != "name"}
    needed = {name for name, default in defaults.items() if default is dataclasses.MISSING}
    assert needed <= set(table) <= set(defaults)
    assert target.sources, "each figure has its source"
    assert target.architecture in {"x86_64", "aarch64"}
    assert target.zig_triple.startswith(target.architecture)
    for field in dataclasses.fields(target):
        value = getattr(target, field.name)
        if isinstance(value, int):
            assert value > 0, field.name


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    entries = sorted(path.name for path in folder.glob("0*.md"))
    assert entries, "decisions are written down"
    assert [name for name in entries if f"({name})" not in index] == []
    numbers = [int(name[:4]) for name in entries]
    assert len(set(numbers)) == len(numbers), "two decisions have one number"


def test_links_between_documents_lead_somewhere() -> None:
    dead = [
        f"{path}: {link}"
        for path in tracked_files()
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / path).read_text())
        if not re.match(r"[a-z]+:", link) and not ((ROOT / path).parent / link).exists()
    ]
    assert dead == []


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in python_files("tests")}
    assert [folder for folder in sorted(folders) if not (ROOT / folder / "__init__.py").exists()] == []
