"""A LLaMA of seven billion weights on an AGX Orin, on paper: bytes that are planned and work that is counted.

    python -m benchmarks.seven_billion [--tokens 512] [--target jetson-agx-orin]

Nothing runs. Steps of one layer and of two are planned as ever, without kernels, and each of the other thirty adds what
the second did: LoRA of rank 8 on q_proj and v_proj, one sequence a step, the head tied to the table of tokens. The time
is the shortest that the target's figures allow: all multiply-adds at its peak, which for f16 is twice that of f32.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from benchmarks.frozen import PLAN, Exported, Shape, exported
from compiler.api import BuildSettings
from compiler.pipeline import walk
from compiler.program.program import MemoryPlan, Program
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load

SHAPE = Shape(4096, 32, 32, 32, 11008)
KINDS: dict[str, dict[str, Any]] = {
    "f32": {},
    "int8": {"frozen": "int8"},
    "int4": {"frozen": "int4"},
    "int8, f16 between kernels": {"frozen": "int8", "compute": "f16"},
    "int4, f16 between kernels": {"frozen": "int4", "compute": "f16"},
}


@dataclass(frozen=True)
class Needs:
    """Of one step."""

    weights_bytes: float
    arena_bytes: float
    flops: float

    def plus(self, times: float, more: Needs, less: Needs) -> Needs:
        """With so many times what `more` needs beyond `less`."""
        return Needs(
            self.weights_bytes + times * (more.weights_bytes - less.weights_bytes),
            self.arena_bytes + times * (more.arena_bytes - less.arena_bytes),
            self.flops + times * (more.flops - less.flops),
        )


def planned(file: Exported, precision: dict[str, Any], target: str) -> Needs:
    """What a step of a model needs by its plan."""
    spec = {"batch": 1, "precision": precision, "optimizer": {"kind": "sgd", "learning_rate": 1e-3}}
    settings = BuildSettings(SparsePlan.parse(PLAN), TrainingSpec.parse(spec), load(target))
    flops = 0.0
    for stage in walk(file.model, settings, external=file.external):
        if stage.name == "place":
            programs = [program for program in stage.product if isinstance(program, Program)]  # type: ignore[union-attr]
            flops = float(sum(call.flops for one in programs if one.name == "train" for call in one.calls))
        if isinstance(stage.product, MemoryPlan):
            return Needs(stage.product.weights_bytes, stage.product.arena_bytes, flops)
    raise AssertionError("a compile plans its memory")


def main() -> None:
    """A line for each precision."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seven_billion", description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--target", default="jetson-agx-orin")
    asked = parser.parse_args()
    peak = load(asked.target).costs.product_gflop_per_s
    print(f"{asked.target}, {SHAPE.layers} layers x {SHAPE.width}, {asked.tokens} tokens, LoRA of rank 8; on paper")
    for said, precision in KINDS.items():
        one, two = (planned(exported(SHAPE, layers, asked.tokens), precision, asked.target) for layers in (1, 2))
        whole = two.plus(SHAPE.layers - 2, two, one)
        seconds = whole.flops / peak / 1e9 / (2 if precision.get("compute") == "f16" else 1)
        print(
            f"  {said:26} weights {whole.weights_bytes / 1e9:5.1f} GB, arena {whole.arena_bytes / 1e9:4.1f} GB, "
            f"{whole.flops / 1e12:.1f} TFLOP: at least {seconds:.0f} s a step on its processor"
        )


if __name__ == "__main__":
    main()
