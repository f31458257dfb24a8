"""Every classification family of torchvision, and its segmentation networks, with random weights and small images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.vision import models
from tests.zoo.entry import Draw, Entry, normal

CLASSES = 7


def _build(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        builder = models().get_model_builder(name)
        return builder(weights=None, num_classes=CLASSES, **settings)

    return make


def _plain(name: str, size: int, **settings: Any) -> Entry:
    return Entry(name, _build(name, **settings), _images(size))


def _images(size: int) -> dict[str, Draw]:
    return {"input": normal(3, size, size)}


def _without_auxiliary(name: str) -> Callable[[], nn.Module]:
    return _build(name, aux_logits=False, init_weights=False)


class _Pixels(nn.Module):
    """A segmentation network's main output with its classes last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)["out"].permute(0, 2, 3, 1)


def _segments(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        builder = models().get_model_builder(name)
        return _Pixels(builder(weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=False))

    return make


def _swin(version: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        swin = models().swin_transformer
        block, merge = (
            (swin.SwinTransformerBlockV2, swin.PatchMergingV2) if version == "v2" else (None, swin.PatchMerging)
        )
        return swin.SwinTransformer(
            patch_size=[2, 2],
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
            num_classes=CLASSES,
            stochastic_depth_prob=0.0,
            block=block,
            downsample_layer=merge,
        )

    return make


def _convnext() -> nn.Module:
    convnext = models().convnext
    blocks = [convnext.CNBlockConfig(16, 32, 2), convnext.CNBlockConfig(32, None, 2)]
    return convnext.ConvNeXt(blocks, num_classes=CLASSES)


def _vit() -> nn.Module:
    return models().VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=CLASSES)


def _maxvit() -> nn.Module:
    return models().maxvit.MaxVit(
        input_size=(32, 32),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    )


def _densenet() -> nn.Module:
    return models().densenet.DenseNet(8, (3, 4, 3), 16, num_classes=CLASSES)


def _wide_densenet() -> nn.Module:
    torch.manual_seed(0)
    return models().densenet121(num_classes=CLASSES)


FULL_IMAGES = (
    _plain("alexnet", 64),
    _plain("vgg11", 32),
    _plain("vgg11_bn", 32),
    _plain("squeezenet1_1", 64),
    Entry("googlenet", _without_auxiliary("googlenet"), _images(64)),
    Entry("inception_v3", _without_auxiliary("inception_v3"), _images(80)),
)
RESIDUAL = (
    _plain("resnet18", 32),
    _plain("resnet50", 32),
    _plain("resnext50_32x4d", 32),
    _plain("wide_resnet50_2", 32),
    _plain("regnet_y_400mf", 32),
    _plain("regnet_x_400mf", 32),
    Entry("densenet", _densenet, _images(32)),
    Entry("densenet121", _wide_densenet, _images(32)),
)
MOBILE = (
    _plain("mobilenet_v2", 32),
    _plain("mobilenet_v3_small", 64),
    _plain("mobilenet_v3_large", 64),
    _plain("shufflenet_v2_x0_5", 32),
    _plain("mnasnet0_5", 32),
    _plain("efficientnet_b0", 32),
    _plain("efficientnet_v2_s", 32),
)
ATTENTION = (
    Entry("convnext", _convnext, _images(32)),
    Entry("swin", _swin("v1"), _images(32)),
    Entry("swin_v2", _swin("v2"), _images(32)),
    Entry("vit", _vit, _images(32)),
    Entry("maxvit", _maxvit, _images(32)),
)
DENSE = (
    Entry("deeplabv3_resnet50", _segments("deeplabv3_resnet50"), _images(32)),
    Entry("deeplabv3_mobilenet", _segments("deeplabv3_mobilenet_v3_large"), _images(32)),
    Entry("lraspp_mobilenet", _segments("lraspp_mobilenet_v3_large"), _images(64)),
    Entry("fcn_resnet50", _segments("fcn_resnet50"), _images(32)),
)
ENTRIES = (*FULL_IMAGES, *RESIDUAL, *MOBILE, *ATTENTION, *DENSE)
