"""The library's own code under the sanitizers: right use, wrong use, and two threads at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.shared import LIBRARY, SHARED_SOURCES
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.toolchain import RUNTIME, device_sources
from compiler.kernels.spec import signature
from tests.compiler import tiny_images
from tests.compiler.step_process import classifier_state, write_weights
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, ROWS, SPECS, WORKSPACE_BYTES

pytestmark = pytest.mark.xdist_group("on-device")

APP = Path(__file__).with_name("sanitized.c")
SIZES = {"BATCH": BATCH, "FEATURES": FEATURES, "CLASSES": CLASSES, "ROWS": ROWS, "TURNS": 1, "SPIN_US": 1}
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)


BROKEN = {
    "memory": (
        MEMORY,
        '"x", unaligned(x, sizeof x, x_room), sizeof x}',
        '"x", malloc(1), sizeof x}',
        "buffer-overflow",
    ),
    "threads": (THREADS, "work *own = argument;", "work *own = argument; static int n; n++;", "data race"),
}
"""Flags, and a mistake that they must find: a size that is not the buffer's; one number that two threads write."""


def compile_library(folder: Path, compiler: list[str]) -> None:
    """Objects of the library's sources, and of a small model's tables and kernels written by hand."""
    image = tiny_images.classifier()
    used = {call.spec for program in image.programs.values() for call in program.calls}
    names = [name for name, spec in SPECS.items() if spec in used]
    kernels = {
        signature(SPECS[name]): CompiledKernel.called(f"tiny_{name}", b"", WORKSPACE_BYTES.get(name, 0))
        for name in names
    }
    (folder / "tables.c").write_text(table_source(image, kernels))
    for name in names:
        sizes = [f"-D{key}={value}" for key, value in SIZES.items()]
        command = [*compiler, *sizes, f"-DKERNEL_{name}", "-c", str(tiny_images.SOURCE), "-o", f"kernel_{name}.o"]
        subprocess.run(command, cwd=folder, check=True)
    sources = [str(RUNTIME / f"{stem}.c") for stem in SHARED_SOURCES]
    sources += map(str, (*device_sources("cpu"), *LIBRARY.glob("*.c")))
    subprocess.run([*compiler, "-c", "tables.c", *sources], cwd=folder, check=True)


def run_app(folder: Path, compiler: list[str], source: str) -> tuple[int, str, str]:
    """Exit code, output and errors, without the shuffling of addresses that older thread sanitizers cannot map."""
    (folder / "app.c").write_text(source)
    objects = sorted(path.name for path in folder.glob("*.o"))
    subprocess.run([*compiler, "app.c", *objects, "-lm", "-lpthread", "-o", "app"], cwd=folder, check=True)
    words = ["setarch", "-R", str(folder / "app"), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", BROKEN)
def test_the_sanitizers_find_mistakes_and_nothing_else(name: str, tmp_path: Path) -> None:
    flags, right, wrong, words = BROKEN[name]
    source = APP.read_text()
    assert source.count(right) == 1
    write_weights(tmp_path / "weights.safetensors", classifier_state())
    compiler = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", *flags, "-I", str(RUNTIME), "-I", str(LIBRARY)]
    compile_library(tmp_path, compiler)
    assert run_app(tmp_path, compiler, source) == (0, "", "")
    code, _, errors = run_app(tmp_path, compiler, source.replace(right, wrong))
    assert code != 0
    assert words in errors
