"""Image models of an author's own: U-Net, a RetinaNet-style detector, autoencoders, a DCGAN's two parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import Entry, normal


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Two levels down and up again; upsampling by transposed convolution or by interpolation."""

    def __init__(self, *, interpolate: bool) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _twice(3, 8), _twice(8, 16), _twice(16, 32)
        self.pool = nn.MaxPool2d(2)
        if interpolate:
            self.up2: nn.Module = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(32, 16, 1)
            )
            self.up1: nn.Module = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(16, 8, 1))
        else:
            self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1 = _twice(32, 16), _twice(16, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up2(self.middle(self.pool(second)))
        y = self.up1(self.join2(torch.cat([second, y], 1)))
        return self.head(self.join1(torch.cat([first, y], 1))).permute(0, 2, 3, 1)


class Pyramid(nn.Module):
    """A small backbone and a feature pyramid of two levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.low = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.high = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.inner_low, self.inner_high = nn.Conv2d(16, width, 1), nn.Conv2d(32, width, 1)
        self.outer_low, self.outer_high = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = self.low(self.stem(x))
        high = self.inner_high(self.high(low))
        merged = self.inner_low(low) + F.interpolate(high, size=low.shape[-2:], mode="nearest")
        return self.outer_low(merged), self.outer_high(high)


class RetinaNet(nn.Module):
    """Class scores and boxes of every anchor; both heads are shared by the levels."""

    def __init__(self, width: int = 16, anchors: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.pyramid = Pyramid(width)
        self.classes = classes
        self.score_head = self._head(width, anchors * classes)
        self.box_head = self._head(width, anchors * 4)

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 3, padding=1),
        )

    def _flat(self, y: Tensor, last: int) -> Tensor:
        return y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, last)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = self.pyramid(x)
        scores = torch.cat([self._flat(self.score_head(level), self.classes) for level in levels], 1)
        boxes = torch.cat([self._flat(self.box_head(level), 4) for level in levels], 1)
        return scores, boxes


class DetectionLoss(nn.Module):
    """The detector with its loss in the graph: focal loss of the scores and smooth L1 of the boxes of positives.

    Its output is the loss of each sample, [N, 1]; `mse` against zeros, of its root, is their mean.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network = RetinaNet()

    def forward(self, x: Tensor, wanted: Tensor, boxes: Tensor) -> Tensor:
        scores, found = self.network(x)
        probability = torch.sigmoid(scores)
        entropy = F.softplus(scores) - scores * wanted
        right = probability * wanted + (1 - probability) * (1 - wanted)
        focal = (entropy * (1 - right) ** 2).sum((1, 2))
        positive = wanted.amax(-1, keepdim=True)
        regression = F.smooth_l1_loss(found * positive, boxes * positive, reduction="none").sum((1, 2))
        return torch.sqrt((focal + regression) / positive.sum((1, 2)).clamp(min=1.0) + 1e-6)[:, None]


class BoxHead(nn.Module):
    """The detector's boxes alone, or its scores alone."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.network, self.which = RetinaNet(), which

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.which]


def _conv_autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1),
        nn.Sigmoid(),
    )


def _mlp_autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 6), nn.Tanh(), nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 48)
    )


class VariationalAutoencoder(nn.Module):
    """The noise is an input: what it returns, and the divergence beside it, are one row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 6), nn.Linear(32, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 48))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        found = self.decoder(mean + noise * torch.exp(0.5 * log_variance))
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1, keepdim=True)
        return torch.cat([found - x, torch.sqrt(divergence)], 1)


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def _discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        nn.Flatten(),
        nn.Sigmoid(),
    )


_IMAGE = {"input": normal(3, 16, 16)}
_ANCHORS = 3 * (4 * 4 + 2 * 2)

ENTRIES = (
    Entry("unet", lambda: UNet(interpolate=False), _IMAGE),
    Entry("unet_interpolating", lambda: UNet(interpolate=True), _IMAGE),
    Entry("retinanet_scores", lambda: BoxHead(0), _IMAGE),
    Entry("retinanet_boxes", lambda: BoxHead(1), _IMAGE, "mse"),
    Entry(
        "retinanet_loss",
        DetectionLoss,
        {
            "input": normal(3, 16, 16),
            "wanted": lambda generator, batch: (torch.rand(batch, _ANCHORS, 4, generator=generator) < 0.1).float(),
            "boxes": normal(_ANCHORS, 4),
        },
        "mse",
    ),
    Entry("conv_autoencoder", _conv_autoencoder, {"input": normal(1, 16, 16)}, "mse"),
    Entry("mlp_autoencoder", _mlp_autoencoder, {"input": normal(48)}, "mse"),
    Entry("vae", VariationalAutoencoder, {"input": normal(48), "noise": normal(6)}, "mse"),
    Entry("dcgan_generator", _generator, {"input": normal(16, 1, 1)}, "mse"),
    Entry("dcgan_discriminator", _discriminator, _IMAGE, "mse"),
)
