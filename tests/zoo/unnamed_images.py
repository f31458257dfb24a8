"""Image models beyond the families that the project set out to support: what other users bring."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.zoo.entry import Entry, normal

_IMAGE = {"input": normal(3, 16, 16)}


class Skip(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.f = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x)


def _pooled(*layers: nn.Module, channels: int = 16) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def _conv_mixer() -> nn.Module:
    block = [
        nn.Sequential(
            Skip(nn.Conv2d(16, 16, 5, groups=16, padding="same"), nn.GELU(), nn.BatchNorm2d(16)),
            nn.Conv2d(16, 16, 1),
            nn.GELU(),
            nn.BatchNorm2d(16),
        )
        for _ in range(2)
    ]
    return _pooled(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.BatchNorm2d(16), *block)


class Mixer(nn.Module):
    """MLP-Mixer: one MLP over patches, one over channels."""

    def __init__(self, patches: int = 16, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 24), nn.GELU(), nn.Linear(24, patches))
        self.within = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norm2(x))
        return self.head(x.mean(1))


class ResMlp(nn.Module):
    """Affine in place of norms, a linear layer over patches, layer scale."""

    def __init__(self, patches: int = 16, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.alpha, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((width,), 0.1))
        self.cross = nn.Linear(patches, patches)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.scale * self.cross((self.alpha * x + self.beta).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.scale * self.mlp(x)).mean(1))


class SqueezeExcite(nn.Module):
    """Channel attention from the global mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, channels // 4), nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.fc2(torch.relu(self.fc1(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


def _se_resnet() -> nn.Module:
    def block() -> nn.Module:
        return Skip(
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            SqueezeExcite(16),
        )

    return _pooled(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), block(), nn.ReLU(), block(), nn.ReLU())


class ScaledConv(nn.Conv2d):
    """NFNet's weight standardisation with a learned gain."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        fan = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(torch.clamp(variance * fan, min=1e-4)) * self.gain
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class NormFree(nn.Module):
    """Two norm-free residual blocks with learned skip gains."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ScaledConv(3, 16, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.SiLU(), ScaledConv(16, 16, 3)) for _ in range(2))
        self.skip = nn.ParameterList(nn.Parameter(torch.full((), 0.2)) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, gain in zip(self.blocks, self.skip, strict=True):
            x = x + gain * block(x) * 1.7868
        return self.head(F.silu(x).mean((2, 3)))


class Ghost(nn.Module):
    """GhostNet: half of the channels are cheap copies of the other half."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.primary = nn.Sequential(nn.Conv2d(inputs, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU())
        self.cheap = nn.Sequential(
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.primary(x)
        return torch.cat([y, self.cheap(y)], 1)


class SuperResolution(nn.Module):
    """ESPCN with a bicubic skip."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1))
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(self.body(x)) + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)


