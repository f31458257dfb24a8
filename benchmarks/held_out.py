"""Workloads that nothing was tuned on: convolutional nets and transformers as their libraries define them.

The sizes are the published ones, the weights seeded. They are measured beside the others and by the same rules, so that
a step which is fast on the bench models alone shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from benchmarks.definitions import (
    CLASSES,
    DEEP_RATE,
    LAST_HALF_OF_12,
    TEXT,
    Model,
    Workload,
    image_net,
    image_transformer,
    images,
    layers,
    text_model,
)
from tests.models import InvertedResidualNet, Logits
from tests.vision import models, transformers

ELECTRA_TOKENS, PYTHIA_TOKENS, POSITIONS = 30522, 50304, 128
PIXELS = ("pixel_values",)


def torchvision_net(name: str, blocks: tuple[str, ...], first: str, classifier: str) -> Model:
    """A net of torchvision at 224 px. `blocks`: globs of the trained ones; `first`: the weight in each that trains."""

    def build() -> nn.Module:
        net: nn.Module = getattr(models(), name)(num_classes=CLASSES)
        return net

    return image_net(build, 224, blocks, first, classifier, DEEP_RATE)


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


def deit_tiny() -> nn.Module:
    """DeiT tiny, 16 px patches.

    Its two tokens are zeros at first, and of equal parameters exporters make one: here they begin apart.
    """
    t = transformers()
    config = t.DeiTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    config.num_labels = CLASSES
    net = t.DeiTForImageClassification(config)
    for token in (net.deit.embeddings.cls_token, net.deit.embeddings.distillation_token):
        nn.init.trunc_normal_(token, std=config.initializer_range)
    return Logits(net, PIXELS)


def mobilevit_xs() -> nn.Module:
    """MobileViT extra small at 256 px: inverted residuals and transformers of patches."""
    t = transformers()
    sizes = {"hidden_sizes": [96, 120, 144], "neck_hidden_sizes": [16, 32, 48, 64, 80, 96, 384]}
    config = t.MobileViTConfig(**sizes)
    config.num_labels = CLASSES
    return Logits(t.MobileViTForImageClassification(config), PIXELS)


def electra_small() -> nn.Module:
    """ELECTRA small with a head of two classes."""
    t = transformers()
    return Logits(t.ElectraForSequenceClassification(t.ElectraConfig()), TEXT)


def pythia() -> nn.Module:
    """Pythia of 70 million parameters (GPT-NeoX): 6 layers of width 512, attention and feed-forward side by side."""
    t = transformers()
    config = t.GPTNeoXConfig(
        vocab_size=PYTHIA_TOKENS,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
        use_cache=False,
    )
    return Logits(t.GPTNeoXForCausalLM(config), TEXT)


MODELS: Mapping[str, Model] = {
    "efficientnet_lite0": image_net(efficientnet_lite0, 224, ("blocks.9", "blocks.1[0-5]"), "expand.0"),
    "mnasnet": torchvision_net("mnasnet1_0", ("layers.1[0-3].*",), "layers.0", "classifier"),
    "mobilenet_v3": torchvision_net("mobilenet_v3_large", ("features.9", "features.1[0-5]"), "block.0.0", "classifier"),
    "efficientnet_b0": torchvision_net("efficientnet_b0", ("features.[567].*",), "block.0.0", "classifier"),
    "regnet": torchvision_net("regnet_y_400mf", ("trunk_output.block4.*",), "f.a.0", "fc"),
    "shufflenet_v2": torchvision_net("shufflenet_v2_x1_0", ("stage3.[4-7]", "stage4.*"), "branch2.0", "fc"),
    "resnet18": torchvision_net("resnet18", ("layer[34].*",), "conv1", "fc"),
    "mobilevit": Model(
        mobilevit_xs,
        images(256, "pixel_values"),
        (),
        CLASSES,
        (
            (("model.mobilevit.encoder.layer.[34].transformer.*.attention.*",), "any"),
            (("model.mobilevit.encoder.layer.[34].transformer.*.intermediate.*",), "any"),
            (("model.classifier.*",), "any"),
        ),
        is_image=True,
        learning_rate=DEEP_RATE,
    ),
    "deit": image_transformer(deit_tiny, "model.deit.layers"),
    "swin": torchvision_net("swin_t", ("features.5.[345]", "features.7.*"), "mlp.0", "head"),
    "electra": text_model(
        electra_small,
        ELECTRA_TOKENS,
        layers("model.electra.encoder.layer", LAST_HALF_OF_12, ("attention", "intermediate")),
        classes=2,
    ),
    "pythia": text_model(
        pythia,
        PYTHIA_TOKENS,
        layers("model.gpt_neox.layers", ("3", "4", "5"), ("attention", "mlp.dense_h_to_4h")),
        heads=("model.lm_head.*",),
    ),
}

WORKLOADS: Mapping[str, Workload] = {
    "efficientnet_lite0_b8": Workload("efficientnet_lite0", 8, held_out=True),
    **{
        f"{name}_b4": Workload(name, 4, held_out=True)
        for name in (
            "mnasnet",
            "mobilenet_v3",
            "efficientnet_b0",
            "regnet",
            "shufflenet_v2",
            "resnet18",
            "mobilevit",
            "deit",
            "electra",
        )
    },
    "swin_b2": Workload("swin", 2, held_out=True),
    "pythia_b1": Workload("pythia", 1, held_out=True),
}
