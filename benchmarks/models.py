"""The bench models as PyTorch definitions with seeded weights, and the sparse plan of each.

Norms of the convolutional nets are folded into their convolutions before export, so that every framework runs the same
layers; their statistics are calibrated first, so that activations keep the size that they have in a trained net.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tests.models import InvertedResidualNet, Logits, mobilenet_v2, randomize_norms, resnet50
from tests.vision import transformers

Feeds = dict[str, NDArray[np.float32] | NDArray[np.int64]]
CLASSES = 1000
IMAGE_RATE, DEEP_RATE = 1e-5, 3e-7
"""Learning rates of image nets. Fresh deep ones have gradients so large that rounding grows in every step: at 1e-5, the
losses of two layouts of PyTorch's ResNet-50 are 1e-3 apart after five steps, and could not show that work is the same.
"""
INIT_STD = 0.02
"""Of biases: exporters merge equal vectors, which would hide which layer a bias belongs to."""


@dataclass(frozen=True)
class Model:
    """A bench model: its module, a batch of inputs and labels, and what its sparse plan trains.

    `sparse` holds (globs of parameter names, kind) as in a plan's rules: for a convolutional net the biases and the
    first point-wise convolution of the last blocks, for a transformer the attention and first feed-forward layers of
    the last half of the blocks; and the classifier.
    """

    build: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, int], Feeds]
    label_shape: tuple[int, ...]
    labels_below: int
    sparse: Sequence[tuple[tuple[str, ...], str]]
    is_image: bool = False
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Workload:
    """A model at a batch size; `in_table`: TensorFlow, JAX and ONNX Runtime are compared too."""

    model: str
    batch: int
    in_table: bool = True


def build(name: str) -> nn.Module:
    """The seeded module in evaluation mode, norms folded into convolutions."""
    torch.manual_seed(0)
    module = MODELS[name].build()
    randomize_norms(module)
    for parameter_name, parameter in module.named_parameters():
        if parameter_name.endswith(".bias"):
            nn.init.normal_(parameter, 0, INIT_STD)
    if any(isinstance(child, nn.BatchNorm2d) for child in module.modules()):
        calibrate(module, MODELS[name])
        fold_norms(module)
    return module.eval()


def calibrate(module: nn.Module, model: Model) -> None:
    """Set the norms' statistics to those of a random batch."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d):
            child.momentum = None
            child.reset_running_stats()
    feeds = model.draw(np.random.default_rng(1), 4)
    module.train()
    with torch.no_grad():
        module(*(torch.from_numpy(array) for array in feeds.values()))
    module.eval()


def fold_norms(module: nn.Module) -> None:
    """Fold each batch norm into the convolution declared before it, in place."""
    names = list(module._modules)
    for name, following in itertools.pairwise(names):
        convolution, norm = module._modules[name], module._modules[following]
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            module._modules[name] = fuse_conv_bn_eval(convolution, norm)
            module._modules[following] = nn.Identity()
    for child in module.children():
        fold_norms(child)


def efficientnet_lite0() -> nn.Module:
    """Source: EfficientNet-Lite (TensorFlow TPU models): no squeeze-and-excite, ReLU6, stem and head unscaled."""
    stages = (
        (3, 1, 16, 1, 1),
        (3, 6, 24, 2, 2),
        (5, 6, 40, 2, 2),
        (3, 6, 80, 3, 2),
        (5, 6, 112, 3, 1),
        (5, 6, 192, 4, 2),
        (3, 6, 320, 1, 1),
    )  # kernel, expansion, channels, repeats, first stride
    blocks = [
        (kernel, expansion, channels, stride if i == 0 else 1)
        for kernel, expansion, channels, repeats, stride in stages
        for i in range(repeats)
    ]
    return InvertedResidualNet(32, blocks, 1280, CLASSES)


def distilbert() -> nn.Module:
    """DistilBERT base with a head of two classes."""
    t = transformers()
    return Logits(t.DistilBertForSequenceClassification(t.DistilBertConfig()), TEXT)


def bert() -> nn.Module:
    """BERT base with a head of two classes."""
    t = transformers()
    return Logits(t.BertForSequenceClassification(t.BertConfig()), TEXT)


def llama() -> nn.Module:
    """LLaMA architecture, 8 layers of width 512."""
    t = transformers()
    config = t.LlamaConfig(
        vocab_size=LLAMA_TOKENS,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=1376,
        use_cache=False,
    )
    return Logits(t.LlamaForCausalLM(config), TEXT)


def gpt2() -> nn.Module:
    """GPT-2 small; the output layer is the embedding table."""
    t = transformers()
    return Logits(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), TEXT)


def vit_tiny() -> nn.Module:
    """ViT-tiny, 16 px patches."""
    t = transformers()
    config = t.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    config.num_labels = CLASSES
    return Logits(t.ViTForImageClassification(config), ("pixel_values",))


def _images(size: int, name: str = "input") -> Callable[[np.random.Generator, int], Feeds]:
    return lambda rng, batch: {name: rng.standard_normal((batch, 3, size, size)).astype(np.float32)}


