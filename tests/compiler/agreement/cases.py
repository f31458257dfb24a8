"""The model families, plans and data that the compiled step is compared on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from compiler.spec.documents import SparsePlan
from examples.models import MODELS
from tests.compiler.agreement.graph_reference import GraphReference
from tests.compiler.agreement.harness import Case
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.frontend.authored import CASES as AUTHORED
from tests.models import FAMILIES, build, export, randomize_norms, resnet50

SGD: dict[str, object] = {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.9}
ADAMW: dict[str, object] = {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01}


def images(resolution: int, channels: int = 3, name: str = "input") -> Callable[..., dict[str, np.ndarray]]:
    """Normal pixels, NCHW."""

    def draw(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        return {name: rng.normal(size=(batch, channels, resolution, resolution)).astype(np.float32)}

    return draw


def classes(count: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Class labels."""
    return lambda rng, batch: rng.integers(0, count, batch)


def vectors(features: int) -> Callable[..., dict[str, np.ndarray]]:
    """Normal features."""
    return lambda rng, batch: {"input": rng.normal(size=(batch, features)).astype(np.float32)}


def plan(text: str) -> SparsePlan:
    """A preset's name or YAML."""
    return SparsePlan.parse(text)


MOBILENET_SPARSE = """
name: sparse
update:
  - parameters: ["blocks.1[0-6].expand.weight"]
  - parameters: ["blocks.1[0-6].*.bias"]
  - parameters: ["classifier.*"]
"""
MOBILENET_RATIO = """
name: quarter
update:
  - {parameters: ["blocks.1[2-6].expand.weight"], ratio: 0.25}
  - {parameters: ["blocks.15.depthwise.weight"], ratio: 0.5}
  - {parameters: ["classifier.weight"], ratio: 0.125}
"""


def ours(model: bytes, *settings: Any, **more: Any) -> Case:
    """A case of a file that our own author code wrote."""
    return Case(model, GraphReference.of(model), *settings, **more)


def _mobilenet(text: str, resolution: int = 64) -> Case:
    model = MODELS["mobilenet_v2"](width=0.35, resolution=resolution, classes=10)
    return ours(model, plan(text), 4, images(resolution), classes(10))


def _mcunet(text: str) -> Case:
    return ours(MODELS["mcunet"](resolution=64), plan(text), 2, images(64), classes(10))


def _resnet(name: str, text: str) -> Case:
    return ours(MODELS[name](resolution=32, classes=10, width=16), plan(text), 2, images(32), classes(10))


def _frozen_norms(text: str) -> Case:
    """BatchNorm with frozen statistics and trained scale and shift."""
    model = MODELS["resnet18"](resolution=32, classes=10, width=16, batch_norm=True)
    return ours(model, plan(text), 2, images(32), classes(10), batch_norm="frozen")


def _mlp(text: str, optimizer: dict[str, object]) -> Case:
    return ours(
        MODELS["mlp"](), plan(text), 8, vectors(64), classes(10), optimizer, last_layer=("fc3.weight", "fc3.bias")
    )


def _digits_cnn(text: str) -> Case:
    return ours(MODELS["small_cnn"](), plan(text), 4, images(8, 1), classes(10))


