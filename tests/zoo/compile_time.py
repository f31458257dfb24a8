"""Processor seconds that a compile takes before its kernels, as models grow deeper; and how many kernels there are.

    python -m tests.zoo.compile_time             # the growth of a transformer and of a dense block
    python -m tests.zoo.compile_time --whole     # also a BERT-base and a DenseNet-121, kernels and all, with no cache

Time for each layer should not grow with their number, and kernels are those of one layer however many there are. In a
dense block each layer reads all before it: its file grows with the square of its layers, and so does the time, which is
why a dense net of ever more blocks of one size stands beside it. Seconds are the processor's, of this process and those
it starts, and other work on the machine makes them more.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import nn

from compiler.api import BuildSettings, compile_training
from compiler.kernels.spec import signature
from compiler.pipeline import walk
from compiler.program.program import Program
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import native_target
from tests.vision import models, transformers
from tests.zoo.entry import Calls, Draw, Entry, normal, padding, tokens
from tests.zoo.trials import TRIALS, export

DEPTHS = (6, 12, 24, 48)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.compile_time", description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="compile the two large models, kernels included")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, make in (("transformer", _encoder), ("dense block", _dense), ("dense net", _dense_net)):
        for depth in DEPTHS:
            _report(f"{name} of {depth} layers", make(depth), depth)
    if chosen.whole:
        for name, entry in WHOLE.items():
            _report_whole(name, entry())


def _bert(layers: int, draws: Mapping[str, Draw], batch: int, **sizes: int) -> Entry:
    def make() -> nn.Module:
        library = transformers()
        model = library.BertForSequenceClassification(library.BertConfig(num_hidden_layers=layers, **sizes))
        return Calls(model, tuple(draws), "logits")

    return Entry("bert", make, draws, batch=batch)


def _encoder(layers: int) -> Entry:
    draws = {"input_ids": tokens(100, 12), "attention_mask": padding(12)}
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    return _bert(layers, draws, 2, **sizes)


def _dense(layers: int) -> Entry:
    def make() -> nn.Module:
        return models().densenet.DenseNet(8, (layers,), 16, num_classes=5)

    return Entry("dense", make, {"input": normal(3, 32, 32)})


def _dense_net(layers: int) -> Entry:
    """Blocks of six layers, and between them what halves the channels; images stay as large as they are."""

    def make() -> nn.Module:
        densenet = models().densenet
        parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
        for _ in range(layers // 6):
            parts += [densenet._DenseBlock(6, 16, 4, 8, 0.0), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 16, 1)]
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    return Entry("dense_net", make, {"input": normal(3, 16, 16)})


def _densenet(pixels: int) -> Callable[[], Entry]:
    return lambda: Entry(
        "densenet121", lambda: models().densenet121(num_classes=10), {"input": normal(3, pixels, pixels)}, batch=8
    )


WHOLE: Mapping[str, Callable[[], Entry]] = {
    "BERT-base, 8 x 128": lambda: _bert(12, {"input_ids": tokens(1000, 128), "attention_mask": padding(128)}, 8),
    "DenseNet-121, 8 x 64 px": _densenet(64),
    "DenseNet-121, 8 x 224 px": _densenet(224),
    "DenseNet-121 of width 161, 8 x 224 px": lambda: Entry(
        "densenet121_wide",
        lambda: models().densenet.DenseNet(48, (6, 12, 24, 16), 96, num_classes=10),
        {"input": normal(3, 224, 224)},
        batch=8,
    ),
}


def _exported(entry: Entry) -> tuple[bytes, BuildSettings]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    example = tuple(draw(generator, entry.batch) for draw in entry.inputs.values())
    spec = TrainingSpec.parse({"batch": entry.batch, "threads": 2, "batch_norm": "frozen"})
    settings = BuildSettings(
        plan=SparsePlan.parse("full"), spec=spec, target=load(native_target()), cache_dir=None, jobs=2
    )
    return export(entry.make().eval(), entry, example, TRIALS[0]), settings


def _report(name: str, entry: Entry, depth: int) -> None:
    model, settings = _exported(entry)
    gc.collect()
    gc.freeze()  # what PyTorch left behind is no garbage of the compiler's, and looking through it none of its time
    started = last = time.process_time()
    stages, programs = {}, tuple[Program, ...]()
    for stage in walk(model, settings):
        stages[stage.name], last = time.process_time() - last, time.process_time()
        if stage.name == "place":
            assert isinstance(stage.product, tuple)
            programs = stage.product
        if stage.name == "memory":
            break
    total = last - started
    slowest = sorted(stages.items(), key=lambda item: -item[1])[:4]
    calls = [call for program in programs for call in program.calls]
    print(
        f"{name}: {total:.2f} s, {1e3 * total / depth:.1f} ms a layer"
        f" ({', '.join(f'{stage} {seconds:.2f}' for stage, seconds in slowest)});"
        f" {len(calls)} calls of {len({signature(call.spec) for call in calls})} kernels",
        flush=True,
    )


def _report_whole(name: str, entry: Entry) -> None:
    model, settings = _exported(entry)
    started, before = time.monotonic(), _processor_seconds()
    compile_training(model, settings)
    wall, (own, builders) = time.monotonic() - started, _processor_seconds()
    own, builders = own - before[0], builders - before[1]
    print(
        f"{name}: {wall:.0f} s of wall time with {settings.jobs} processes; of the processor {own:.0f} s, and"
        f" {builders:.0f} s in those that build kernels: {own + builders / settings.jobs:.0f} s on a quiet machine",
        flush=True,
    )


def _processor_seconds() -> tuple[float, float]:
    """Of this process, and of those that it started and that have ended."""
    used = os.times()
    return used.user + used.system, used.children_user + used.children_system


if __name__ == "__main__":
    main()
