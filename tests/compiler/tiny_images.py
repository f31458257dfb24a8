"""Two models small enough to write their kernels, programs and memory plans by hand: what linking and running need.

`classifier`: logits = x @ w.T + b, cross-entropy, SGD with momentum on w and b. The file holds w as
[CLASSES, FEATURES], memory as [FEATURES, CLASSES].
`table`: logits = table[tokens], mean squared error, AdamW.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compiler import targets
from compiler.cache_folder import cache_folder
from compiler.codegen.artefacts import CompiledKernel
from compiler.codegen.linking.link import link_binary
from compiler.codegen.linking.toolchain import RUNTIME
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Const
from compiler.kernels.spec import GatherSpec, KernelSpec, MapSpec, signature
from compiler.program.aliases import Alias
from compiler.program.program import (
    BinaryImage,
    KernelCall,
    MemoryPlan,
    Optimizer,
    Phase,
    Placement,
    Program,
    StateTensor,
)
from compiler.spec.loss import LossKind
from compiler.step.training import Term
from compiler.values import Value

BATCH, FEATURES, CLASSES, ROWS = 4, 6, 3, 5
TURNS, SPIN_US = 1_000_000, 1000
OWN_NAMES = ("x", "w", "b", "logits", "tokens", "table")
"""What the two models call their values."""
OTHERS = ("labels", "loss", "d_logits", "d_w", "d_b", "d_y", "d_table", "spare", "workspace")
HYPER = ("learning_rate", "bias_correction_1", "bias_correction_2_sqrt")
SOURCE = Path(__file__).parent / "tiny_kernels.c"


def value(name: str) -> Value:
    """The value that a name stands for here: `w`, `w'` (updated), `optimizer.momentum.w`, `hyper.learning_rate`."""
    if name.endswith("'"):
        return value(name[:-1]).updated()
    if name.startswith("optimizer."):
        kind, parameter = name.split(".")[1:]
        return value(parameter).state(kind)  # type: ignore[arg-type]
    if name.startswith("hyper."):
        kind = name.removeprefix("hyper.")
        return Value(100 + HYPER.index(kind), "hyper", kind)
    return Value((*OWN_NAMES, *OTHERS).index(name), name if name in ("labels", "loss") else "plain")  # type: ignore[arg-type]


def values(*names: str) -> tuple[Value, ...]:
    return tuple(map(value, names))


OWN = {value(name): name for name in OWN_NAMES}


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def spec(number: int) -> KernelSpec:
    """A spec that stands for hand-written kernel `number`: only its signature matters to the linker."""
    access = Access(f32(1), (Affine(),))
    return MapSpec((1,), (access,), (access,), (Const(float(number)),))


NAMES = (
    "linear",
    "cross_entropy",
    "weight_grad",
    "bias_grad",
    "sgd",
    "failing",
    "mean_squared_error",
    "adamw",
    "slow_linear",
    "repeated_linear",
)
SPECS: Mapping[str, KernelSpec] = {
    **{name: spec(number) for number, name in enumerate(NAMES)},
    "look_up": GatherSpec("gather", 1, ROWS, FEATURES, BATCH * 2, dtype="f32"),
    "scatter": GatherSpec("scatter_add", 1, ROWS, FEATURES, BATCH * 2, dtype="f32"),
}
WORKSPACE_BYTES = {"weight_grad": FEATURES * CLASSES * 4}


@functools.cache
def kernel(
    name: str, zig_triple: str, turns: int = TURNS, spin_us: int = SPIN_US, leave: Path | None = None
) -> CompiledKernel:
    """Kernel `name` of tiny_kernels.c, compiled for a triple."""
    known = (BATCH, FEATURES, CLASSES, ROWS, turns, spin_us)
    sizes = [f"-D{key}={size}" for key, size in zip(SIZE_NAMES, known, strict=True)]
    sizes += [f'-DLEAVE="{leave}"'] if leave else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.o"
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            zig_triple,
            "-O1",
            "-I",
            str(RUNTIME),
            *sizes,
            f"-DKERNEL_{name}",
            "-c",
            str(SOURCE),
            "-o",
            str(out),
        ]
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig"), "ZIG_LOCAL_CACHE_DIR": folder}
        subprocess.run(command, check=True, env=environment, cwd=folder)
        return CompiledKernel.called(f"tiny_{name}", out.read_bytes(), WORKSPACE_BYTES.get(name, 0))


SIZE_NAMES = ("BATCH", "FEATURES", "CLASSES", "ROWS", "TURNS", "SPIN_US")


def kernels(
    image: BinaryImage, zig_triple: str, turns: int = TURNS, spin_us: int = SPIN_US, leave: Path | None = None
) -> dict[str, CompiledKernel]:
    used = {call.spec for program in image.programs.values() for call in program.calls}
    made = {name: one for name, one in SPECS.items() if one in used}
    return {signature(one): kernel(name, zig_triple, turns, spin_us, leave) for name, one in made.items()}


def build(
    image: BinaryImage,
    path: Path,
    target: str = "x86-64-v3",
    *,
    turns: int = TURNS,
    spin_us: int = SPIN_US,
    leave: Path | None = None,
) -> Path:
    """Link an image into an executable file. `turns`: how much work a repeated kernel does; `spin_us`: how long a slow
    one takes at least; `leave`: the file that says how often it may be called in each process."""
    board = targets.load(target)
    made = kernels(image, board.zig_triple, turns, spin_us, leave)
    path.write_bytes(link_binary(image, made, board, work_dir=path.parent))
    path.chmod(0o755)
    return path


def call(name: str, inputs: Sequence[str], outputs: Sequence[str], phase: Phase, layer: str = "") -> KernelCall:
    return KernelCall(SPECS[name], values(*inputs), values(*outputs), layer or name, phase, 10, 20, 30)


def place_in_order(types: Mapping[Value, TensorType], names: Sequence[str], region: str) -> dict[Value, Placement]:
    """One value after another, each at a multiple of 64."""
    places, offset = {}, 0
    for own in values(*names):
        size = -(-types[own].size_bytes // 64) * 64
        places[own] = Placement(region, offset, size)  # type: ignore[arg-type]
        offset += size
    return places


def total(places: Mapping[Value, Placement]) -> int:
    return sum(place.size_bytes for place in places.values())


def typed(types: Mapping[str, TensorType]) -> dict[Value, TensorType]:
    return {value(name): tensor for name, tensor in types.items()}


CLASSIFIER_TYPES = typed(
    {
        "x": f32(BATCH, FEATURES),
        "w": f32(FEATURES, CLASSES),
        "b": f32(CLASSES),
        "logits": f32(BATCH, CLASSES),
        "labels": TensorType("i64", (BATCH,)),
        "loss": f32(),
        "d_logits": f32(BATCH, CLASSES),
        "d_w": f32(FEATURES, CLASSES),
        "d_b": f32(CLASSES),
        "hyper.learning_rate": f32(),
        "w'": f32(FEATURES, CLASSES),
        "b'": f32(CLASSES),
        "optimizer.momentum.w": f32(FEATURES, CLASSES),
        "optimizer.momentum.b": f32(CLASSES),
        "optimizer.momentum.w'": f32(FEATURES, CLASSES),
        "optimizer.momentum.b'": f32(CLASSES),
        "spare": f32(2),
        "workspace": f32(FEATURES * CLASSES),
    }
)


def state(name: str, role: str, file_shape: tuple[int, ...], perm: tuple[int, ...], inside: TensorType) -> StateTensor:
    own, of = f"constant.{name}" if role == "constant" else name, value(name)
    return StateTensor(of, own, inside, role, file_shape, file_shape, perm, role != "constant")  # type: ignore[arg-type]


def classifier_programs(linear: str) -> tuple[Program, Program]:
    momentum = ("optimizer.momentum.w", "optimizer.momentum.b")
    aliases = {value(f"{name}'"): Alias(value(name)) for name in ("w", "b", *momentum)}
    forward = call(linear, ("x", "w", "b"), ("logits",), "forward", 'fully connected "é"')
    calls = (
        forward,
        call("cross_entropy", ("logits", "labels"), ("loss", "d_logits"), "forward"),
        call("weight_grad", ("x", "d_logits"), ("d_w",), "backward"),
        call("bias_grad", ("d_logits",), ("d_b",), "backward"),
        *(
            call(
                "sgd",
                (p, f"d_{p}", f"optimizer.momentum.{p}", "hyper.learning_rate"),
                (f"{p}'", f"optimizer.momentum.{p}'"),
                "update",
            )
            for p in ("w", "b")
        ),
    )
    inputs, outputs = values("x", "labels", "hyper.learning_rate"), values("loss", "logits")
    train = Program("train", calls, CLASSIFIER_TYPES, inputs, outputs, aliases, names=OWN)
    return train, Program("forward", (forward,), CLASSIFIER_TYPES, values("x"), values("logits"), {}, names=OWN)


def classifier(
    *, threads: int = 2, arena_padding_bytes: int = 0, spare_elements: int = 2, linear: str = "linear"
) -> BinaryImage:
    """`spare` is a constant that no kernel reads; it makes the weights as large as a test needs. With `slow_linear` for
    `linear` a step takes as long as one of a real model."""
    types = {**CLASSIFIER_TYPES, value("spare"): f32(spare_elements)}
    train, forward = classifier_programs(linear)
    weights = place_in_order(types, ("w", "b", "spare"), "weights")
    optimizer = place_in_order(types, ("optimizer.momentum.w", "optimizer.momentum.b"), "optimizer")
    arena = place_in_order(
        types, ("x", "labels", "hyper.learning_rate", "logits", "d_logits", "loss", "d_w", "d_b", "workspace"), "arena"
    )
    both = {(name, own): place for name in ("train", "forward") for own, place in {**weights, **arena}.items()}
    plan = MemoryPlan(
        {**both, **{("train", own): place for own, place in optimizer.items()}},  # type: ignore[dict-item]
        {("train", 2): arena[value("workspace")]},
        {},
        total(weights),
        total(optimizer),
        total(arena) + arena_padding_bytes,
        total(arena),
    )
    states = (
        state("w", "parameter", (CLASSES, FEATURES), (1, 0), types[value("w")]),
        state("b", "parameter", (CLASSES,), (0,), types[value("b")]),
        state("optimizer.momentum.w", "optimizer", (FEATURES, CLASSES), (0, 1), types[value("w")]),
        state("optimizer.momentum.b", "optimizer", (CLASSES,), (0,), types[value("b")]),
        state("spare", "constant", (spare_elements,), (0,), types[value("spare")]),
    )
    return BinaryImage(
        {"train": train, "forward": forward},
        plan,
        states,
        values("x"),
        {value("labels"): "y"},
        value("loss"),
        value("logits"),
        (loss_of("cross_entropy"),),
        Optimizer("sgd", 0.1, momentum=0.9),
        threads,
        {"model": "sha256:00", "plan": "full"},
    )


def failing_classifier() -> BinaryImage:
    """The classifier with a kernel that fails after the loss."""
    image = classifier()
    train = image.programs["train"]
    calls = (*train.calls[:2], call("failing", ("x",), ("d_b",), "backward", "bad node"))
    return replace(image, programs={**image.programs, "train": replace(train, calls=calls)})


def loss_of(kind: LossKind) -> Term:
    return Term(kind, value("logits"), value("labels"))


TABLE_TYPES = typed(
    {
        "tokens": TensorType("i64", (BATCH, 2)),
        "table": f32(ROWS, FEATURES),
        "logits": f32(BATCH, 2, FEATURES),
        "labels": f32(BATCH, 2, FEATURES),
        "loss": f32(),
        "d_y": f32(BATCH, 2, FEATURES),
        "d_table": f32(ROWS, FEATURES),
        "hyper.learning_rate": f32(),
        "hyper.bias_correction_1": f32(),
        "hyper.bias_correction_2_sqrt": f32(),
        "optimizer.exp_avg.table": f32(ROWS, FEATURES),
        "optimizer.exp_avg_sq.table": f32(ROWS, FEATURES),
        "table'": f32(ROWS, FEATURES),
        "optimizer.exp_avg.table'": f32(ROWS, FEATURES),
        "optimizer.exp_avg_sq.table'": f32(ROWS, FEATURES),
    }
)


def table_programs() -> tuple[Program, Program]:
    hyper = ("hyper.learning_rate", "hyper.bias_correction_1", "hyper.bias_correction_2_sqrt")
    moments = ("optimizer.exp_avg.table", "optimizer.exp_avg_sq.table")
    look_up = call("look_up", ("table", "tokens"), ("logits",), "forward")
    calls = (
        look_up,
        call("mean_squared_error", ("logits", "labels"), ("loss", "d_y"), "forward"),
        call("scatter", ("tokens", "d_y"), ("d_table",), "backward"),
        call("adamw", ("table", "d_table", *moments, *hyper), [f"{name}'" for name in ("table", *moments)], "update"),
    )
    aliases = {value(f"{name}'"): Alias(value(name)) for name in ("table", *moments)}
    inputs, outputs = values("tokens", "labels", *hyper), values("loss", "logits")
    train = Program("train", calls, TABLE_TYPES, inputs, outputs, aliases, names=OWN)
    return train, Program("forward", (look_up,), TABLE_TYPES, values("tokens"), values("logits"), {}, names=OWN)


def table() -> BinaryImage:
    types = TABLE_TYPES
    train, forward = table_programs()
    weights = place_in_order(types, ("table",), "weights")
    optimizer = place_in_order(types, ("optimizer.exp_avg.table", "optimizer.exp_avg_sq.table"), "optimizer")
    rest = ("tokens", "logits", "labels", "loss", "d_y", "d_table", *(f"hyper.{kind}" for kind in HYPER))
    arena = place_in_order(types, rest, "arena")
    both = {(name, own): place for name in ("train", "forward") for own, place in {**weights, **arena}.items()}
    plan = MemoryPlan(
        {**both, **{("train", own): place for own, place in optimizer.items()}},  # type: ignore[dict-item]
        {},
        {},
        total(weights),
        total(optimizer),
        total(arena),
        total(arena),
    )
    shape, order = (ROWS, FEATURES), (0, 1)
    states = (
        state("table", "parameter", shape, order, types[value("table")]),
        *(
            state(f"optimizer.{kind}.table", "optimizer", shape, order, types[value("table")])
            for kind in ("exp_avg", "exp_avg_sq")
        ),
    )
    return BinaryImage(
        {"train": train, "forward": forward},
        plan,
        states,
        values("tokens"),
        {value("labels"): "y"},
        value("loss"),
        value("logits"),
        (loss_of("mse"),),
        Optimizer("adamw", 0.01),
        1,
        {"model": "sha256:01"},
    )
