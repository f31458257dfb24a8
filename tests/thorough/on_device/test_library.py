"""The bundle's shared library as C sees it: header, example, names, and what it asks of a system."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from compiler.bundle.archive import EXAMPLE, HEADER, LIBRARY, STEP, WEIGHTS, Bundle
from compiler.cache_folder import LINKER, cache_folder
from compiler.codegen.linking.shared import LIBRARY_ABI
from compiler.spec.documents import TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import native_target
from tests.compiler.step_process import AARCH64_GLIBC, QEMU
from tests.thorough.on_device.trained import IMAGES, STEPS, assert_learned, assert_losses
from tests.unpacked import unpacked

pytestmark = pytest.mark.xdist_group("on-device")

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def zig_cc(folder: Path, *arguments: object) -> None:
    """The compiler that links bundles, in `folder`."""
    run(
        "env",
        f"ZIG_GLOBAL_CACHE_DIR={cache_folder() / LINKER}",
        f"ZIG_LOCAL_CACHE_DIR={folder / '.zig'}",
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        *arguments,
        cwd=folder,
    )


def train(folder: Path, program: Sequence[object]) -> tuple[list[float], Path]:
    """Losses that the bundle's example prints, and the checkpoint that it leaves."""
    IMAGES.x.tofile(folder / "input.raw")
    IMAGES.y.tofile(folder / "labels.raw")
    said = run(*program, WEIGHTS, "trained.safetensors", STEPS, "input.raw", "labels.raw", cwd=folder)
    return [float(line) for line in said.split()], folder / "trained.safetensors"


def assert_as_pytorch(losses: list[float], checkpoint: Path) -> None:
    exact_losses, exact, _ = IMAGES.trained()
    kept = load_file(checkpoint)
    assert_losses(losses, exact_losses)
    assert_learned({name: array for name, array in kept.items() if not name.startswith("optimizer.")}, exact)


def test_the_example_trains_as_pytorch_does(folder: Path) -> None:
    run(
        "gcc",
        "-std=c11",
        "-O2",
        *WARNINGS,
        "-I",
        "include",
        EXAMPLE,
        "-L",
        "lib",
        "-lpockfarm_step",
        f"-Wl,-rpath,{folder / 'lib'}",
        "-o",
        "train",
        cwd=folder,
    )
    assert_as_pytorch(*train(folder, ["./train"]))


def test_the_example_trains_on_an_emulated_board(kernel_cache: Path, tmp_path: Path) -> None:
    """Emulated: AArch64 code under qemu, with the C library of a board's system."""
    folder = unpacked(IMAGES.compile("aarch64", kernel_cache).data, tmp_path)
    zig_cc(
        folder,
        "-target",
        load("aarch64").library_triple,
        "-O2",
        *WARNINGS,
        "-I",
        "include",
        EXAMPLE,
        "-L",
        "lib",
        "-lpockfarm_step",
        "-Wl,-rpath,$ORIGIN/lib",
        "-o",
        "train",
    )
    assert_as_pytorch(*train(folder, [*QEMU, "-L", AARCH64_GLIBC, "./train"]))


def test_without_files_the_example_says_what_it_needs(folder: Path) -> None:
    run(
        "gcc",
        "-I",
        "include",
        EXAMPLE,
        "-L",
        "lib",
        "-lpockfarm_step",
        f"-Wl,-rpath,{folder / 'lib'}",
        "-o",
        "ask",
        cwd=folder,
    )
    done = subprocess.run([folder / "ask"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "input: float32 [8, 3, 8, 8]" in done.stderr
    assert "labels: int64 [8]" in done.stderr


@pytest.mark.parametrize(("language", "standard"), [("c", "-std=c99"), ("c++", "-std=c++11")])
def test_the_header_is_plain_c_and_c_plus_plus(language: str, standard: str, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "only.c"
    source.write_text('#include "pockfarm.h"\nint main(void) { return POCKFARM_ABI_VERSION - 1; }\n')
    include = folder / "include"
    zig_cc(tmp_path, "-x", language, standard, *WARNINGS, "-I", include, "-c", source, "-o", tmp_path / "only.o")


def dynamic_names(folder: Path) -> tuple[set[str], set[str]]:
    """What the library offers, and what it takes from the system (with versions)."""
    rows = [line.split() for line in run("nm", "-D", LIBRARY, cwd=folder).splitlines()]
    return {row[-1] for row in rows if row[-2] != "U"}, {row[-1] for row in rows if row[-2] == "U"}


def test_it_offers_what_the_header_names_and_nothing_else(folder: Path) -> None:
    declared = set(re.findall(r"POCKFARM_API [^;(]*?(pockfarm_\w+)\(", (folder / HEADER).read_text()))
    assert len(declared) > 15
    assert dynamic_names(folder)[0] == declared


def test_it_cannot_end_the_process_or_write_to_the_terminal(folder: Path) -> None:
    taken = {name.partition("@")[0] for name in dynamic_names(folder)[1]}
    ends = {"exit", "_exit", "_Exit", "quick_exit", "abort", "__assert_fail", "raise", "kill", "signal", "sigaction"}
    prints = {"printf", "fprintf", "puts", "putchar", "fputs", "vfprintf", "perror", "stdout", "stderr"}
    assert taken & (ends | prints) == set()


def test_it_asks_for_no_newer_system_than_it_says(folder: Path) -> None:
    versions = re.findall(r"@GLIBC_([0-9.]+)", " ".join(dynamic_names(folder)[1]))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert versions
    assert manifest["library"] == {"abi": LIBRARY_ABI, "glibc": "2.31"}
    assert max(tuple(map(int, one.split("."))) for one in versions) <= (2, 31)


def test_the_number_of_the_abi_is_that_of_the_header(folder: Path) -> None:
    from pockfarm.ondevice.native import ABI

    (number,) = re.findall(r"#define POCKFARM_ABI_VERSION (\d+)", (folder / HEADER).read_text())
    assert int(number) == LIBRARY_ABI == ABI


def test_the_executable_is_the_same_with_and_without_a_library(
    kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what it says of itself: the digest of the spec that asked for a library is made the same here."""
    monkeypatch.setattr(TrainingSpec, "digest", property(lambda self: f"sha256:{0:064d}"))
    with_library, plain = (IMAGES.compile(native_target(), kernel_cache, library=on) for on in (True, False))
    assert {LIBRARY, HEADER, EXAMPLE} == set(with_library.members) - set(plain.members)
    assert "library" not in plain.manifest
    assert with_library.members[STEP] == plain.members[STEP]


def test_a_second_build_gives_the_same_library(built: Bundle, kernel_cache: Path) -> None:
    assert IMAGES.compile(native_target(), kernel_cache).digest == built.digest
