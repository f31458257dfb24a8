"""Model families as PyTorch modules, and their exports to ONNX by both of PyTorch's exporters.

Own definitions, so that no test needs torchvision; transformers' models come from tiny random configurations.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from tests.vision import transformers

Exporter = Literal["dynamo", "dynamo-unoptimized", "torchscript"]

# ------------------------------------------------------------------------------------------------------ conv networks


def _conv_norm(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if act:
        layers.append(nn.ReLU6())
    return nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    """Expand 1x1, depth-wise, project 1x1; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = _conv_norm(inputs, hidden, 1) if expansion != 1 else nn.Identity()
        self.depthwise = _conv_norm(hidden, hidden, kernel, stride=stride, groups=hidden)
        self.project = _conv_norm(hidden, outputs, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class InvertedResidualNet(nn.Module):
    """Stem, inverted residuals (kernel, expansion, outputs, stride), optional head, global pool, classifier."""

    def __init__(self, stem: int, blocks: list[tuple[int, int, int, int]], head: int, classes: int) -> None:
        super().__init__()
        self.stem = _conv_norm(3, stem, 3, stride=2)
        layers, channels = [], stem
        for kernel, expansion, outputs, stride in blocks:
            layers.append(InvertedResidual(channels, outputs, kernel, expansion, stride))
            channels = outputs
        self.blocks = nn.Sequential(*layers)
        self.head = _conv_norm(channels, head, 1) if head else nn.Identity()
        self.classifier = nn.Linear(head or channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(self.stem(x)))
        return self.classifier(x.mean((2, 3)))


def mobilenet_v2(width: float = 0.35, classes: int = 10) -> nn.Module:
    """MobileNetV2; 17 inverted residuals with the published widths times `width`."""
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    blocks = []
    for expansion, outputs, repeats, stride in stages:
        channels = max(8, int(outputs * width + 4) // 8 * 8)
        blocks += [(3, expansion, channels, stride if i == 0 else 1) for i in range(repeats)]
    return InvertedResidualNet(max(8, int(32 * width + 4) // 8 * 8), blocks, int(1280 * max(width, 0.25)), classes)


def mcunet(classes: int = 10) -> nn.Module:
    """Inverted residuals with depth-wise kernels of 3, 5 and 7."""
    blocks = [(3, 1, 8, 1), (7, 4, 16, 2), (3, 3, 16, 1), (5, 5, 24, 2), (7, 4, 24, 1), (5, 5, 40, 2), (3, 4, 40, 1)]
    return InvertedResidualNet(16, blocks, 0, classes)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, or the 1x1, 3x3, 1x1 bottleneck."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        kernels = (3, 3) if inner == outputs else (1, 3, 1)
        widths = (inputs, inner, outputs) if len(kernels) == 2 else (inputs, inner, inner, outputs)
        strided = 0 if len(kernels) == 2 else 1
        layers: list[nn.Module] = []
        for i, kernel in enumerate(kernels):
            step = stride if i == strided else 1
            layers += [nn.Conv2d(widths[i], widths[i + 1], kernel, step, kernel // 2, bias=False)]
            layers += [nn.BatchNorm2d(widths[i + 1]), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.downsample(x))


class ResNet(nn.Module):
    """Stem, max pool, four stages, global pool, classifier."""

    def __init__(self, repeats: tuple[int, ...], width: int, expansion: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers, channels = [], width
        for stage, count in enumerate(repeats):
            inner = width << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(ResidualBlock(channels, inner, inner * expansion, stride))
                channels = inner * expansion
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.pool(self.layers(x)), 1))


def resnet18(width: int = 16, classes: int = 10) -> nn.Module:
    """ResNet-18."""
    return ResNet((2, 2, 2, 2), width, 1, classes)


def resnet50(width: int = 8, classes: int = 10) -> nn.Module:
    """ResNet-50."""
    return ResNet((3, 4, 6, 3), width, 4, classes)


# ------------------------------------------------------------------------------------------------- mlp and transformer


def mlp(features: int = 64, hidden: int = 32, classes: int = 10) -> nn.Module:
    """Three fully connected layers."""
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


class EncoderLayer(nn.Module):
    """Pre-norm attention by MatMul and Softmax, then a Gelu feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        y = self.norm1(x)
        split = (batch, positions, self.heads, width // self.heads)
        q, k, v = (layer(y).reshape(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5, dim=-1)
        x = x + self.output((weights @ v).transpose(1, 2).reshape(batch, positions, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class TransformerEncoder(nn.Module):
    """Token ids [batch, positions] -> logits [batch, classes]."""

    def __init__(self, tokens: int, positions: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(1, positions, width) * 0.5)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.embed(tokens) + self.position)
        return self.classifier(self.norm(x).mean(1))


def transformer_encoder(tokens: int = 100, positions: int = 16, width: int = 32, classes: int = 4) -> nn.Module:
    """A small pre-norm encoder with two layers and four heads."""
    return TransformerEncoder(tokens, positions, width, 4, 2, classes)


# ------------------------------------------------------------------------------------------------------- the families


@dataclass(frozen=True)
class Family:
    """A model family: its factory and how to draw a batch of inputs, in the order of `input_names`."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    input_names: tuple[str, ...] = ("input",)


def _images(size: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda batch: (torch.randn(batch, 3, size, size),)


FAMILIES: Mapping[str, Family] = {
    "mobilenet_v2": Family(mobilenet_v2, _images(32)),
    "mcunet": Family(mcunet, _images(32)),
    "resnet18": Family(resnet18, _images(32)),
    "resnet50": Family(resnet50, _images(32)),
    "mlp": Family(mlp, lambda batch: (torch.randn(batch, 64),)),
    "transformer_encoder": Family(
        transformer_encoder, lambda batch: (torch.randint(0, 100, (batch, 16)),), ("tokens",)
    ),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A seeded model in evaluation mode, with norm statistics, scales and biases as a trained net has them."""
    torch.manual_seed(seed)
    model = FAMILIES[name].build()
    randomize_norms(model)
    return model.eval()


def randomize_norms(model: nn.Module) -> None:
    """Statistics, scales and biases away from 0 and 1, so that a wrong one shows."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.7, 1.3)
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, 0, 0.1)


# ------------------------------------------------------------------------------------------------------- transformers


class Logits(nn.Module):
    """Wraps a transformers model: positional tensors in, the logits out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def transformers_model(
    name: str, seed: int = 0
) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]], tuple[str, ...]]:
    """A tiny random transformers model: (module returning logits, batch of inputs, input names).

    Names: bert, distilbert, vit, gpt2, llama.
    """
    t = transformers()
    torch.manual_seed(seed)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    ids, mask = "input_ids", "attention_mask"
    if name == "bert":
        model = t.BertForSequenceClassification(t.BertConfig(vocab_size=100, max_position_embeddings=32, **small))
    elif name == "distilbert":
        config = t.DistilBertConfig(
            vocab_size=100, max_position_embeddings=32, dim=32, n_layers=2, n_heads=4, hidden_dim=64
        )
        model = t.DistilBertForSequenceClassification(config)
    elif name == "gpt2":
        config = t.GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False)
        model = t.GPT2LMHeadModel(config)
    elif name == "llama":
        config = t.LlamaConfig(
            vocab_size=100, max_position_embeddings=32, num_key_value_heads=2, use_cache=False, **small
        )
        model = t.LlamaForCausalLM(config)
    else:
        model = t.ViTForImageClassification(t.ViTConfig(image_size=16, patch_size=4, num_labels=3, **small))
        return Logits(model, ("pixel_values",)).eval(), _images(16), ("pixel_values",)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        lengths = torch.randint(3, 9, (batch, 1))
        return torch.randint(0, 100, (batch, 8)), (torch.arange(8)[None] < lengths).long()

    return Logits(model, (ids, mask)).eval(), inputs, (ids, mask)


# ------------------------------------------------------------------------------------------------------------- export


@cache
def prepare_exporter_once() -> None:
    """PyTorch's exporter reads its five hundred operators' sources anew in each export: most of a small one's time.

    Their table and the one of decompositions are the same each time, so a process makes each once.
    """
    from torch.onnx._internal.exporter import _decomp, _registration

    table = cache(_decomp.create_onnx_friendly_decomposition_table)
    _registration.ONNXRegistry.from_torchlib = staticmethod(cache(_registration.ONNXRegistry.from_torchlib))
    # The exporter takes entries out of what it is given.
    _decomp.create_onnx_friendly_decomposition_table = lambda known: dict(table(frozenset(known)))


def export(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    *,
    input_names: tuple[str, ...] = ("input",),
    output_names: tuple[str, ...] = ("logits",),
    exporter: Exporter = "dynamo",
    opset: int = 18,
    dynamic_batch: bool = True,
) -> bytes:
    """ONNX bytes of a module, with an open batch axis."""
    prepare_exporter_once()
    buffer = io.BytesIO()
    names = {"input_names": list(input_names), "output_names": list(output_names)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            if exporter == "torchscript":
                axes = {name: {0: "batch"} for name in (*input_names, *output_names)} if dynamic_batch else None
                torch.onnx.export(model, inputs, buffer, opset_version=opset, dynamo=False, dynamic_axes=axes, **names)
                return buffer.getvalue()
            shapes = _dynamic_shapes(model, inputs) if dynamic_batch else None
            program = torch.onnx.export(
                model,
                inputs,
                dynamo=True,
                opset_version=opset,
                optimize=exporter == "dynamo",
                dynamic_shapes=shapes,
                verbose=False,
                **names,
            )
            program.save(buffer)
            return buffer.getvalue()
        finally:
            logging.disable(logging.NOTSET)


def _dynamic_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> object:
    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = tuple({0: batch} for _ in inputs)
    # `*inputs` is one positional argument in the exporter's eyes.
    return (shapes,) if isinstance(model, Logits) else shapes
