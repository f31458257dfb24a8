"""Frozen weights in eight bits are pages of the bundle's file: memory that the system can drop, and nobody's copy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.models import export

ROWS, WIDTH = 3001, 200
"""Bytes that end within a page."""


class Looked(nn.Module):
    """A table that does not learn, with a layer behind it that does not either, and a head that does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens).mean(1))))


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> StepBinary:
    torch.manual_seed(0)
    model = export(Looked(), (torch.randint(0, ROWS, (4, 6)),), input_names=("tokens",))
    spec = TrainingSpec.parse({"batch": 4, "precision": {"frozen": "int8"}})
    plan = SparsePlan.parse({"update": [{"parameters": ["head.*"]}]})
    bundle = compile_training(model, BuildSettings(plan, spec, load(native_target()), cache_dir=kernel_cache, jobs=1))
    assert set(bundle.manifest["frozen"]["errors"]) == {"embed.weight", "mix.weight"}
    return StepBinary.unpack(bundle, tmp_path_factory.mktemp("step"))


def data(binary: StepBinary) -> list[object]:
    random = np.random.default_rng(1)
    return binary.write_data({"tokens": random.integers(0, ROWS, (8, 6))}, random.integers(0, 10, 8))


def mapped(process: int, name: str) -> Iterator[dict[str, int]]:
    """What the system says of each mapping of a file of that name, in KiB."""
    own: dict[str, int] | None = None
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            if own is not None:
                yield own
            own = {} if line.endswith(name) else None
        elif own is not None and rest[-1] == "kB":
            own[first[:-1]] = int(rest[0])


def test_no_page_of_a_frozen_weight_is_a_copy(binary: StepBinary) -> None:
    words = ["train", "--weights", binary.weights, "--steps", 10**8, *data(binary)]
    with subprocess.Popen(
        [str(binary.folder / "bin/step"), *map(str, words)], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            next(line for line in running.stdout if '"step"' in line)  # once one is done, all is loaded
            found = list(mapped(running.pid, "weights.safetensors"))
        finally:
            running.kill()
    held = ROWS * WIDTH + WIDTH * WIDTH
    assert sum(one["Size"] for one in found) * 1024 > held - (64 << 10)
    assert sum(one["Rss"] for one in found) > 0
    assert not any(one["Anonymous"] or one["Swap"] for one in found), "a page was copied"


def test_a_file_that_cannot_be_mapped_is_read(binary: StepBinary) -> None:
    given, whole = data(binary), binary.checkpoint()
    losses, _ = binary.train(whole, 3, given)  # written anew, where bytes begin within a page
    events = binary.run("train", "--weights", binary.weights, "--steps", 3, "--order", "sequential", *given)
    assert losses == [event["loss"] for event in events if event["event"] == "step"]