def _encoder(text: str, optimizer: dict[str, object]) -> Case:
    def tokens(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        return {"tokens": rng.integers(0, 100, (batch, 16))}

    model = MODELS["transformer_encoder"](tokens=100, positions=16, width=32)
    return ours(model, plan(text), 4, tokens, classes(2), optimizer)


def seeded(module: nn.Module) -> nn.Module:
    """The module with norms away from 0 and 1. (An 8-wide ResNet-50's gradients are noise-dominated in float32.)"""
    randomize_norms(module)
    return module.eval()


def _exported(family: str, text: str, batch: int = 2) -> Case:
    """A model that PyTorch's exporter wrote; batch norms folded by it, and by the reference on its own."""
    torch.manual_seed(3)
    made = FAMILIES[family]
    module = build(family) if family != "resnet50" else seeded(resnet50(width=16))
    plain = family in ("mobilenet_v2", "mcunet")  # PyTorch's default makes the gradients of these vanish
    for layer in module.modules():
        if plain and isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    model = export(module, made.inputs(batch), input_names=made.input_names)

    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        torch.manual_seed(int(rng.integers(1 << 31)))
        return dict(zip(made.input_names, (tensor.numpy() for tensor in made.inputs(batch)), strict=True))

    return Case(model, ModuleReference.folded(module, made.input_names), plan(text), batch, feeds, classes(4))


def _authored(name: str) -> Case:
    """A module that hides something from exporters (buffers, scalars, copies), exported without optimization."""
    made = AUTHORED[name]
    module = made.module()
    model = export(module, made.batches(2), exporter="dynamo-unoptimized")
    shape = made.batches(1)[0].shape[1:]

    def feeds(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        return {"input": rng.normal(size=(batch, *shape)).astype(np.float32)}

    return Case(model, ModuleReference.of(module), plan("full"), 4, feeds, classes(3))


RESNET_SPARSE = """
name: sparse
update:
  - {parameters: ["layer[34].*.conv1.weight"], ratio: 0.5}
  - parameters: ["layer[34].*.bias", "fc.*"]
"""
MCUNET_SPARSE = """
name: sparse
update:
  - parameters: ["blocks.[6-9].expand.weight", "blocks.1?.expand.weight"]
  - parameters: ["blocks.[6-9].*.bias", "blocks.1?.*.bias", "classifier.*"]
"""
MLP_SPARSE = """
name: sparse
preset: last-layer
update:
  - {parameters: ["*.weight"], ratio: 0.25}
"""
ENCODER_SPARSE = """
name: sparse
update:
  - parameters: ["layers.1.*.weight", "classifier.*"]
    kind: weight
  - {parameters: ["layers.1.*"], kind: bias}
"""

CASES: dict[str, Callable[[], Case]] = {
    "mobilenet-full": partial(_mobilenet, "full"),
    "mobilenet-sparse": partial(_mobilenet, MOBILENET_SPARSE),
    "mobilenet-bias-only": partial(_mobilenet, "bias-only"),
    "mobilenet-ratio": partial(_mobilenet, MOBILENET_RATIO, 32),
    "mcunet-full": partial(_mcunet, "full"),
    "mcunet-sparse": partial(_mcunet, MCUNET_SPARSE),
    "resnet18-full": partial(_resnet, "resnet18", "full"),
    "resnet18-sparse": partial(_resnet, "resnet18", RESNET_SPARSE),
    "resnet18-bias-only": partial(_resnet, "resnet18", "bias-only"),
    "resnet18-frozen-norms": partial(_frozen_norms, "full"),
    "resnet50-bias-only": partial(_resnet, "resnet50", "bias-only"),
    "resnet50-sparse": partial(_resnet, "resnet50", RESNET_SPARSE),
    "mlp-full": partial(_mlp, "full", SGD),
    "mlp-sparse": partial(_mlp, MLP_SPARSE, SGD),
    "mlp-bias-only": partial(_mlp, "bias-only", ADAMW),
    "mlp-last-layer-adamw": partial(_mlp, "last-layer", ADAMW),
    "digits-cnn-full": partial(_digits_cnn, "full"),
    "encoder-full": partial(_encoder, "full", SGD),
    "encoder-full-adamw": partial(_encoder, "full", ADAMW),
    "encoder-bias-only": partial(_encoder, "bias-only", SGD),
    "encoder-sparse": partial(_encoder, ENCODER_SPARSE, SGD),
    "exported-mobilenet-full": partial(_exported, "mobilenet_v2", "full"),
    "exported-mcunet-bias-only": partial(_exported, "mcunet", "bias-only"),
    "exported-resnet18-full": partial(_exported, "resnet18", "full"),
    "exported-resnet50-full": partial(_exported, "resnet50", "full"),
    "exported-mlp-full": partial(_exported, "mlp", "full"),
    "exported-encoder-full": partial(_exported, "transformer_encoder", "full"),
    "authored-standardised-input": partial(_authored, "standardised-input"),
    "authored-fresh-encoder": partial(_authored, "fresh-encoder"),
    "authored-rezero": partial(_authored, "rezero"),
}
