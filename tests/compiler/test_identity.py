"""Each thing that decides a build's bytes, beside what is asked for, changes the one identity of the compiler."""

from __future__ import annotations

import importlib.metadata
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler import identity
from compiler.codegen.api import cache_key
from compiler.identity import KERNEL_ROOMS, KERNEL_TOOLS, LINKER, NO_KERNELS, ROOT, compiler_identity, kernel_identity
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MapSpec
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.base.settings import Settings
from tests.architecture.sources import imports
from tests.compiler.codegen.reference import identity as whole

TOOLS = (*KERNEL_TOOLS, LINKER)
SPEC = MapSpec((8,), (whole(8),), (whole(8),), (Binary("mul", Ref(0), Ref(0)),))
INSTALLED = {tool: importlib.metadata.version(tool) for tool in TOOLS}


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    compiler_identity.cache_clear()
    kernel_identity.cache_clear()


def upgrade(monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    newer = {**INSTALLED, tool: "99.0"}
    monkeypatch.setattr(importlib.metadata, "version", newer.__getitem__)
    forget()


def request_digest() -> str:
    """Of a request for a compile, as the service makes it."""
    version = compiler_version(Settings(compiler_version=""))
    return CompileRequest(
        "sha256:" + "0" * 64, 1, "m", SparsePlan.of_preset("full"), TrainingSpec(), "t", version
    ).digest


@pytest.mark.parametrize("tool", TOOLS)
def test_an_upgraded_tool_is_another_compiler_to_all_who_ask(monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    whole_compiler, request = compiler_identity(), request_digest()
    kernels, key = kernel_identity(), cache_key(SPEC, load("x86-64-v3"), 1)
    upgrade(monkeypatch, tool)
    assert compiler_identity() != whole_compiler
    assert request_digest() != request
    changes_kernels = tool in KERNEL_TOOLS
    assert (kernel_identity() != kernels) == changes_kernels
    assert (cache_key(SPEC, load("x86-64-v3"), 1) != key) == changes_kernels


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of our sources."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("sources") / "compiler"))


@pytest.mark.parametrize(
    ("path", "is_in_kernels"),
    [
        ("frontend/importer.py", False),
        ("targets/x86-64-v3.toml", False),
        ("runtime/session.c", False),
        ("runtime/image.h", False),
        ("codegen/linking/link.py", False),
        ("codegen/family.py", True),
        ("codegen/symbols.py", True),
        ("codegen/tir/tir.py", True),
        ("kernels/spec.py", True),
        ("program/operands.py", True),
    ],
)
def test_every_source_counts_and_a_kernel_s_own_room_by_room(
    monkeypatch: pytest.MonkeyPatch, tree: Path, path: str, is_in_kernels: bool
) -> None:
    monkeypatch.setattr(identity, "ROOT", tree)
    before = compiler_identity(), kernel_identity()
    with (tree / path).open("a") as file:
        file.write("\n")
    forget()
    assert compiler_identity() != before[0]
    assert (kernel_identity() != before[1]) == is_in_kernels


def test_a_new_file_of_a_room_counts(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.setattr(identity, "ROOT", tree)
    before = kernel_identity()
    (tree / "codegen" / "conv" / "api.py").write_text("")
    forget()
    assert kernel_identity() != before


def test_what_makes_kernels_reads_no_source_that_does_not_count() -> None:
    """Else an edit there would leave old objects in the cache. `cache_key` itself holds a target's figures."""
    files = [path.relative_to(ROOT.parent) for path in identity.sources(ROOT, KERNEL_ROOMS, NO_KERNELS)]
    counted = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    elsewhere = {"compiler.errors", "compiler.identity", "compiler.targets", "compiler.targets.cpu"}
    emitters = (path for path in files if path.suffix == ".py" and path.name != "testing.py")
    read = {module for path in emitters for module in imports(path)}
    ours = {module for module in read if (ROOT.parent / (module.replace(".", "/") + ".py")).exists()}
    ours = {module for module in ours if module.startswith("compiler.")}
    # `check_operands` looks at programs; a graph names values, holds warnings and says where tensors came from; where
    # the cache lies is not what lies in it: no kernel reads any of it.
    others = {
        "compiler.cache_folder",
        "compiler.program.state",
        "compiler.program.program",
        "compiler.values",
        "compiler.warnings",
        "compiler.origins",
    }
    assert ours - counted - elsewhere <= others


def test_where_a_tool_is_not_installed_its_pin_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's image has neither TVM nor the linker, and yet names the compiler as the worker does."""

    def missing(tool: str) -> str:
        raise importlib.metadata.PackageNotFoundError(tool)

    before = compiler_identity()
    pins = [f'{tool}=={version}; extra == "worker"' for tool, version in INSTALLED.items()]
    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: pins)
    forget()
    assert compiler_identity() == before


def test_our_package_pins_every_tool() -> None:
    extras = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {text.partition(";")[0] for extra in ("worker", "cuda") for text in extras[extra]}
    assert {f"{tool}=={version}" for tool, version in INSTALLED.items()} <= pinned
