"""Who may import whom, and the one door of each heavy library (the table of `docs/architecture.md`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from tests.architecture.sources import ROOT, imports, python_files

pytestmark = pytest.mark.xdist_group("sources")  # which are parsed once for all of them

PACKAGES = ("compiler", "service", "workers", "device_agents", "pockfarm", "examples", "tests", "benchmarks")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "compiler": (),
    "device_agents": (),
    "service": (
        "compiler.cache_folder",
        "compiler.errors",
        "compiler.external",
        "compiler.identity",
        "compiler.spec",
        "compiler.targets",
        "device_agents.figures",
        "device_agents.wire",
    ),
    "workers": (
        "service",
        "compiler.api",
        "compiler.cache_folder",
        "compiler.errors",
        "compiler.external",
        "compiler.spec",
        "device_agents.wire",
    ),
    "pockfarm": ("device_agents.figures", "device_agents.wire"),
    "migrations": ("service",),
}
"""Beyond itself. `compiler.errors` goes with the parsers that raise it."""

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "pockfarm/local/toolchain.py": (
        "compiler.api",
        "compiler.cache_folder",
        "compiler.errors",
        "compiler.spec",
        "compiler.targets",
        "device_agents",
    ),
    "pockfarm/files/model_files.py": ("compiler.errors", "compiler.external", "compiler.frontend.file.prescan"),
    "pockfarm/fine_tuning/": (
        "compiler.errors",
        "compiler.external",
        "compiler.frontend.file.external_data",
        "compiler.spec",
        "compiler.trained",
        "compiler.warnings",
    ),
}
"""By a file, or a folder of them."""

DOORS: dict[str, tuple[str, ...]] = {
    "tvm": ("compiler/codegen/",),
    "onnx": ("compiler/frontend/", "compiler/export/", "compiler/trained/"),
    "celery": ("workers/", "service/store/queue.py"),
    "fastapi": ("service/",),
    "torch": ("pockfarm/fine_tuning/torch_",),
    "transformers": (),
    "onnxruntime": (),
    "sklearn": (),
}
"""Heavy libraries and the only places of the product that may import them."""

PRODUCT = ("compiler", "service", "workers", "device_agents", "pockfarm", "migrations")


def within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(allowed + ".")


def is_in(path: PurePath, folder: str) -> bool:
    return folder.endswith("/") and path.as_posix().startswith(folder)


def forbidden_imports(path: PurePath, modules: frozenset[str]) -> list[str]:
    """Modules of ours that the file at `path` must not import."""
    own = path.parts[0]
    more = [one for place, one in EXCEPTIONS.items() if path.as_posix() == place or is_in(path, place)]
    allowed = (own, *MAY_IMPORT[own], *(module for modules in more for module in modules))
    ours = [module for module in modules if module.split(".")[0] in PACKAGES]
    # `from compiler import spec` counts as `compiler` and `compiler.spec`: the bare package is fine if a part of it is.
    parents = {module.rsplit(".", 1)[0] for module in ours if any(within(module, one) for one in allowed)}
    return sorted(m for m in ours if m not in parents and not any(within(m, one) for one in allowed))


def wrong_doors(path: PurePath, modules: frozenset[str]) -> list[str]:
    """Heavy libraries that the file at `path` imports although their door is elsewhere."""
    place = path.as_posix()
    return sorted(
        library
        for library, doors in DOORS.items()
        if any(within(module, library) for module in modules) and not place.startswith(doors)
    )


def test_a_file_imports_only_what_its_package_may() -> None:
    found = {path.as_posix(): forbidden_imports(path, imports(path)) for path in python_files(*PRODUCT)}
    assert {path: modules for path, modules in found.items() if modules} == {}


def test_heavy_libraries_stay_behind_their_door() -> None:
    found = {path.as_posix(): wrong_doors(path, imports(path)) for path in python_files(*PRODUCT)}
    assert {path: libraries for path, libraries in found.items() if libraries} == {}


def test_every_package_has_a_rule() -> None:
    found = {path.parts[0] for path in python_files() if len(path.parts) > 1}
    assert found <= set(MAY_IMPORT) | set(PACKAGES) | {"docker", "scripts"}


def test_the_agent_needs_only_the_standard_library_and_cryptography() -> None:
    foreign = {
        module.split(".")[0]
        for path in python_files("device_agents")
        for module in imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names | {"device_agents"}
    }
    assert foreign <= {"cryptography"}


def test_the_wire_types_need_only_the_standard_library() -> None:
    """And what times come to. Also when they are really imported, with no other package installed."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import device_agents.wire; print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", script, str(ROOT)]
    loaded = {*subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()} - {"__main__"}
    ours = {name for name in loaded if name.split(".")[0] == "device_agents"}
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {"device_agents"}
    rooms = ("device_agents.wire", "device_agents.figures")
    assert {name for name in ours if not any(within(name, room) for room in rooms)} == {"device_agents"}


def test_an_api_process_loads_nothing_heavy_that_it_does_not_use() -> None:
    """Alembic (with Pygments, by Mako) is for who migrates, boto3 for farms on S3: 7 and 20 MB of every process."""
    script = "import sys, service.app; print(*sys.modules)"
    words = [sys.executable, "-W", "ignore", "-c", script]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert {"alembic", "pygments", "boto3", "numpy", "onnx", "tvm", "torch"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("compiler/x.py", "import service", ["service"]),
        ("compiler/x.py", "import json\nfrom compiler import graph", []),
        ("service/x.py", "from compiler.spec import SparsePlan", []),
        ("service/x.py", "from compiler import spec", []),
        ("service/x.py", "from compiler import api", ["compiler", "compiler.api"]),
        ("service/x.py", "def f():\n    import workers.app", ["workers.app"]),
        ("service/x.py", "import importlib\nimportlib.import_module('workers')", ["workers"]),
        ("pockfarm/cli.py", "import compiler.api", ["compiler.api"]),
        ("pockfarm/local/toolchain.py", "import compiler.api", []),
        ("pockfarm/client/client.py", "import compiler.trained", ["compiler.trained"]),
        ("pockfarm/fine_tuning/flow.py", "import compiler.trained", []),
        ("workers/x.py", "from compiler.pipeline import f", ["compiler.pipeline", "compiler.pipeline.f"]),
    ],
)
def test_the_rule_itself(path: str, text: str, expected: list[str]) -> None:
    assert forbidden_imports(PurePath(path), imports(Path(path), text)) == expected


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("compiler/pipeline.py", "import tvm", ["tvm"]),
        ("compiler/codegen/tir/tir.py", "from tvm import tirx", []),
        ("service/store/queue.py", "import celery", []),
        ("service/artefacts/jobs/service.py", "from celery import Celery", ["celery"]),
        ("workers/app.py", "import fastapi", ["fastapi"]),
    ],
)
def test_the_doors_themselves(path: str, text: str, expected: list[str]) -> None:
    assert wrong_doors(PurePath(path), imports(Path(path), text)) == expected
