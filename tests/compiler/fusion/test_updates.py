"""Updates fused into weight gradients: what fuses, what must not, and where the fused call is placed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from compiler.codegen.family import can_update
from compiler.fusion.updates import fuse_updates
from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Ref
from compiler.kernels.spec import GatherSpec, MapSpec, MatmulSpec
from compiler.program.aliases import Alias
from compiler.program.program import KernelCall, Program
from compiler.program.schedule import schedule
from compiler.rewriting.passes import PassResult
from compiler.targets import load
from compiler.values import Value
from tests.compiler.named import all_named

CAN_UPDATE = partial(can_update, target=load("x86-64-v4"))
ROWS, COLUMNS, SAMPLES = 12, 10, 4
GRADIENT = MatmulSpec(1, ROWS, COLUMNS, SAMPLES, a_transposed=True, dtype="f32")
INPUT_GRADIENT = MatmulSpec(1, SAMPLES, ROWS, COLUMNS, b_transposed=True, dtype="f32")
WEIGHT = TensorType("f32", (ROWS, COLUMNS))
WHOLE = Access(WEIGHT, (Affine(((0, 1),)), Affine(((1, 1),))))
SCALAR = Access(TensorType("f32", ()), ())
MOMENT: Expr = Binary("add", Binary("mul", Const(0.5), Ref(2)), Ref(1))
UPDATE = MapSpec(
    (ROWS, COLUMNS), (WHOLE, WHOLE, WHOLE, SCALAR), (WHOLE, WHOLE), (Binary("sub", Ref(0), MOMENT), MOMENT)
)
W, M, D_W, X, D_X, D_Y, RATE, NORM, IDS = all_named("w", "m", "d_w", "x", "d_x", "d_y", "rate", "norm", "ids")
UPDATED = (W.updated(), M.updated())
TYPES = {
    **dict.fromkeys((W, M, *UPDATED, D_W, NORM), WEIGHT),
    X: TensorType("f32", (SAMPLES, ROWS)),
    D_X: TensorType("f32", (SAMPLES, ROWS)),
    D_Y: TensorType("f32", (SAMPLES, COLUMNS)),
    RATE: TensorType("f32", ()),
}
ALIASES = {W.updated(): Alias(W), M.updated(): Alias(M)}

weight_gradient = KernelCall(GRADIENT, (X, D_Y), (D_W,), "d layer", "backward", 100, 30, 40)
input_gradient = KernelCall(INPUT_GRADIENT, (D_Y, W), (D_X,), "d input", "backward", 100, 30, 40)
update = KernelCall(UPDATE, (W, D_W, M, RATE), UPDATED, "update w", "update", 5, 1440, 960)


def fused(*calls: KernelCall, kept: tuple[Value, ...] = ()) -> tuple[KernelCall, ...]:
    return fuse(*calls, kept=kept).subject.calls


def fuse(*calls: KernelCall, kept: tuple[Value, ...] = ()) -> PassResult[Program]:
    return fuse_updates(Program("train", calls, TYPES, (), kept, ALIASES), can_update=CAN_UPDATE)


def reasons(*calls: KernelCall) -> list[str]:
    return [one.code for one in fuse(*calls).declined]


def test_the_product_updates_in_place() -> None:
    (call,) = fused(weight_gradient, update)
    assert (call.inputs, call.outputs) == ((X, D_Y, W, M, RATE), UPDATED)
    assert isinstance(call.spec, MatmulSpec)
    moment = Binary("add", Binary("mul", Const(0.5), Ref(2)), Ref(0))
    assert call.spec.epilogue == Binary("sub", Ref(1), moment)
    assert call.spec.extra_outputs == (moment,)
    assert (call.flops, call.bytes_read, call.bytes_written) == (105, 30 + 1440 - 480, 40 + 960 - 480)


def test_it_runs_after_other_readers_of_the_weight() -> None:
    program = fuse(weight_gradient, update, input_gradient).subject
    assert not program.ordered
    scheduled = schedule(replace(program, outputs=(D_X,), updates=UPDATED)).subject
    assert scheduled.ordered
    assert [call.outputs[0] for call in scheduled.calls] == [D_X, W.updated()]


def test_a_gradient_that_is_read_elsewhere_stays() -> None:
    double = MapSpec((ROWS, COLUMNS), (WHOLE,), (WHOLE,), (Binary("add", Ref(0), Ref(0)),))
    reader = KernelCall(double, (D_W,), (NORM,), "norm", "backward", 1, 480, 480)
    assert len(fused(weight_gradient, reader, update)) == 3
    assert len(fused(weight_gradient, update, kept=(D_W,))) == 2
    assert reasons(weight_gradient, reader, update) == ["update.gradient_is_read"]


def test_an_update_that_reads_a_padded_operand_stays() -> None:
    """A weight that is also read in part: the rest of that part's gradient is zeros that are nowhere in memory."""
    part = Access(TensorType("f32", (3, COLUMNS)), WHOLE.index, fill=0.0)
    table = GatherSpec("scatter_add", outer=1, rows=ROWS, inner=COLUMNS, count=SAMPLES, dtype="f32")
    summed = KernelCall(table, (IDS, D_Y), (D_W,), "d table", "backward", 40, 100, 480)
    spec = replace(UPDATE, inputs=(WHOLE, WHOLE, part, SCALAR))
    assert reasons(summed, replace(update, spec=spec)) == ["update.points"]
    assert reasons(summed, replace(update, spec=UPDATE)) == []


