"""Caches of compiles have a size: what was used longest ago goes, and no compile breaks by it or reaches beyond it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from compiler.cache_folder import KERNELS, LINKER, RUNTIMES
from compiler.codegen.api import read_entry, write_entry
from compiler.codegen.artefacts import Artefact, CompiledKernel
from service import admin
from service.base.settings import Settings
from service.store.caches import IN_USE, cache_for, cache_of, caches, fit_all, sizes_of
from service.store.database.models import HOME

KIB = 1 << 10


def settings_of(tmp_path: Path, **limits: Any) -> Settings:
    return Settings(state=tmp_path / "state", cache_dir=str(tmp_path / "cache"), **limits)


def kernel(number: int, size_bytes: int = 64 * KIB) -> tuple[str, CompiledKernel]:
    content = Artefact("object", bytes([number]) * size_bytes)
    return f"{number:02x}" * 32, CompiledKernel(f"k{number}", 0, (), (content,))


def fill(folder: Path, *numbers: int) -> None:
    """Kernels, the first one the longest unused."""
    for age, number in enumerate(reversed(numbers)):
        key, compiled = kernel(number)
        write_entry(folder, key, compiled)
        os.utime(folder / KERNELS / key[:2] / f"{key}.kernel", (1000 - age, 1000 - age))


def kernels_in(folder: Path, *numbers: int) -> list[int]:
    return [
        number
        for number in numbers
        if (folder / KERNELS / f"{number:02x}").is_dir() and any((folder / KERNELS / f"{number:02x}").iterdir())
    ]


def use(settings: Settings, organisation_id: str) -> None:
    with cache_for(settings, organisation_id, settings.state / f"spare-{organisation_id}"):
        pass


def test_kernels_that_were_used_longest_ago_go_first(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, cache_bytes_per_organisation=400 * KIB)
    folder = cache_of(settings, "org_a")
    fill(folder, *range(8))
    key, compiled = kernel(0)
    assert read_entry(folder, key, compiled.symbol) == compiled, "a compile reads the oldest: it is the youngest now"
    use(settings, "org_a")
    assert sizes_of([folder])[0] <= 400 * KIB
    stay = kernels_in(folder, *range(8))
    assert 0 in stay
    assert 7 in stay
    assert 1 not in stay
    assert read_entry(folder, kernel(1)[0], "k1") is None, "a compile that misses one builds it again"
    write_entry(folder, *kernel(1))
    assert read_entry(folder, kernel(1)[0], "k1") is not None


def test_what_else_is_there_goes_only_while_nobody_compiles_with_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, cache_bytes_per_organisation=200 * KIB)
    folder = cache_of(settings, "org_a")
    deep = folder / LINKER / "/".join("deep" for _ in range(200))
    with cache_for(settings, "org_a", tmp_path / "first") as first:
        assert first == folder
        deep.mkdir(parents=True)
        (deep / "left by a hostile compile").write_bytes(bytes(500 * KIB))
        (folder / RUNTIMES).mkdir()
        with cache_for(settings, "org_a", tmp_path / "second") as second:
            assert second == tmp_path / "second", "it works without the cache until the first has ended"
            assert (deep / "left by a hostile compile").exists()
    assert sizes_of([folder]) == [0]
    with cache_for(settings, "org_a", tmp_path / "third") as third:
        assert third == folder


def test_no_link_leads_out_of_a_cache(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, cache_bytes_per_organisation=100 * KIB)
    folder, others = cache_of(settings, "org_a"), cache_of(settings, "org_b")
    fill(others, 1, 2)
    fill(folder, 1, 2)
    (folder / KERNELS / "ff").symlink_to(others / KERNELS / "01", target_is_directory=True)
    (folder / KERNELS / "ee").mkdir()
    (folder / KERNELS / "ee" / "link.kernel").symlink_to(others / KERNELS / "02")
    (folder / LINKER).symlink_to(others, target_is_directory=True)
    use(settings, "org_a")
    assert kernels_in(others, 1, 2) == [1, 2]


def test_when_all_take_too_much_whole_caches_go_the_longest_unused_first(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, cache_bytes=500 * KIB)
    for age, whose in enumerate(("org_a", HOME, "org_b")):
        fill(cache_of(settings, whose), 1, 2, 3)
        mark = cache_of(settings, whose) / IN_USE
        mark.touch()
        os.utime(mark, (age, age))
    with cache_for(settings, "org_a", tmp_path / "spare"):
        fit_all(settings)
        assert [cache.size_bytes > 0 for cache in caches(settings)] == [True, False, True], "the first is in use"
    assert sum(cache.size_bytes for cache in caches(settings)) <= 500 * KIB


def test_an_operator_sees_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(tmp_path)
    fill(cache_of(settings, "org_a"), 1)
    use(settings, "org_a")
    monkeypatch.setenv("POCKFARM_STATE", str(settings.state))
    monkeypatch.setenv("POCKFARM_CACHE_DIR", settings.cache_dir)
    assert admin.main(["caches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("org_a  ")
    assert "last used 20" in lines[-2]
    assert "POCKFARM_CACHE_BYTES_PER_ORGANISATION" in lines[-1]
