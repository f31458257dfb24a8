"""Example models as ONNX files with seeded weights: `python -m examples.models mobilenet_v2 --out model.onnx`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from examples.models.cnn import small_cnn
from examples.models.mcunet import mcunet
from examples.models.mobilenet import mobilenet_v2
from examples.models.perceptron import mlp
from examples.models.resnet import resnet18, resnet50
from examples.models.transformer import transformer_encoder

MODELS: Mapping[str, Callable[..., bytes]] = {
    "mcunet": mcunet,
    "mlp": mlp,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "small_cnn": small_cnn,
    "transformer_encoder": transformer_encoder,
}