def test_an_update_of_some_channels_stays() -> None:
    part = Access(TensorType("f32", (ROWS + 2, COLUMNS)), WHOLE.index)
    some = replace(UPDATE, inputs=(part, WHOLE, WHOLE, SCALAR), outputs=(part, WHOLE))
    assert len(fused(weight_gradient, replace(update, spec=some))) == 2
    assert reasons(weight_gradient, replace(update, spec=some)) == ["update.points"]


@pytest.mark.parametrize(
    ("m", "n", "k", "reason"), [(ROWS, COLUMNS, 20, "update.operands"), (600, 2000, 600, "update.kernel")]
)
def test_a_product_of_many_samples_stays(m: int, n: int, k: int, reason: str) -> None:
    """More operands than gradient, or sums that would wait in memory."""
    whole = replace(WHOLE, type=TensorType("f32", (m, n)))
    spec = replace(UPDATE, extents=(m, n), inputs=(whole,) * 3 + (SCALAR,), outputs=(whole,) * 2)
    product = replace(weight_gradient, spec=replace(GRADIENT, m=m, n=n, k=k))
    assert len(fused(product, replace(update, spec=spec))) == 2
    assert reasons(product, replace(update, spec=spec)) == [reason]


TABLE = GatherSpec("scatter_add", 1, ROWS, COLUMNS, SAMPLES, dtype="f32")
scatter = KernelCall(TABLE, (IDS, D_Y), (D_W,), "d embedding", "backward", 100, 30, 480)


def test_a_table_is_updated_where_its_rows_are_summed() -> None:
    (call,) = fused(scatter, update)
    assert (call.inputs, call.outputs) == ((IDS, D_Y, W, M, RATE), UPDATED)
    assert isinstance(call.spec, GatherSpec)
    assert not call.spec.skips, "momentum moves rows whose gradient is zero"


@pytest.mark.parametrize(("decay", "skips"), [(0.0, True), (0.5, False)])
def test_plain_descent_skips_rows_without_gradient(decay: float, skips: bool) -> None:
    step: Expr = Binary("add", Ref(1), Binary("mul", Const(decay), Ref(0))) if decay else Ref(1)
    descent = Binary("sub", Ref(0), Binary("mul", Ref(2), step))
    plain = MapSpec((ROWS, COLUMNS), (WHOLE, WHOLE, SCALAR), (WHOLE,), (descent,))
    (call,) = fused(scatter, replace(update, spec=plain, inputs=(W, D_W, RATE), outputs=(W.updated(),)))
    assert isinstance(call.spec, GatherSpec)
    assert call.spec.skips == skips