def _tokens(positions: int, below: int) -> Callable[[np.random.Generator, int], Feeds]:
    def draw(rng: np.random.Generator, batch: int) -> Feeds:
        shape = (batch, positions)
        return {"input_ids": rng.integers(0, below, shape), "attention_mask": np.ones(shape, np.int64)}

    return draw


def _image_net(build_module: Callable[[], nn.Module], size: int, blocks: str, first: str) -> Model:
    """`blocks`: glob of the trained blocks; `first`: their first point-wise convolution."""
    sparse = (((f"{blocks}.*",), "bias"), ((f"{blocks}.{first}.weight",), "weight"), ((CLASSIFIER,), "any"))
    return Model(build_module, _images(size), (), CLASSES, sparse, is_image=True, learning_rate=IMAGE_RATE)


TEXT = ("input_ids", "attention_mask")
LLAMA_TOKENS, GPT2_TOKENS, BERT_TOKENS = 8000, 50257, 30522
CLASSIFIER = "classifier.*"
LAST_HALF_OF_12 = ("6", "7", "8", "9", "10", "11")


def _layers(stem: str, numbers: Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{stem}.{number}.{part}.*" for number in numbers for part in parts)


MODELS: Mapping[str, Model] = {
    "mobilenet_v2": _image_net(lambda: mobilenet_v2(1.0, CLASSES), 224, "blocks.1[0-6]", "expand.0"),
    "mobilenet_v2_035": _image_net(lambda: mobilenet_v2(0.35, CLASSES), 128, "blocks.1[0-6]", "expand.0"),
    "resnet50": Model(
        lambda: resnet50(64, CLASSES),
        _images(224),
        (),
        CLASSES,
        (
            (("layers.[89].*", "layers.1[0-5].*"), "bias"),
            (("layers.[89].body.0.weight", "layers.1[0-5].body.0.weight"), "weight"),
            (("fc.*",), "any"),
        ),
        is_image=True,
        learning_rate=DEEP_RATE,
    ),
    "distilbert": Model(
        distilbert,
        _tokens(128, BERT_TOKENS),
        (),
        2,
        (
            (_layers("model.distilbert.transformer.layer", ("3", "4", "5"), ("attention", "ffn.lin1")), "any"),
            (("model.pre_classifier.*", "model.classifier.*"), "any"),
        ),
    ),
    "bert": Model(
        bert,
        _tokens(128, BERT_TOKENS),
        (),
        2,
        (
            (
                _layers(
                    "model.bert.encoder.layer",
                    LAST_HALF_OF_12,
                    ("attention.self", "attention.output.dense", "intermediate.dense"),
                ),
                "any",
            ),
            (("model.classifier.*",), "any"),
        ),
    ),
    "llama": Model(
        llama,
        _tokens(256, LLAMA_TOKENS),
        (256,),
        LLAMA_TOKENS,
        (
            (
                _layers("model.model.layers", ("4", "5", "6", "7"), ("self_attn", "mlp.gate_proj", "mlp.up_proj")),
                "any",
            ),
            (("model.lm_head.*",), "any"),
        ),
    ),
    "efficientnet_lite0": Model(
        efficientnet_lite0,
        _images(224),
        (),
        CLASSES,
        (
            (("blocks.9.*", "blocks.1[0-5].*"), "bias"),
            (("blocks.9.expand.0.weight", "blocks.1[0-5].expand.0.weight"), "weight"),
            ((CLASSIFIER,), "any"),
        ),
        is_image=True,
        learning_rate=IMAGE_RATE,
    ),
    "vit_tiny": Model(
        vit_tiny,
        _images(224, "pixel_values"),
        (),
        CLASSES,
        (
            (_layers("model.vit.layers", LAST_HALF_OF_12, ("attention", "mlp.fc1")), "any"),
            (("model.classifier.*",), "any"),
        ),
        is_image=True,
        learning_rate=IMAGE_RATE,
    ),
    # The output layer is the embedding table: training it would send the gradient through every block.
    "gpt2": Model(
        gpt2,
        _tokens(128, GPT2_TOKENS),
        (128,),
        GPT2_TOKENS,
        ((_layers("model.transformer.h", LAST_HALF_OF_12, ("attn", "mlp.c_fc")), "any"),),
    ),
}

WORKLOADS: Mapping[str, Workload] = {
    "mobilenet_v2_b8": Workload("mobilenet_v2", 8),
    "mobilenet_v2_b1": Workload("mobilenet_v2", 1),
    "mobilenet_v2_035_b8": Workload("mobilenet_v2_035", 8),
    "resnet50_b4": Workload("resnet50", 4),
    "distilbert_b4": Workload("distilbert", 4),
    "bert_b2": Workload("bert", 2),
    "llama_b1": Workload("llama", 1),
    "efficientnet_lite0_b8": Workload("efficientnet_lite0", 8, in_table=False),
    "vit_tiny_b4": Workload("vit_tiny", 4, in_table=False),
    "gpt2_b1": Workload("gpt2", 1, in_table=False),
}
