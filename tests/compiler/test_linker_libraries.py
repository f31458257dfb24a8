"""The linker's C libraries: each is built once, by one process, and whoever waits for it is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compiler import targets
from compiler.codegen.linking import toolchain
from compiler.codegen.linking.shared import warm_everything
from compiler.codegen.linking.toolchain import ensure_library

TRIPLE = "aarch64-linux-musl"


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The triples whose library was built, in an empty cache."""
    triples: list[str] = []
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig"))
    monkeypatch.setattr(toolchain, "_build_library", triples.append)
    return triples


def test_a_library_is_built_once_and_said_once(builds: list[str]) -> None:
    messages: list[str] = []
    for _ in range(2):
        ensure_library(TRIPLE, messages.append)
    assert builds == [TRIPLE]
    assert messages == [f"waiting for the linker's C library for {TRIPLE}, which is built once"]


def test_whoever_comes_second_waits_for_the_first(builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so again and again: a compile that says nothing and uses no processor is taken to hang."""
    monkeypatch.setattr(toolchain, "ASK_AGAIN_S", 0.01)
    has_begun, may_end, says_it_waits = threading.Event(), threading.Event(), threading.Event()
    messages: list[str] = []

    def hear(message: str) -> None:
        messages.append(message)
        if len(messages) == 3:
            says_it_waits.set()

    def build(triple: str) -> None:
        has_begun.set()
        assert may_end.wait(60)
        builds.append(triple)

    monkeypatch.setattr(toolchain, "_build_library", build)
    first = threading.Thread(target=ensure_library, args=(TRIPLE,))
    second = threading.Thread(target=ensure_library, args=(TRIPLE, hear))
    first.start()
    assert has_begun.wait(60)
    second.start()
    assert says_it_waits.wait(60)
    may_end.set()
    first.join(60)
    second.join(60)
    assert builds == [TRIPLE]


def test_a_build_that_fails_is_tried_again(builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(triple: str) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "_build_library", fail)
        with pytest.raises(OSError, match="no space left"):
            ensure_library(TRIPLE)
    ensure_library(TRIPLE)
    assert builds == [TRIPLE]


def test_set_up_builds_the_library_of_every_target(builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.codegen.linking.shared.runtime_objects", lambda triple, kind: ())
    monkeypatch.setattr("compiler.codegen.linking.shared.library_objects", lambda triple, kind: ())
    triples = list(warm_everything())
    assert triples == builds
    known = [targets.load(name) for name in targets.names()]
    assert set(builds) == {triple for target in known for triple in (target.zig_triple, target.library_triple)}
    assert builds[0].endswith("musl"), "what most compiles need comes first"
