"""The bench models as PyTorch definitions with seeded weights, and the sparse plan of each.

Norms of the convolutional nets are folded into their convolutions before export, so that every framework runs the same
layers; their statistics are calibrated first, so that activations keep the size that they have in a trained net.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks import held_out
from benchmarks.definitions import (
    CLASSES,
    DEEP_RATE,
    LAST_HALF_OF_12,
    TEXT,
    Model,
    Workload,
    image_net,
    image_transformer,
    layers,
    text_model,
)
from tests import vision
from tests.models import Logits, mobilenet_v2, randomize_norms, resnet50

INIT_STD = 0.02
"""Of biases: exporters merge equal vectors, which would hide which layer a bias belongs to."""


def build(name: str) -> nn.Module:
    """The seeded module of that name."""
    return seeded(MODELS[name])


def seeded(model: Model) -> nn.Module:
    """A seeded module in evaluation mode, norms folded into convolutions."""
    torch.manual_seed(0)
    module = model.build()
    randomize_norms(module)
    for parameter_name, parameter in module.named_parameters():
        if parameter_name.endswith(".bias"):
            nn.init.normal_(parameter, 0, INIT_STD)
    if any(isinstance(child, nn.BatchNorm2d) for child in module.modules()):
        calibrate(module, model)
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


def distilbert() -> nn.Module:
    """DistilBERT base with a head of two classes."""
    t = vision.transformers()
    return Logits(t.DistilBertForSequenceClassification(t.DistilBertConfig()), TEXT)


def bert() -> nn.Module:
    """BERT base with a head of two classes."""
    t = vision.transformers()
    return Logits(t.BertForSequenceClassification(t.BertConfig()), TEXT)


def llama() -> nn.Module:
    """LLaMA architecture, 8 layers of width 512."""
    t = vision.transformers()
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
    t = vision.transformers()
    return Logits(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), TEXT)


def vit_tiny() -> nn.Module:
    """ViT-tiny, 16 px patches."""
    t = vision.transformers()
    config = t.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    config.num_labels = CLASSES
    return Logits(t.ViTForImageClassification(config), ("pixel_values",))


def convnext() -> nn.Module:
    """ConvNeXt of four stages, as deep as the *tiny* one and half as wide."""
    library = vision.models().convnext
    widths = ((48, 96, 3), (96, 192, 3), (192, 384, 9), (384, None, 3))
    net: nn.Module = library.ConvNeXt([library.CNBlockConfig(*one) for one in widths], num_classes=CLASSES)
    return net


LLAMA_TOKENS, GPT2_TOKENS, BERT_TOKENS = 8000, 50257, 30522

MODELS: Mapping[str, Model] = {
    "mobilenet_v2": image_net(lambda: mobilenet_v2(1.0, CLASSES), 224, ("blocks.1[0-6]",), "expand.0"),
    "mobilenet_v2_035": image_net(lambda: mobilenet_v2(0.35, CLASSES), 128, ("blocks.1[0-6]",), "expand.0"),
    "resnet50": image_net(
        lambda: resnet50(64, CLASSES), 224, ("layers.[89]", "layers.1[0-5]"), "body.0", "fc", DEEP_RATE
    ),
    "distilbert": text_model(
        distilbert,
        BERT_TOKENS,
        layers("model.distilbert.transformer.layer", ("3", "4", "5"), ("attention", "ffn.lin1")),
        classes=2,
        heads=("model.pre_classifier.*", "model.classifier.*"),
    ),
    "bert": text_model(
        bert,
        BERT_TOKENS,
        layers(
            "model.bert.encoder.layer",
            LAST_HALF_OF_12,
            ("attention.self", "attention.output.dense", "intermediate.dense"),
        ),
        classes=2,
    ),
    "llama": text_model(
        llama,
        LLAMA_TOKENS,
        layers("model.model.layers", ("4", "5", "6", "7"), ("self_attn", "mlp.gate_proj", "mlp.up_proj")),
        positions=256,
        heads=("model.lm_head.*",),
    ),
    "convnext": image_net(convnext, 224, ("features.5.[5-8]", "features.7.*"), "block.3"),
    "vit_tiny": image_transformer(vit_tiny, "model.vit.layers"),
    # The output layer is the embedding table: training it would send the gradient through every block.
    "gpt2": text_model(
        gpt2, GPT2_TOKENS, layers("model.transformer.h", LAST_HALF_OF_12, ("attn", "mlp.c_fc")), heads=()
    ),
    **held_out.MODELS,
}

WORKLOADS: Mapping[str, Workload] = {
    "mobilenet_v2_b8": Workload("mobilenet_v2", 8),
    "mobilenet_v2_b1": Workload("mobilenet_v2", 1),
    "mobilenet_v2_035_b8": Workload("mobilenet_v2_035", 8),
    "resnet50_b4": Workload("resnet50", 4),
    "convnext_b4": Workload("convnext", 4),
    "distilbert_b4": Workload("distilbert", 4),
    "bert_b2": Workload("bert", 2),
    "vit_tiny_b4": Workload("vit_tiny", 4),
    "gpt2_b1": Workload("gpt2", 1),
    "llama_b1": Workload("llama", 1),
    **held_out.WORKLOADS,
}
