"""What the inner loops of a model's contractions can reach on a board's core, by its scheduling model: no board needed.

    python -m benchmarks.inner_loops --target raspberry-pi-4 [--model mobilenet_v2 | FILE.onnx] [--batch 1]
                                     [--variants] [--compute f16] [--frozen-products] [--json FILE]

Every distinct matrix product, convolution, depth-wise convolution and attention of the full training step is compiled
for the target. `llvm-mca` (Debian package llvm-19) runs the loop with most accumulators of each on its model of the
core, and tells the cycles of a turn and the unit that is busiest in it; the peak is what the same model makes of
independent multiply-adds. Memory is taken to answer from the first-level cache: this is the bound of the instructions,
not of the kernel. A loop without vectors on the stack has no spills. Of products that are summed in float16, a turn's
share of what each block of sums costs at its end is counted too, as if nothing hid it; the peak is that of f32.
`--frozen-products`: of a step that trains biases alone, beside weights in int8 that are multiplied as bytes.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from benchmarks.assembly import Loop, around, hottest_loop, multiply_adds
from compiler.codegen.choice import DEFAULT, Choice
from compiler.codegen.family import choices_of
from compiler.kernels.spec import AttentionSpec, ConvSpec, DepthwiseSpec, KernelSpec, MatmulSpec
from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Compute
from compiler.targets import CpuTarget, load_cpu, names
from tests.kernel_harness.assembly import assembly

ANALYSED = (MatmulSpec, ConvSpec, DepthwiseSpec, AttentionSpec)
GOAL = 0.8
"""Of the core's peak, for matrix products and dense convolutions."""
OLDEST_LLVM = 19
ITERATIONS = 200
BUSY = 0.9
"""From this part of the cycles on, a unit is what limits a loop."""

