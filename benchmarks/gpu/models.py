"""The models whose steps are measured and checked on a GPU.

They are the repository's own definitions, but for those of transformers, which must be installed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from benchmarks import models as bench
from benchmarks.definitions import CLASSES, DEEP_RATE, TEXT, Feeds, Model, Rules, image_net, layers
from benchmarks.gpu.seeded import Drawn
from tests.models import TransformerEncoder, mlp, resnet18

POSITIONS, TOKENS = 128, 8192
_RATE = 0.01


@dataclass(frozen=True)
class GpuModel:
    """A bench model, and what a sample of each of its inputs is."""

    model: Model
    inputs: Mapping[str, Drawn]

    @property
    def labels(self) -> Drawn:
        """What a sample's labels are."""
        return Drawn(self.model.label_shape, self.model.labels_below)

    def build(self) -> nn.Module:
        """The module, norms folded into convolutions."""
        return bench.seeded(self.model)


def learn(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of those names, which alone ask for gradients. Raises: LookupError if the module has no such."""
    parameters = dict(module.named_parameters())
    unknown = sorted(set(names) - set(parameters))
    if unknown:
        raise LookupError(f"the module has no parameter {unknown[0]!r}")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in set(names))
    return {name: parameters[name] for name in names}


def encoder() -> nn.Module:
    """A pre-norm encoder as large as the small ones that are used: six layers of width 384."""
    return TransformerEncoder(TOKENS, POSITIONS, width=384, heads=6, layers=6, classes=CLASSES)


def _fed(build: Callable[[], nn.Module], inputs: Mapping[str, Drawn], classes: int, sparse: Rules) -> GpuModel:
    """A model of no bench's."""

    def draw(rng: np.random.Generator, batch: int) -> Feeds:
        return {name: drawn.batch(name, batch) for name, drawn in inputs.items()}

    return GpuModel(Model(build, draw, (), classes, sparse, learning_rate=_RATE), inputs)


def _text(model: Model, positions: int, below: int) -> GpuModel:
    """Texts without padding."""
    ids, mask = TEXT
    return GpuModel(model, {ids: Drawn((positions,), below), mask: Drawn((positions,), below=2, low=1)})


def _image(model: Model) -> GpuModel:
    return GpuModel(model, {"input": Drawn((3, 224, 224))})


_HALF = layers("layers", ("3", "4", "5"), ("query", "key", "value", "output", "up"))
MODELS: Mapping[str, GpuModel] = {
    "mobilenet_v2": _image(bench.MODELS["mobilenet_v2"]),
    "resnet18": _image(
        image_net(lambda: resnet18(64, CLASSES), 224, ("layers.[4-7]",), "body.0", "fc", learning_rate=DEEP_RATE)
    ),
    "encoder": _fed(encoder, {"tokens": Drawn((POSITIONS,), TOKENS)}, CLASSES, (((*_HALF, "classifier.*"), "any"),)),
    "llama": _text(bench.MODELS["llama"], 256, bench.LLAMA_TOKENS),
    "bert": _text(bench.MODELS["bert"], 128, bench.BERT_TOKENS),
    "mlp": _fed(mlp, {"input": Drawn((64,))}, 10, ((("4.*",), "any"),)),
}
MEASURED = tuple(name for name in MODELS if name != "mlp")
"""The last is for tests: three small layers."""
