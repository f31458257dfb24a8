"""Linking: same image, same bytes; static, stripped, small; what contradicts itself is refused before that."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler import targets
from compiler.codegen.api import build_kernels
from compiler.codegen.artefacts import Artefact, CompiledKernel
from compiler.codegen.linking.link import LINKERS, link_binary
from compiler.codegen.linking.tables import table_source
from compiler.codegen.linking.toolchain import LINK_FLAGS, RUNTIME, runtime_objects, zig_cc
from compiler.errors import BuildError, CompileError, InternalError, SpecError
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.program.program import BinaryImage, Placement, Program
from compiler.values import Value
from tests.compiler import tiny_images
from tests.compiler.step_process import QEMU, classifier_data, classifier_state, run, write_weights
from tests.compiler.tiny_images import BATCH, CLASSES, FEATURES, value, values

pytestmark = pytest.mark.xdist_group("runtime")

MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF e_machine."""
EMBEDDING = Path(__file__).parent / "embedding.c"


@pytest.fixture(scope="module", params=["x86-64-v3", "raspberry-pi-4"])
def linked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[targets.Target, bytes]:
    target = targets.load(request.param)
    path = tiny_images.build(tiny_images.classifier(), tmp_path_factory.mktemp("linked") / "step", target.name)
    return target, path.read_bytes()


def program_header_types(elf: bytes) -> list[int]:
    (offset,) = struct.unpack_from("<Q", elf, 32)
    entry_bytes, count = struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<I", elf, offset + i * entry_bytes)[0] for i in range(count)]


def test_a_second_link_gives_the_same_bytes(linked: tuple[targets.Target, bytes], tmp_path: Path) -> None:
    target, first = linked
    image = tiny_images.classifier()
    kernels = dict(reversed(tiny_images.kernels(image, target.zig_triple).items()))
    assert link_binary(image, kernels, target, work_dir=tmp_path) == first
    assert list(tmp_path.iterdir()) == [], "intermediate files are removed"


