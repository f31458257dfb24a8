"""The client's wheel alone: a handful of dependencies, no farm, any Python from 3.9, also where nothing is POSIX."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.agents.live_farm import LiveFarm, live_farm
from tests.architecture.sources import ROOT
from tests.sample import sample
from tests.thorough.release.installed import Installed, Release, names_in

pytestmark = pytest.mark.xdist_group("release")
POSIX = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty", "torch", "pandas", "matplotlib")
"""What a user's machine need not have: modules of POSIX, and large packages."""
WALK = f"""
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys({POSIX!r}))
import pockfarm
failed = {{}}
names = [one.name for one in pkgutil.walk_packages(pockfarm.__path__, "pockfarm.")]
for name in names:
    try:
        importlib.import_module(name)
    except Exception as problem:
        failed[name] = str(problem)
foreign = sorted({{name.partition(".")[0] for name in sys.modules}} & {{"service", "workers", "migrations", "tvm"}})
print(json.dumps([len(names), failed, foreign]))
"""


def client_modules(release: Release) -> list[str]:
    return sorted(name for name in names_in(release.client) if name.endswith(".py"))


def test_no_file_is_in_both_wheels(release: Release) -> None:
    assert names_in(release.client) & names_in(release.wheel) == set()
    assert {name.partition("/")[0] for name in names_in(release.client)} == {
        "compiler",
        "device_agents",
        "pockfarm",
        next(member for member in names_in(release.client) if ".dist-info/" in member).partition("/")[0],
    }
    assert not [name for name in names_in(release.wheel) if name.startswith("pockfarm/")]


def about(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode()).get_all("Requires-Dist") or []


def test_it_depends_on_a_handful_and_the_farm_on_it(release: Release) -> None:
    needs = {line.partition(">")[0].partition("<")[0] for line in about(release.client)}
    assert needs == {"argcomplete", "httpx", "numpy", "onnx", "pyyaml", "rich"}
    version = release.client.name.split("-")[1]
    assert f"pockfarm-client=={version}" in about(release.wheel)


def test_every_module_is_loaded_without_posix_and_without_the_farm(client_alone: Installed) -> None:
    count, failed, foreign = json.loads(client_alone.run("python", "-c", WALK))
    assert count > 100
    assert {name for name in failed if "fine_tuning.torch_" not in name} == {"pockfarm.local.toolchain"}, failed
    assert foreign == []


def test_it_says_what_it_is_and_what_it_lacks(client_alone: Installed, release: Release) -> None:
    version = release.client.name.split("-")[1]
    assert client_alone.run("pockfarm", "--version") == f"pockfarm {version}\n"
    code = """
import numpy, onnx, pockfarm, pockfarm.errors
from onnx import TensorProto, helper
node = helper.make_node("MatMul", ["x", "w"], ["logits"])
w = onnx.numpy_helper.from_array(numpy.ones((2, 2), "float32"), "w")
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "logits"))
model = helper.make_model(helper.make_graph([node], "net", [x], [y], [w]))
try:
    pockfarm.fine_tune(model, data=(numpy.ones((4, 2), "float32"), numpy.zeros(4, "int64")), spec="batch: 2")
except pockfarm.errors.UsageError as problem:
    print(problem)
"""
    said = client_alone.run("python", "-c", code)
    assert "client.fine_tune trains on a farm" in said


def test_it_talks_to_a_farm(client_alone: Installed, loopback: None, tmp_path: Path) -> None:
    with live_farm(tmp_path, sweep_s=1.0) as farm:
        key = key_of(farm)
        code = "import pockfarm, sys\nwith pockfarm.Client(*sys.argv[1:]) as one: print(one.organisation()['name'])"
        assert client_alone.run("python", "-c", code, farm.url, key).strip()
        assert "takes the key" in client_alone.run("pockfarm", "init", "--url", farm.url, "--key", key)


def key_of(farm: LiveFarm) -> str:
    return farm.http.headers["Authorization"].removeprefix("Bearer ")


def test_nothing_in_it_needs_more_than_python_3_9(client_alone: Installed, release: Release) -> None:
    """What vermin cannot see is when `X | Y` of types is computed: not in annotations, which are never evaluated."""
    files = [str(client_alone.site / name) for name in client_modules(release)]
    command = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "--no-tips",
        "--no-parse-comments",
        "--violations",
        "-t=3.9-",
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = [f"{name}: {line}" for name in client_modules(release) for line in unions(client_alone.site / name)]
    assert found == []


def unions(path: Path) -> list[str]:
    """`X | Y` of types outside annotations."""
    tree = ast.parse(path.read_text())
    said = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    annotations = {id(inner) for one in said if isinstance(one, ast.AST) for inner in ast.walk(one)}
    both = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    types = {"bool", "bytes", "float", "int", "list", "str", "tuple", "None", "memoryview"}
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in both
        if id(node) not in annotations and {ast.unparse(node.left), ast.unparse(node.right)} & types
    ]


def test_the_rule_finds_what_python_3_9_cannot_compute(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "A = int | None\ndef f(x: int | str) -> bytes | None:\n    return isinstance(x, str | bytes)\nB = 1 | 2\n"
    )
    assert [line.partition(":")[0] for line in unions(path)] == ["1", "3"]


def test_an_index_that_does_not_answer_at_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    platforms = importlib.import_module("client_platforms")
    monkeypatch.setattr(platforms, "SYSTEMS", {"win32": ("win_amd64",)})
    monkeypatch.setattr(platforms, "PYTHONS", ("3.9", "3.10"))
    none = "ERROR: Could not find a version that satisfies the requirement rich (from versions: none)"
    answers = iter([none, "Would install rich-15.0.0", none, none, none])
    monkeypatch.setattr(platforms, "asked", lambda *_: next(answers))
    assert list(platforms.missing_packages()) == [f"win32, Python 3.10: {none}"]


@pytest.mark.parametrize("system", sample(["win32", "darwin", "linux"], ("win32",)))
def test_types_hold_on_windows_macos_and_linux(system: str) -> None:
    """The one least like ours; `make client-platforms` checks all three, as does `make test-all`."""
    command = [sys.executable, str(ROOT / "scripts" / "client_platforms.py"), f"types-{system}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("types:") == 1