def _style_transfer() -> nn.Module:
    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [
            nn.ReflectionPad2d(kernel // 2),
            nn.Conv2d(inputs, outputs, kernel, stride),
            nn.InstanceNorm2d(outputs, affine=True),
        ]

    return nn.Sequential(
        *conv(3, 8, 5),
        nn.ReLU(),
        *conv(8, 16, 3, 2),
        nn.ReLU(),
        Skip(*conv(16, 16, 3), nn.ReLU(), *conv(16, 16, 3)),
        nn.Upsample(scale_factor=2),
        *conv(16, 8, 3),
        nn.ReLU(),
        nn.ReflectionPad2d(2),
        nn.Conv2d(8, 3, 5),
    )


def _video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d((1, 2, 2)),
        nn.Conv3d(8, 16, 3, stride=(1, 2, 2), padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class Conv2Plus1(nn.Module):
    """R(2+1)D: space, then time."""

    def __init__(self) -> None:
        super().__init__()
        self.space = nn.Conv3d(3, 8, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.norm = nn.BatchNorm3d(8)
        self.time = nn.Conv3d(8, 12, (3, 1, 1), padding=(1, 0, 0))
        self.pool, self.head = nn.AvgPool3d((1, 2, 2)), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(torch.relu(self.time(torch.relu(self.norm(self.space(x)))))).mean((2, 3, 4)))


class ConvLstm(nn.Module):
    """A convolutional LSTM over four frames."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gates, self.head, self.width = nn.Conv2d(3 + width, 4 * width, 3, padding=1), nn.Linear(width, 5), width

    def forward(self, frames: Tensor) -> Tensor:
        batch, steps, _, height, width = frames.shape
        hidden = frames.new_zeros(batch, self.width, height, width)
        cell = torch.zeros_like(hidden)
        for step in range(steps):
            i, f, o, g = self.gates(torch.cat([frames[:, step], hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden.mean((2, 3)))


def _weight_norm() -> nn.Module:
    return _pooled(
        parametrizations.weight_norm(nn.Conv2d(3, 16, 3)),
        nn.ELU(),
        parametrizations.weight_norm(nn.Conv2d(16, 16, 3)),
        nn.ELU(),
    )


def _old_weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.utils.weight_norm(nn.Linear(16, 5)))


def _spectral_norm() -> nn.Module:
    return _pooled(parametrizations.spectral_norm(nn.Conv2d(3, 16, 3)), nn.LeakyReLU(0.1))


class Rotated(nn.Module):
    """A convolution that turns its weight by four quarter turns and keeps the strongest answer on average."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        turns = [F.conv2d(x, torch.rot90(self.weight, k, (2, 3)), padding=1) for k in range(4)]
        return self.head(torch.logsumexp(torch.stack(turns, 2), 2).mean((2, 3)))


class Crnn(nn.Module):
    """Text line recogniser: convolutions, columns as steps, a bidirectional GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d((4, 2)))
        self.rnn = nn.GRU(32, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 11)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.cnn(x).permute(0, 3, 1, 2).flatten(2)
        return F.log_softmax(self.head(self.rnn(columns)[0]), dim=-1)


class SpatialTransformer(nn.Module):
    """A localisation network whose affine grid resamples the image."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Sequential(nn.Conv2d(3, 4, 7, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6))
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        self.register_buffer("identity", torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: Tensor) -> Tensor:
        theta = (0.1 * self.locate(x) + self.identity).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.head(torch.relu(self.conv(F.grid_sample(x, grid, align_corners=False))).mean((2, 3)))


class Involution(nn.Module):
    """A kernel for every pixel, made from it; windows by `unfold`."""

    def __init__(self, channels: int = 8, groups: int = 2, kernel: int = 3) -> None:
        super().__init__()
        self.stem, self.make = nn.Conv2d(3, channels, 1), nn.Conv2d(channels, groups * kernel * kernel, 1)
        self.groups, self.kernel, self.head = groups, kernel, nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, c, h, w = x.shape
        kernels = self.make(x).view(n, self.groups, 1, self.kernel**2, h, w)
        windows = F.unfold(x, self.kernel, padding=self.kernel // 2).view(n, self.groups, c // self.groups, -1, h, w)
        return self.head((kernels * windows).sum(3).view(n, c, h, w).mean((2, 3)))


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 3),
        nn.Tanh(),
        nn.LPPool2d(2, 2),
        nn.LocalResponseNorm(3),
        nn.Flatten(),
        nn.Linear(64, 20),
        nn.SELU(),
        nn.Linear(20, 5),
    )


def _many_activations() -> nn.Module:
    kinds = (
        nn.PReLU(8),
        nn.Mish(),
        nn.Hardswish(),
        nn.CELU(0.7),
        nn.Softplus(beta=2),
        nn.LogSigmoid(),
        nn.Hardtanh(),
        nn.Softsign(),
        nn.Tanhshrink(),
        nn.Hardsigmoid(),
        nn.Softshrink(0.1),
    )
    layers = [layer for kind in kinds for layer in (nn.Conv2d(8, 8, 1), kind)]
    return _pooled(nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), *layers, channels=8)


class LinkNet(nn.Module):
    """Encoder and decoder with added skips, replicated borders and max-unpooling by interpolation of odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1, padding_mode="replicate")
        self.deeper = nn.Conv2d(8, 16, 3, 2, 1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(16, 8, 3, 2, 1, groups=2)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.hardswish(self.down(x))
        y = F.interpolate(self.up(F.mish(self.deeper(first))), size=first.shape[2:], mode="bilinear")
        return F.interpolate(self.head(first + y), size=x.shape[2:], mode="bilinear", align_corners=True).movedim(1, -1)


ENTRIES = (
    Entry("conv_mixer", _conv_mixer, _IMAGE),
    Entry("mlp_mixer", Mixer, _IMAGE),
    Entry("res_mlp", ResMlp, _IMAGE),
    Entry("se_resnet", _se_resnet, _IMAGE),
    Entry("nf_net", NormFree, _IMAGE),
    Entry("ghost_net", lambda: _pooled(Ghost(3, 8), Ghost(8, 16)), _IMAGE),
    Entry("super_resolution", SuperResolution, _IMAGE, "mse"),
    Entry("style_transfer", _style_transfer, _IMAGE, "mse"),
    Entry("video_3d", _video, {"input": normal(3, 4, 8, 8)}),
    Entry("video_2plus1d", Conv2Plus1, {"input": normal(3, 4, 8, 8)}),
    Entry("conv_lstm", ConvLstm, {"frames": normal(4, 3, 8, 8)}),
    Entry("weight_norm", _weight_norm, _IMAGE),
    Entry("old_weight_norm", _old_weight_norm, {"input": normal(8)}),
    Entry("spectral_norm", _spectral_norm, _IMAGE),
    Entry("rotation_equivariant", Rotated, _IMAGE),
    Entry("crnn", Crnn, {"input": normal(1, 16, 24)}),
    Entry("spatial_transformer", SpatialTransformer, _IMAGE),
    Entry("involution", Involution, _IMAGE),
    Entry("lenet_lrn", _lenet, _IMAGE),
    Entry("many_activations", _many_activations, _IMAGE),
    Entry("link_net", LinkNet, {"input": normal(3, 15, 15)}),
)