def test_the_executable_is_static_stripped_and_small(linked: tuple[targets.Target, bytes]) -> None:
    target, elf = linked
    loader, dynamic = 3, 2
    assert elf[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", elf, 18)[0] == MACHINES[target.architecture]
    assert not {loader, dynamic} & set(program_header_types(elf))
    assert b".symtab" not in elf
    assert b".debug" not in elf
    assert len(elf) < 168 * 1024, "the runtime and libc; kernels and tables come on top"


def test_our_part_of_the_runtime_is_under_76_kb() -> None:
    code = 0
    for path in runtime_objects("x86_64-linux-musl", "cpu"):
        elf = path.read_bytes()
        (offset,) = struct.unpack_from("<Q", elf, 40)
        entry_bytes, count = struct.unpack_from("<HH", elf, 58)
        for i in range(count):
            _, kind, flags = struct.unpack_from("<IIQ", elf, offset + i * entry_bytes)
            allocated, has_bytes = flags & 2, kind == 1
            if allocated and has_bytes:
                code += struct.unpack_from("<Q", elf, offset + i * entry_bytes + 32)[0]
    assert 0 < code < 76 * 1024


def test_runtime_files_are_short() -> None:
    lengths = {path.name: path.read_text().count("\n") for path in RUNTIME.iterdir() if path.suffix in (".c", ".h")}
    assert {name: lines for name, lines in lengths.items() if lines >= 400} == {}


def test_odd_names_reach_the_binary_unharmed(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ back?\\?/slash\nµ\t日本'
    image = tiny_images.classifier()
    train = image.programs["train"]
    calls = (replace(train.calls[0], layer=odd), *train.calls[1:])
    image = replace(image, programs={**image.programs, "train": replace(train, calls=calls)}, identity={"model": odd})
    info = run(tiny_images.build(image, tmp_path / "step"), "info").one("info")
    assert info["kernels"][0]["name"] == odd
    assert info["identity"] == {"model": odd}


def test_labels_of_flattened_positions_are_read_per_sample(tmp_path: Path) -> None:
    """A model that flattens [batch, positions] before its loss: files still hold samples along the first axis."""
    image = tiny_images.table()
    flat = tiny_images.f32(BATCH * 2, FEATURES)
    types = {**tiny_images.TABLE_TYPES, **dict.fromkeys(values("logits", "labels"), flat)}
    programs = {name: replace(program, types=types) for name, program in image.programs.items()}
    info = run(tiny_images.build(replace(image, programs=programs), tmp_path / "step"), "info").one("info")
    assert info["labels"][0]["shape"] == info["logits"]["shape"] == [BATCH, 2, FEATURES]


@pytest.mark.parametrize("name", ["x86-64-v3", "raspberry-pi-4"])
def test_a_compiled_kernel_runs_in_the_runtime(name: str, tmp_path: Path) -> None:
    """The ABI of real kernels: the classifier's forward call, compiled from its spec instead of written by hand."""
    bias = Access(tiny_images.f32(CLASSES), (Affine(((2, 1),)),))
    spec = MatmulSpec(
        1,
        BATCH,
        CLASSES,
        FEATURES,
        a_batched=False,
        b_batched=False,
        epilogue=Binary("add", Ref(0), Ref(1)),
        epilogue_inputs=(bias,),
        dtype="f32",
    )
    target, image = targets.load(name), tiny_images.classifier()
    forward = image.programs["forward"]
    compiled = replace(forward, calls=(replace(forward.calls[0], spec=spec),))
    image = replace(image, programs={**image.programs, "forward": compiled})
    by_hand = tiny_images.kernels(image, target.zig_triple)
    built = build_kernels([spec], target, threads=2, cache_dir=None, jobs=1)
    step = tmp_path / "step"
    step.write_bytes(link_binary(image, {**by_hand, **built}, target, work_dir=tmp_path))
    step.chmod(0o755)
    weights, data = write_weights(tmp_path / "w", classifier_state()), classifier_data(tmp_path / "data")
    runner = QEMU if target.architecture == "aarch64" else ()
    done = run(step, "infer", "--weights", weights, *data.arguments[:2], "--out", tmp_path / "out.npy", runner=runner)
    state = classifier_state()
    assert done.code == 0, done
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), data.x @ state["w"].T + state["b"], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ contradictions


def with_place(image: BinaryImage, name: str, place: Placement) -> BinaryImage:
    moved = {key: place if key[1] == value(name) else old for key, old in image.plan.placements.items()}
    return replace(image, plan=replace(image.plan, placements=moved))


def without_place(image: BinaryImage, name: str) -> BinaryImage:
    kept = {key: place for key, place in image.plan.placements.items() if key[1] != value(name)}
    return replace(image, plan=replace(image.plan, placements=kept))


def with_types(image: BinaryImage, **types: TensorType) -> BinaryImage:
    def retyped(program: Program) -> Program:
        return replace(program, types={**program.types, **tiny_images.typed(types)})

    return replace(image, programs={name: retyped(program) for name, program in image.programs.items()})


def with_state(image: BinaryImage, **changes: object) -> BinaryImage:
    return replace(image, state=(replace(image.state[0], **changes), *image.state[1:]))  # type: ignore[arg-type]


CONTRADICTIONS: dict[str, tuple[Callable[[BinaryImage], BinaryImage], type[CompileError], str]] = {
    "place past its region": (
        lambda i: with_place(i, "d_w", Placement("arena", i.plan.arena_bytes - 64, 128)),
        InternalError,
        "not inside",
    ),
    "place not aligned": (lambda i: with_place(i, "d_w", Placement("arena", 4, 128)), InternalError, "not inside"),
    "place too small": (lambda i: with_place(i, "d_w", Placement("arena", 0, 64)), InternalError, "too small"),
    "no place": (lambda i: without_place(i, "d_w"), InternalError, "no place for '%9'"),
    "no place for state": (lambda i: without_place(i, "spare"), InternalError, "0 places"),
    "no workspace": (lambda i: replace(i, plan=replace(i.plan, workspaces={})), InternalError, "no workspace of 72"),
    "wrong perm": (lambda i: with_state(i, perm=(0, 1)), InternalError, "perm"),
    "wrong file shape": (lambda i: with_state(i, file_shape=(1, 2)), InternalError, "file shape"),
    "labels of another type": (
        lambda i: with_types(i, labels=TensorType("i32", (BATCH,))),
        InternalError,
        "the runtime needs i64",
    ),
    "loss of two numbers": (lambda i: with_types(i, loss=TensorType("f32", (2,))), InternalError, "not one number"),
    "no threads": (lambda i: replace(i, threads=0), InternalError, "threads is 0"),
    "input without a batch": (lambda i: with_types(i, x=TensorType("f32", ())), SpecError, "must be the batch"),
    "output without the batch": (
        lambda i: with_types(i, logits=TensorType("f32", (3, BATCH))),
        SpecError,
        "does not begin with the batch",
    ),
    "unknown input": (lambda i: replace(i, data_inputs=(Value(99),)), InternalError, "has no type"),
    "nine axes": (lambda i: with_types(i, x=TensorType("f32", (BATCH, FEATURES, *[1] * 7))), InternalError, "rank 9"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_an_image_that_contradicts_itself_is_refused(name: str) -> None:
    change, kind, words = CONTRADICTIONS[name]
    image = tiny_images.classifier()
    kernels = tiny_images.kernels(image, "x86_64-linux-musl")
    assert "pf_image_data" in table_source(image, kernels)
    with pytest.raises(kind, match=words):
        table_source(change(image), kernels)


def test_a_call_without_its_kernel_is_refused() -> None:
    with pytest.raises(InternalError, match='no compiled kernel for fully connected "é"'):
        table_source(tiny_images.classifier(), {})


def test_a_broken_object_is_a_build_error(tmp_path: Path) -> None:
    image = tiny_images.classifier()
    kernels = tiny_images.kernels(image, "x86_64-linux-musl")
    broken = {key: CompiledKernel.called(kernel.symbol, b"no object", 0) for key, kernel in kernels.items()}
    with pytest.raises(BuildError, match="zig cc"):
        link_binary(image, broken, targets.load("x86-64-v3"), work_dir=tmp_path)


# ----------------------------------------------------------------------------------------------------------- embedding


def test_a_program_embeds_steps_through_their_header(tmp_path: Path) -> None:
    """A C program with `pockfarm_step.h` alone trains, scores and saves, a second step beside the first."""
    triple = "x86_64-linux-musl"
    image = tiny_images.classifier()
    kernels = tiny_images.kernels(image, triple)
    (tmp_path / "tables.c").write_text(table_source(image, kernels))
    for kernel in kernels.values():
        (tmp_path / f"{kernel.symbol}.o").write_bytes(kernel.artefacts[0].content)
    shutil.copy(RUNTIME / "pockfarm_step.h", tmp_path)
    runtime = [str(path) for path in runtime_objects(triple, "cpu") if path.stem != "main"]
    objects = [f"{kernel.symbol}.o" for kernel in kernels.values()]
    # With a step's own flags: with others, zig first builds a C library of its own for them.
    sources = ["-I", str(RUNTIME), str(EMBEDDING), "tables.c", *runtime, *objects]
    zig_cc(triple, [*LINK_FLAGS, *sources, "-o", "app"], tmp_path)
    weights = write_weights(tmp_path / "w.safetensors", classifier_state())
    done = subprocess.run(
        [tmp_path / "app", weights, tmp_path / "out.safetensors"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, last, correct = map(float, done.stdout.split())
    assert last < first * 0.5
    assert correct == BATCH
    assert load_file(tmp_path / "out.safetensors")["w"].shape == (CLASSES, FEATURES)


def test_every_kind_of_target_has_its_linker() -> None:
    assert set(LINKERS) == set(targets.KINDS)


def _with_text(one: CompiledKernel) -> CompiledKernel:
    return replace(one, artefacts=(Artefact("text", b""),))  # type: ignore[arg-type]


def _launched_by_a_queue(one: CompiledKernel) -> CompiledKernel:
    return replace(one, launches=tuple(replace(launch, by="queue") for launch in one.launches))  # type: ignore[arg-type]


def _of_two_objects(one: CompiledKernel) -> CompiledKernel:
    return replace(one, artefacts=2 * one.artefacts)


@pytest.mark.parametrize("odd", [_with_text, _launched_by_a_queue, _of_two_objects])
def test_what_a_static_executable_cannot_hold_or_call_is_refused(
    tmp_path: Path, odd: Callable[[CompiledKernel], CompiledKernel]
) -> None:
    image, target = tiny_images.classifier(), targets.load("x86-64-v3")
    changed = {key: odd(kernel) for key, kernel in tiny_images.kernels(image, target.zig_triple).items()}
    with pytest.raises(InternalError, match=r"^tiny_linear: .* not \('"):
        link_binary(image, changed, target, work_dir=tmp_path)


def test_a_place_in_another_memory_is_refused() -> None:
    image = tiny_images.classifier()
    key, place = next(iter(image.plan.placements.items()))
    elsewhere = {**image.plan.placements, key: replace(place, space="device")}
    odd = replace(image, plan=replace(image.plan, placements=elsewhere))
    with pytest.raises(InternalError, match="not in the memory of this step"):
        table_source(odd, tiny_images.kernels(image, targets.load("x86-64-v3").zig_triple))
