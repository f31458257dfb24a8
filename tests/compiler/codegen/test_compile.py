"""Building kernels: same bytes every time, the cache and its damage, failures that name the kernel, no TVM here."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.codegen.api import build_kernels, cache_key, workspace_bytes
from compiler.codegen.artefacts import Artefact
from compiler.codegen.workers import begun_workers, kept_workers, one_worker
from compiler.errors import BuildError
from compiler.kernels.expressions import Binary, Const, Ref, Unary
from compiler.kernels.spec import GatherSpec, KernelSpec, MapSpec, ReduceSpec, signature
from compiler.targets import load
from tests.compiler.codegen.reference import identity, picked
from tests.kernel_harness.launch import build_in_process
from tests.waiting import until

TARGET = load("x86-64-v3")


def squares(size: int) -> MapSpec:
    return MapSpec((size,), (identity(size),), (identity(size),), (Binary("mul", Ref(0), Ref(0)),))


def column_sums(rows: int, columns: int) -> ReduceSpec:
    extents = (rows, columns)
    return ReduceSpec(extents, (0,), "sum", (identity(*extents),), Ref(0), picked((columns,), 1))


SPECS: list[KernelSpec] = [
    squares(1000),
    squares(1001),
    column_sums(50_000, 8),
    GatherSpec("gather", 1, 50, 32, 7, dtype="f32"),
]


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("a process was started")


@pytest.fixture(autouse=True)
def _processes_of_ones_own() -> Iterator[None]:
    with kept_workers(0):
        yield


def test_same_specs_same_bytes_in_any_number_of_processes() -> None:
    first = build_kernels(SPECS, TARGET, threads=2, cache_dir=None, jobs=1)
    second = build_kernels(list(reversed(SPECS)), TARGET, threads=2, cache_dir=None, jobs=2)
    assert first == second
    assert first[signature(SPECS[0])].artefacts == (
        Artefact("object", build_in_process(SPECS[0], TARGET).object_bytes),
    )
    assert list(first) == [signature(spec) for spec in SPECS]


def test_workers_begun_before_build_and_end_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    with begun_workers(jobs=8) as begun:
        assert len(begun) == 2
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", refuse)
            built = build_kernels(
                SPECS[:2],
                TARGET,
                threads=2,
                cache_dir=None,
                started_workers=begun,
                meanwhile=lambda: called.append("ways"),
            )
    assert built == build_kernels(SPECS[:2], TARGET, threads=2, cache_dir=None, jobs=1)
    assert called == ["ways"]
    assert not any(worker.is_alive for worker in begun)
    with begun_workers(jobs=2) as in_vain:
        assert all(worker.is_alive for worker in in_vain)
    assert not any(worker.is_alive for worker in in_vain)
    with begun_workers(jobs=1) as none:
        assert none == ()


def test_a_worker_is_ready_before_it_is_asked() -> None:
    with one_worker():
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
        until(lambda: "libtvm" in Path(f"/proc/{children[-1]}/maps").read_text())


def test_equal_specs_are_built_once_and_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    specs = [squares(64), squares(64), squares(65)]
    built = build_kernels(
        specs, TARGET, threads=2, cache_dir=None, progress=lambda done, total: seen.append((done, total))
    )
    assert len(built) == 2
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_workspace_is_what_planning_says() -> None:
    built = build_kernels(SPECS, TARGET, threads=2, cache_dir=None)
    for spec in SPECS:
        assert built[signature(spec)].workspace_bytes == workspace_bytes(spec, TARGET, 2)
    assert workspace_bytes(SPECS[2], TARGET, 2) > 0


def test_a_kept_process_goes_on_with_the_next_build() -> None:
    with kept_workers(1):
        with one_worker() as first:
            built = build_kernels(SPECS[:1], TARGET, threads=2, cache_dir=None, jobs=1, started_workers=(first,))
        with begun_workers(jobs=2) as (second, another):
            assert second is first
            assert another is not first
            assert built == build_kernels(
                SPECS[:1], TARGET, threads=2, cache_dir=None, jobs=1, started_workers=(second,)
            )
        assert second.is_alive != another.is_alive
        with one_worker() as ended:
            ended.end()
        with one_worker() as died:
            pass
        assert died.is_alive
        died.end()
        with one_worker() as fresh:
            assert fresh.is_alive
    assert not fresh.is_alive


def test_a_warm_cache_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = build_kernels(SPECS, TARGET, threads=2, cache_dir=tmp_path)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert build_kernels(SPECS, TARGET, threads=2, cache_dir=tmp_path) == cold


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    spec = squares(77)
    built = build_kernels([spec], TARGET, threads=1, cache_dir=tmp_path)
    (path,) = tmp_path.rglob("*.kernel")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes({"truncate": bytes(raw[:-100]), "flip": bytes(raw), "empty": b""}[damage])
    assert build_kernels([spec], TARGET, threads=1, cache_dir=tmp_path) == built
    assert build_kernels([spec], TARGET, threads=1, cache_dir=tmp_path) == built


def test_what_the_key_depends_on() -> None:
    keys = {
        cache_key(squares(5), TARGET, 1),
        cache_key(squares(6), TARGET, 1),
        cache_key(squares(5), TARGET, 2),
        cache_key(squares(5), load("raspberry-pi-4"), 1),
    }
    assert len(keys) == 4


def test_a_kernel_that_cannot_be_built_is_named() -> None:
    broken = MapSpec((8,), (identity(8, dtype="bool"),), (identity(8),), (Unary("exp", Ref(0)),))
    with pytest.raises(
        BuildError, match=rf"kernel pf_{signature(broken)[:16]} \(MapSpec\) for x86-64-v3.*exp of a value"
    ):
        build_kernels([squares(9), broken], TARGET, threads=1, cache_dir=None)


def test_good_kernels_survive_a_bad_neighbour(tmp_path: Path) -> None:
    broken = MapSpec((8,), (), (identity(8),), (Unary("no such function", Const(1.0)),))
    with pytest.raises(BuildError):
        build_kernels([squares(9), broken], TARGET, threads=1, cache_dir=tmp_path, jobs=1)
    assert len(list(tmp_path.rglob("*.kernel"))) == 1


def test_a_worker_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BuildError, match=r"ended early: exit code 1"):
        build_kernels([squares(9)], TARGET, threads=1, cache_dir=None)


def test_the_caller_never_imports_tvm(tmp_path: Path) -> None:
    program = (
        "import sys; from compiler.codegen import api; from compiler.targets import load;"
        "from tests.compiler.codegen.test_compile import SPECS;"
        "api.build_kernels(SPECS[:1], load('x86-64-v3'), threads=2, cache_dir=None);"
        "[api.workspace_bytes(s, load('x86-64-v3'), 2) for s in SPECS];"
        "sys.exit(any(name.partition('.')[0] in ('tvm', 'tvm_ffi') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])


def _build_in_child(connection: object) -> None:
    connection.send(len(build_kernels([squares(12)], TARGET, threads=1, cache_dir=None)))  # type: ignore[attr-defined]


def test_a_daemonic_child_can_build() -> None:
    """Celery's pool processes are daemonic: they may not start `multiprocessing` children."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_build_in_child, args=(there,), daemon=True)
    child.start()
    assert here.poll(60)
    assert here.recv() == 1
    child.join()