MODELLED_AS = {
    "cortex-a76": "neoverse-n1",
    "cortex-a78ae": "neoverse-n1",
    "cortex-a78": "neoverse-n2",
    "x86-64-v3": "znver3",
    "x86-64-v4": "znver4",
}
"""The scheduling model for a target's `cpu` where it is not LLVM's own of that name. LLVM has none of its own for the
Cortex-A76, A78AE and A710: it takes the A57's. Neoverse N1 is the A76's design for servers, and N2 the A710's; the
A78AE's two vector pipes are the N1's too."""
_INDEPENDENT = {
    ("aarch64", 128): "fmla v{0}.4s, v30.4s, v31.s[0]",
    ("x86_64", 256): "vfmadd231ps %ymm14, %ymm15, %ymm{0}",
    ("x86_64", 512): "vfmadd231ps %zmm30, %zmm31, %zmm{0}",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The hottest loop of one kernel. `peak_fraction` is of the core's multiply-adds per cycle."""

    kernel: str
    family: str
    choice: str
    calls: int
    fmas: int
    loads: int
    spills: int
    cycles: float
    peak_fraction: float
    limit: str


def core_of(target: CpuTarget) -> str:
    """The core whose scheduling model stands for the target's."""
    return MODELLED_AS.get(target.cpu, target.cpu)


def main() -> None:
    """Parse the command line, print one line per kernel and the worst of each family."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inner_loops", description=__doc__)
    parser.add_argument("--target", default="raspberry-pi-4", choices=names("cpu"))
    parser.add_argument("--model", default="mobilenet_v2", help="a name of examples.models, or an .onnx file")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--variants", action="store_true", help="every schedule that a family offers, not its default")
    parser.add_argument("--compute", choices=get_args(Compute), default="f32")
    parser.add_argument("--frozen-products", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    target = load_cpu(arguments.target)
    precision: dict[str, str] = {"compute": arguments.compute}
    if arguments.frozen_products:
        precision |= {"frozen": "int8", "frozen_products": "int8"}
    plan = "bias-only" if arguments.frozen_products else "full"
    wanted = contractions(model_bytes(arguments.model), arguments.batch, target, precision, plan)
    found = list(analyse(wanted, target, arguments.variants))
    _print_summary(target, found)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


def model_bytes(name: str) -> bytes:
    """A model of `examples.models` by name, or a file."""
    if name.endswith(".onnx"):
        return Path(name).read_bytes()
    from examples.models import MODELS

    return MODELS[name]()


def contractions(
    model: bytes, batch: int, target: CpuTarget, precision: Mapping[str, str] | None = None, plan: str = "full"
) -> dict[KernelSpec, int]:
    """The contractions of a training step and how often it calls each."""
    optimizer = {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    spec = TrainingSpec.parse({"batch": batch, "optimizer": optimizer, "precision": dict(precision or {})})
    stages = walk(model, BuildSettings(SparsePlan.parse(plan), spec, target))
    programs: Any = next(stage for stage in stages if stage.name == "schedule").product
    train: Program = programs[0]
    counts: dict[KernelSpec, int] = {}
    for call in train.calls:
        if isinstance(call.spec, ANALYSED):
            counts[call.spec] = counts.get(call.spec, 0) + 1
    return counts


def analyse(specs: Mapping[KernelSpec, int], target: CpuTarget, variants: bool = False) -> Iterator[Finding]:
    """A finding per kernel (and schedule), printed as it comes."""
    print(f"{target.name}: {core_of(target)} model, {peak(target):.1f} multiply-adds a cycle at most", flush=True)
    for spec, calls in specs.items():
        for choice in choices_of(spec, target, target.cores) if variants else (DEFAULT,):
            finding = examine(spec, calls, target, choice)
            if finding is not None:
                _print(finding)
                yield finding


def examine(spec: KernelSpec, calls: int, target: CpuTarget, choice: Choice) -> Finding | None:
    """The hottest loop of one kernel on the target's core; None if it has no loop that multiplies."""
    text = assembly(spec, target, target.cores, choice)
    loop = hottest_loop(text)
    if loop is None:
        return None
    turn = simulate(loop.instructions, core_of(target), target.triple)
    if isinstance(spec, MatmulSpec) and spec.products == "f16":
        turn = replace(turn, cycles=turn.cycles + _end_of_block(text, loop, target))
    fraction = loop.multiply_adds / (turn.cycles * peak(target))
    return Finding(
        title(spec),
        family_of(spec),
        choice.text,
        calls,
        loop.fma_instructions,
        loop.loads,
        loop.spills,
        turn.cycles,
        fraction,
        turn.limit,
    )


def _end_of_block(text: str, loop: Loop, target: CpuTarget) -> float:
    """Cycles beside the loop over the steps of a block, for each of its turns; a sum is two accumulators."""
    from compiler.codegen.tile.short_sums import SHORT

    end = around(text, loop.label)
    if not end:
        return 0.0
    steps = 2 * loop.fma_instructions / loop.accumulators
    return simulate(end, core_of(target), target.triple).cycles * steps / SHORT


def peak(target: CpuTarget) -> float:
    """f32 multiply-adds per cycle of independent vector instructions, by the core's model."""
    return _peak(target.name)


@cache
def _peak(name: str) -> float:
    target = load_cpu(name)
    form = _INDEPENDENT[target.architecture, target.vector_bits]
    # More accumulators than latency times pipes, fewer than registers.
    lines = tuple("\t" + form.format(register) for register in range(min(24, target.vector_registers - 2)))
    return sum(map(multiply_adds, lines)) / simulate(lines, core_of(target), target.triple).cycles


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a loop in the steady state. `pressure`: cycles that each unit, or the front end, is busy in it."""

    cycles: float
    pressure: Mapping[str, float]

    @property
    def limit(self) -> str:
        """The busiest unit and the part of the cycles that it works; "latency" if none is nearly always busy."""
        unit, busy = max(self.pressure.items(), key=lambda item: item[1])
        share = busy / self.cycles
        return f"{unit} {share:.0%}" if share >= BUSY else f"latency ({unit} {share:.0%})"


def new_enough(version: str) -> bool:
    """Whether what llvm-mca says of itself is a release whose models are right.

    LLVM 14 gives loops of `sdot` on a Neoverse N1 800% of f32's peak, 19 gives them 400%.
    """
    found = re.search(r"LLVM version (\d+)", version)
    return found is not None and int(found[1]) >= OLDEST_LLVM


@functools.cache
def _program() -> str:
    for name in (f"llvm-mca-{OLDEST_LLVM}", "llvm-mca"):
        path = shutil.which(name)
        if path and new_enough(subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout):
            return path
    sys.exit(f"llvm-mca of LLVM {OLDEST_LLVM} or later is not installed: apt-get install llvm-{OLDEST_LLVM}")


def simulate(instructions: Iterable[str], core: str, triple: str) -> Turn:
    """Let llvm-mca run a loop. Raises: SystemExit if it is missing, too old, or refuses."""
    command = [_program(), f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={ITERATIONS}"]
    # A branch ends the block; llvm-mca needs its label to exist.
    text = "\n".join(re.sub(r"\.L\w+", "0", line) for line in instructions) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    total = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    if total is None:
        sys.exit(f"llvm-mca for {core}: {done.stderr.strip()[:500]}")
    return Turn(int(total[1]) / ITERATIONS, pressure_in(done.stdout))


def pressure_in(report: str) -> dict[str, float]:
    """Cycles of a turn that each unit is busy, equal units taken together, and the front end, in llvm-mca's report."""
    names = re.findall(r"^\[[\d.]+\]\s+- (\S+)$", report, re.MULTILINE)
    cells = re.search(r"^Resource pressure per iteration:\n.*\n(.*)$", report, re.MULTILINE)
    cycles = [0.0 if cell == "-" else float(cell) for cell in cells[1].split()] if cells else []
    pressure: dict[str, float] = {}
    for name, busy in zip(names, cycles, strict=True):
        unit = name.partition("Unit")[2] or name
        pressure[unit] = max(pressure.get(unit, 0.0), busy)
    operations, width = (
        re.search(rf"^{what}:\s+(\d+)", report, re.MULTILINE) for what in ("Total uOps", "Dispatch Width")
    )
    if operations and width:
        pressure["dispatch"] = int(operations[1]) / ITERATIONS / int(width[1])
    return pressure


def family_of(spec: KernelSpec) -> str:
    """Kind of contraction. Products with a vector are apart: every weight is used once, so memory bounds them."""
    if isinstance(spec, MatmulSpec) and min(spec.m, spec.n, spec.k) == 1:
        return "matmul by a vector"
    return f"{type(spec).__name__.removesuffix('Spec').lower()} {getattr(spec, 'kind', '')}".strip()


def title(spec: KernelSpec) -> str:
    """A kernel in a few words."""
    match spec:
        case MatmulSpec():
            turned = f"{'A' if spec.a_transposed else ''}{'B' if spec.b_transposed else ''}"
            batch = f"{spec.batch}x" if spec.batch > 1 else ""
            return f"{batch}{spec.m}x{spec.n}x{spec.k}" + (f" transposed {turned}" if turned else "")
        case ConvSpec():
            groups = f" in {spec.groups} groups" if spec.groups > 1 else ""
            return f"{spec.h}x{spec.w}x{spec.c}->{spec.k} {spec.kernel[0]}x{spec.kernel[1]}/{spec.strides[0]}{groups}"
        case DepthwiseSpec():
            return f"{spec.h}x{spec.w}x{spec.c} {spec.kernel[0]}x{spec.kernel[1]}/{spec.strides[0]}"
        case AttentionSpec():
            return f"{spec.batch}x{spec.heads} heads, {spec.queries}x{spec.keys}x{spec.width}"
    return type(spec).__name__


def _print(one: Finding) -> None:
    mark = " SPILLS" if one.spills else ""
    print(
        f"{one.peak_fraction:6.1%} {one.fmas:4} fma {one.loads:4} loads {one.spills:3} stack {one.cycles:7.1f} cycles  "
        f"x{one.calls:<3} {one.limit:<18} {one.family:<22} {one.kernel} {one.choice}{mark}",
        flush=True,
    )


def _print_summary(target: CpuTarget, found: list[Finding]) -> None:
    print(f"\n{target.name} ({core_of(target)})   lowest   median   loops   below {GOAL:.0%}   with spills")
    for family in sorted({one.family for one in found}):
        own = sorted((one for one in found if one.family == family), key=lambda one: one.peak_fraction)
        low = sum(one.peak_fraction < GOAL for one in own)
        spilling = sum(one.spills > 0 for one in own)
        middle = own[len(own) // 2].peak_fraction
        print(f"{family:<30} {own[0].peak_fraction:8.1%} {middle:8.1%} {len(own):7} {low:11} {spilling:13}")


if __name__ == "__main__":
    main()
