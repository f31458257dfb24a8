"""Plans of contractions count numbers, not bytes: on a machine where all is twice as large, numbers of twice as many
bytes get the same plans. What else would differ assumes how long a number is.

`i64`, whose sums take eight bytes too, stands for such numbers; nothing is emitted for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from compiler.codegen.conv import plan as conv_plan
from compiler.codegen.conv.plan import ConvPlan
from compiler.codegen.depthwise import plan as depthwise_plan
from compiler.codegen.depthwise.plan import DepthwisePlan
from compiler.codegen.family import choices_of, workspace_bytes_of
from compiler.codegen.matmul import plan as matmul_plan
from compiler.codegen.matmul.cost import Core, busiest, cost
from compiler.codegen.matmul.plan import ranked
from compiler.codegen.tile import precision as precision_module
from compiler.codegen.tile.precision import Precision
from compiler.codegen.winograd import plan as winograd_plan
from compiler.codegen.winograd.plan import WinogradPlan
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.targets import CpuTarget, load_cpu
from tests.compiler.codegen.contractions import Kind, conv, depthwise

V4, V3, A72 = load_cpu("x86-64-v4"), load_cpu("x86-64-v3"), load_cpu("raspberry-pi-4")
PADS = (1, 1, 1, 1)
KINDS: tuple[Kind, ...] = ("forward", "input_grad", "weight_grad")
NO_PRECISION = Precision(1, 1, 1, 1)


def product(m: int, n: int, k: int, *, a_transposed: bool = False) -> MatmulSpec:
    return MatmulSpec(1, m, n, k, dtype="f32", a_transposed=a_transposed)


PRODUCTS = [
    product(200, 120, 90),
    product(8, 1000, 1280),
    product(4, 3000, 700),
    product(64, 96, 6400, a_transposed=True),
    product(1100, 72, 520, a_transposed=True),
    product(1500, 512, 900),
    product(5000, 96, 300),
    product(3000, 1024, 256),
    product(40, 24, 5),
    product(90, 64, 100),
    product(8, 200, 4000),
    product(1300, 96, 300),
    product(330, 96, 300),
    product(64, 1024, 32),
    replace(product(150, 330, 1021), b_transposed=True),
    replace(product(6000, 64, 40), b_transposed=True),
    replace(product(33, 48, 64), batch=6),
]
Image = tuple[tuple[int, int, int, int], int]
IMAGES: list[Image] = [
    ((2, 20, 20, 24), 80),
    ((1, 112, 112, 64), 64),
    ((8, 56, 56, 64), 64),
    ((4, 14, 14, 256), 256),
    ((2, 7, 7, 512), 512),
    ((2, 6, 6, 340), 340),
    ((4, 28, 28, 128), 64),
]
"""([n, h, w, c], k)."""


def doubled(target: CpuTarget) -> CpuTarget:
    """A machine that holds as many numbers of twice the size."""
    sizes = ("vector_bits", "l1_bytes", "l2_bytes", "l3_bytes")
    return replace(target, **{name: 2 * getattr(target, name) for name in sizes})


@pytest.mark.parametrize("target", [V4, V3])
@pytest.mark.parametrize("spec", PRODUCTS, ids=str)
def test_a_products_plan_depends_on_numbers_not_on_bytes(
    spec: MatmulSpec, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the bytes of everything: the same choices and sizes in elements. `i64` takes eight, its sums too."""
    twin = replace(spec, dtype="i64")
    before = [(choice, matmul_plan.plan(spec, target, 2, choice)) for choice in choices_of(spec, target, 2)]
    scratch = [workspace_bytes_of(spec, target, 2, choice) for choice, _ in before]
    width, cycles = matmul_plan.panel_width(spec, target, 2), cycles_of(spec, target)
    monkeypatch.setattr(precision_module, "LINE_BYTES", 128)
    wide = doubled(target)
    after = [(choice, matmul_plan.plan(twin, wide, 2, choice)) for choice in choices_of(twin, wide, 2)]
    assert [(choice, replace(plan, precision=before[0][1].precision)) for choice, plan in after] == before
    assert [workspace_bytes_of(twin, wide, 2, choice) for choice, _ in after] == [2 * size for size in scratch]
    assert (matmul_plan.panel_width(twin, wide, 2), cycles_of(twin, wide)) == (width, cycles)


def cycles_of(spec: MatmulSpec, target: CpuTarget) -> list[float]:
    """The estimate of every schedule worth measuring, and of those that read B where it lies."""
    core = Core.of(target, spec.dtype)
    found = ranked(spec, core, 2)
    in_place = [replace(one, panels="direct") for one in found]
    return [cost(spec, core, 2, one) for one in (*found, *in_place)]


@pytest.mark.parametrize("target", [V4, V3, A72])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_a_convolutions_plan_depends_on_numbers_not_on_bytes(
    kind: Kind, image: Image, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[ConvSpec | DepthwiseSpec] = [conv(kind, *image, (3, 3), (1, 1), PADS)]
    specs.append(depthwise(kind, image[0], (3, 3), (1, 1), PADS))
    twins = [replace(spec, dtype="i64") for spec in specs]
    before = [facts(spec, target) for spec in specs]
    monkeypatch.setattr(precision_module, "LINE_BYTES", 128)
    assert [facts(twin, doubled(target), shrink=2) for twin in twins] == before


def facts(spec: ConvSpec | DepthwiseSpec, target: CpuTarget, shrink: int = 1) -> list[object]:
    """All that a plan says, its precision left out, and its scratch bytes over `shrink`, of every choice."""
    found: list[object] = []
    for choice in choices_of(spec, target, 2):
        plan: ConvPlan | WinogradPlan | DepthwisePlan
        if isinstance(spec, DepthwiseSpec):
            plan = depthwise_plan.plan_of(spec, target, 2, choice)
        elif outputs := conv_plan.method_of(spec, target, choice):
            plan = winograd_plan.plan(spec, target, 2, outputs)
        else:
            plan = conv_plan.plan(spec, target, 2)
        found.append(
            (choice, replace(plan, precision=NO_PRECISION), workspace_bytes_of(spec, target, 2, choice) // shrink)
        )
    return found


@pytest.mark.parametrize("rest", [0, 1, 4])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_the_busiest_slot_has_the_tiles_that_it_gets(rest: int, slots: int) -> None:
    """Also where the last tile is as wide as the others, for its end is masked."""
    for full in range(1, 12):
        tiles = [4] * full + [rest] * (rest > 0)
        shares = [tiles[slot * len(tiles) // slots : (slot + 1) * len(tiles) // slots] for slot in range(slots)]
        assert busiest(full, 4, rest, slots) == Counter(max(shares, key=sum))
