"""Schedule choices: their stable text, and how a family that offers several is reached."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen import family
from compiler.codegen.api import build_variants, cache_key, workspace_bytes
from compiler.codegen.choice import DEFAULT, Choice, Variant, choose, parse_choice
from compiler.codegen.map import emit as map_kernels
from compiler.codegen.symbols import symbol_of
from compiler.errors import InternalError
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import KernelSpec, MapSpec
from compiler.targets import CpuTarget, load_cpu
from tests.compiler.codegen.reference import identity
from tests.kernel_harness.launch import Kernel, build_in_process

TARGET = load_cpu("x86-64-v3")
SPEC = MapSpec((100,), (identity(100),), (identity(100),), (Binary("mul", Ref(0), Ref(0)),))
values = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.sampled_from(["split", "rows", "8x3", "a.b,c-d"]))
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(names, values, max_size=5))
def test_the_text_of_a_choice_names_it(parameters: dict[str, int | str | bool]) -> None:
    choice = choose(**parameters)
    assert parse_choice(choice.text) == choice
    assert choose(**dict(reversed(parameters.items()))) == choice
    assert all(type(dict(choice.parameters)[name]) is type(value) for name, value in parameters.items())


@pytest.mark.parametrize("text", ["b=1 a=2", "a=1 a=2", "a", "a=", "A=1", "a=01", "a= b", "a=1  b=2", "a=\n", "a=Yes"])
def test_no_choice_has_this_text(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_choice(text)


def test_parameters_are_read_by_type() -> None:
    choice = choose(rows=6, split="batch", packed=True)
    assert choice.text == "packed=yes rows=6 split=batch"
    assert (choice.integer("rows", 1), choice.word("split", "none"), choice.flag("packed", False)) == (6, "batch", True)
    assert (choice.integer("columns", 4), DEFAULT.word("split", "none"), DEFAULT.flag("packed", False)) == (
        4,
        "none",
        False,
    )
    with pytest.raises(ValueError, match="'packed' is True, not a whole number"):
        choice.integer("packed", 1)
    with pytest.raises(ValueError, match="not writable"):
        choose(split="yes")


def test_each_choice_is_a_kernel_of_its_own() -> None:
    choices = [DEFAULT, choose(rows=1), choose(rows=2), choose(rows=True)]
    assert len({symbol_of(SPEC, choice) for choice in choices}) == 4
    assert len({cache_key(SPEC, TARGET, 1, choice) for choice in choices}) == 4
    assert symbol_of(SPEC, DEFAULT) == symbol_of(SPEC)


@pytest.fixture
def two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps become a family with two schedules; the second asks for scratch that it does not use."""
    module = ModuleType("compiler.codegen.two_ways")

    def choices(spec: KernelSpec, target: CpuTarget, threads: int) -> tuple[Choice, ...]:
        return (choose(scratch=0), choose(scratch=64), choose(scratch=64))

    def scratch_bytes(spec: KernelSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> int:
        return (choice or DEFAULT).integer("scratch", 0)

    def emit(spec: MapSpec, target: CpuTarget, threads: int, choice: Choice | None = None) -> object:
        return map_kernels.emit(spec, target, 1 if choice else threads)

    for name, function in (("choices", choices), ("workspace_bytes", scratch_bytes), ("emit", emit)):
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    table = {**family.VECTORS, MapSpec: family.Family(module, module.__name__)}
    monkeypatch.setattr(family, "FAMILIES", {"cpu": table})


@pytest.mark.usefixtures("two_ways")
def test_a_family_that_offers_choices_gets_them() -> None:
    offered = family.choices_of(SPEC, TARGET, 2)
    assert offered == (DEFAULT, choose(scratch=64))
    assert [workspace_bytes(SPEC, TARGET, 2, choice) for choice in offered] == [0, 64]
    kernel = Kernel(SPEC, TARGET, 2, offered[1], build=build_in_process)
    assert kernel.workspace_bytes == 64
    x = np.arange(100, dtype=np.float32)
    storages = kernel.storages()
    storages[0].view(kernel.types.inputs[0])[...] = x
    kernel.call(storages)
    np.testing.assert_array_equal(storages[1].view(kernel.types.outputs[0]), x * x)


def test_a_family_with_one_schedule_refuses_others() -> None:
    assert family.choices_of(SPEC, TARGET, 2) == (DEFAULT,)
    with pytest.raises(InternalError, match=r"MapSpec .* one way"):
        workspace_bytes(SPEC, TARGET, 2, choose(rows=1))


def test_variants_are_built_once_and_found_by_what_was_asked(tmp_path: Path) -> None:
    wanted = (Variant(SPEC), Variant(SPEC, DEFAULT))
    built = build_variants(wanted, TARGET, threads=1, cache_dir=tmp_path)
    assert {kernel.symbol for kernel in built.values()} == {symbol_of(SPEC)}
    assert build_variants(wanted, TARGET, threads=1, cache_dir=tmp_path) == built
    assert len(list(tmp_path.rglob("*.kernel"))) == 1
