"""What are frozen weights in few bits worth? LLaMA-class models with adapters; f32, int8, int4, and int8
multiplied as such take turns in one run.

    python -m benchmarks.frozen --shape 110M [--layers 12] [--tokens 256] [--threads 2] [--rounds 3] [--limit-mb 1200]

Random weights; LoRA of rank 8 on q_proj and v_proj, SGD, one sequence a step. `--layers` builds so many of the shape's
layers. Medians of rounds; bundle, planned memory, and of the running process its most resident memory, and how much of
that is no page of a file. A process that is measured here is of the step alone. `--limit-mb` has the kernel hold it
to so much memory, pages of files included, as on a board that has no more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.prepare import BENCH
from benchmarks.sides import native_target
from compiler.api import BuildSettings, compile_training
from compiler.cache_folder import cache_folder
from compiler.external import External
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.spec.precision import Frozen
from compiler.targets import CpuTarget, load_cpu
from device_agents.job import cgroup
from tests.compiler.agreement.step_binary import StepBinary
from tests.kernel_harness.machine import runs

VOCABULARY = 32000
DATA = "part.onnx.data"


@dataclass(frozen=True)
class Shape:
    """Of a LLaMA."""

    width: int
    layers: int
    heads: int
    groups: int
    inner: int


SHAPES = {"110M": Shape(768, 12, 12, 12, 2048), "1.1B": Shape(2048, 22, 32, 4, 5632)}
PLAN = {"name": "lora", "lora": {"targets": ["q_proj", "v_proj"], "rank": 8, "alpha": 16}}
KINDS: Mapping[str, Mapping[str, str]] = {
    **{kind: {"frozen": kind} for kind in get_args(Frozen)},
    "int8-products": {"frozen": "int8", "frozen_products": "int8"},
}
STEPS = 4


@dataclass(frozen=True)
class Exported:
    """An ONNX file, and its weights in a file beside it."""

    model: bytes
    external: External


def exported(shape: Shape, layers: int, tokens: int, vocabulary: int = VOCABULARY) -> Exported:
    """A seeded module of so many layers, kept between runs."""
    folder = BENCH / "frozen" / f"llama-{shape.width}-{layers}-{tokens}-{vocabulary}"
    file = folder / "model.onnx"
    if not file.exists():
        import torch

        from tests import vision
        from tests.models import Logits

        t = vision.transformers()
        config = t.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=shape.width,
            num_hidden_layers=layers,
            intermediate_size=shape.inner,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.groups,
            use_cache=False,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        module = Logits(t.LlamaForCausalLM(config), ("input_ids",)).eval()
        example = torch.randint(0, vocabulary, (1, tokens))
        names = {"input_names": ["input_ids"], "output_names": ["logits"]}
        program = torch.onnx.export(module, (example,), dynamo=True, opset_version=18, verbose=False, **names)
        assert program is not None
        folder.mkdir(parents=True, exist_ok=True)
        program.save(folder / "part.onnx", external_data=True)
        (folder / "part.onnx").rename(file)
    return Exported(file.read_bytes(), {DATA: np.memmap(folder / DATA, np.uint8, "r").data})


def target_of(kind: str) -> CpuTarget:
    """This machine, with instructions for products of bytes where it has them and they are asked for."""
    with_bytes = load_cpu("x86-64-v4-vnni")
    return with_bytes if kind == "int8-products" and runs(with_bytes) else load_cpu(native_target())


def built(file: Exported, kind: str, threads: int, tokens: int, name: str) -> list[str]:
    """Build a step and say what it takes; its command line."""
    spec = {
        "batch": 1,
        "threads": threads,
        "precision": KINDS[kind],
        "optimizer": {"kind": "sgd", "learning_rate": 1e-3},
    }
    settings = BuildSettings(
        SparsePlan.parse(PLAN), TrainingSpec.parse(spec), target_of(kind), cache_dir=cache_folder()
    )
    bundle = compile_training(file.model, settings, file.external)
    folder = BENCH / "frozen" / f"{name}-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    memory = bundle.manifest["memory"]
    told = {"bundle": bundle.size_bytes, "weights": memory["weights_bytes"], "arena": memory["arena_bytes"]}
    print(f"  {kind:13} " + ", ".join(f"{what} {size / 1e6:,.1f} MB" for what, size in told.items()), flush=True)
    for warning in bundle.warnings:
        print(f"        {warning}")
    binary = StepBinary.unpack(bundle, folder)
    random = np.random.default_rng(0)
    rows = random.integers(0, VOCABULARY, (4, tokens))
    data = binary.write_data({"input_ids": rows}, rows)
    words = ["train", "--weights", binary.weights, "--threads", threads, *data]
    return [str(binary.folder / "bin/step"), *map(str, words)]


@contextmanager
def limited(limit_mb: int, files: Iterable[Path]) -> Iterator[list[str]]:
    """The start of a command line whose process is held to a limit, and reads `files` anew; nothing without one (0)."""
    parent = cgroup.prepare() if limit_mb else None
    group = parent.make(f"frozen-{os.getpid()}", limit_mb * 10**6) if parent else None
    if limit_mb and group is None:
        sys.exit("--limit-mb: this system lets us make no memory cgroup; run it as root")
    if group is None:
        yield []
        return
    for path in files:  # pages that others brought into memory would be counted as theirs
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        joins = "".join(f"echo 0 > {path} && " for path in group.joined_by)
        yield ["/bin/sh", "-c", f'{joins}exec "$@"', "limited"]
    finally:
        group.remove()


def ran(command: Sequence[str]) -> tuple[float, float, float]:
    """Milliseconds of a step (the first one left out), and MB: most resident memory, and what is no file's of it."""
    with subprocess.Popen([*command, "--steps", str(STEPS + 1)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        times: list[float] = []
        resident = own = 0.0
        for line in running.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] != "step":
                continue
            times.append(event["us"] / 1e3)
            status = Path(f"/proc/{running.pid}/status").read_text().splitlines()
            said = {row.split(":")[0]: row.split()[1] for row in status if row.endswith("kB")}
            resident = max(resident, int(said.get("VmHWM", 0)) * 1024 / 1e6)
            own = max(own, int(said.get("RssAnon", 0)) * 1024 / 1e6)
    if running.returncode:
        sys.exit(
            f"the step ended with {running.returncode} after {len(times)} steps, as {resident:,.0f} MB were resident"
        )
    return statistics.median(times[1:]), resident, own


def main() -> None:
    """Every kind of one shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frozen", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="110M")
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the shape has")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-mb", type=int, default=0, help="of memory for each process; 0: no limit")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    shape = SHAPES[asked.shape]
    layers = asked.layers or shape.layers
    print(f"LLaMA of {layers} layers x {shape.width}, {asked.tokens} tokens, {asked.threads} thread(s), LoRA of rank 8")
    file = exported(shape, layers, asked.tokens)
    name = f"{asked.shape}-{layers}-{asked.tokens}"
    sides = {kind: built(file, kind, asked.threads, asked.tokens, name) for kind in asked.kinds}
    with limited(asked.limit_mb, (BENCH / "frozen").glob(f"{name}-*/weights.safetensors")) as start:
        rounds = [{kind: ran([*start, *words]) for kind, words in sides.items()} for _ in range(asked.rounds)]
    for kind in asked.kinds:
        step, resident, own = (statistics.median(one[kind][i] for one in rounds) for i in range(3))
        print(
            f"  {kind:13} {step:9.1f} ms a step, {asked.tokens / step * 1e3:7.1f} tokens/s, "
            f"at most {resident:,.0f} MB resident, {own:,.0f} MB of it no file's"
        )
    for kind in (one for one in asked.kinds if one != "f32" and "f32" in asked.kinds):
        ratios = sorted(one["f32"][0] / one[kind][0] for one in rounds)
        print(f"  f32 / {kind}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
