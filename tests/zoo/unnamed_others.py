"""Models that found defects when they were first tried, and others unlike anything else in the zoo."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import Entry, normal, padding, tokens, uniform


class PaddedShortcut(nn.Module):
    """A small residual network whose shortcuts are strided and filled up with zeros; a prompt that is read in part."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.prompt = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Parameter(torch.randn(6, 8) * 0.3)
        self.conv1, self.norm1 = nn.Conv2d(4, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.register_buffer("order", torch.tensor([5, 0, 0, 3]))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = self.conv2(torch.relu(self.norm1(self.conv1(x))))
        y = torch.relu(self.conv1(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + y)
        return self.head(y.mean((2, 3)) + self.prompt[self.order].mean(0) + self.prompt[:2].sum(0))


class FourierOperator(nn.Module):
    """A Fourier neural operator: frequencies times learned complex weights, and back."""

    def __init__(self, width: int = 4, modes: int = 5) -> None:
        super().__init__()
        self.start = nn.Linear(6, width)
        self.weight = nn.Parameter(torch.randn(width, modes, 2) * 0.4)
        self.beside, self.head = nn.Conv1d(width, width, 1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.start(x).transpose(1, 2)
        low = torch.fft.rfft(y, norm="ortho") * torch.view_as_complex(self.weight)
        back = torch.fft.irfft(low, n=y.shape[-1], norm="ortho")
        return self.head(F.gelu(back + self.beside(y)).transpose(1, 2))


class Spectrogram(nn.Module):
    """Logarithms of a short-time Fourier transform, normalised over time, under a small network."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size))
        self.gain, self.size = nn.Parameter(torch.ones(1)), size
        self.conv, self.head = nn.Conv1d(size // 2 + 1, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.stft(x * self.gain, self.size, self.size // 2, window=self.window, return_complex=True)
        power = torch.log(torch.view_as_real(found).square().sum(-1) + 1e-3)
        power = (power - power.mean(-1, keepdim=True)) / (power.std(-1, keepdim=True) + 1e-5)
        return self.head(torch.relu(self.conv(power)).mean(-1))


class MaskedAutoencoder(nn.Module):
    """Patches are shuffled by the order of noise, half of them encoded, all of them put back and rebuilt."""

    def __init__(self, width: int = 12, keep: int = 8) -> None:
        super().__init__()
        self.patch, self.keep = nn.Linear(48, width), keep
        self.token, self.place = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 24, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.decoder = nn.Linear(width, 48)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        patches = x.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        known = self.patch(patches) + self.place
        shuffled = torch.argsort(noise, 1)
        back = torch.argsort(shuffled, 1)[..., None].expand_as(known)
        kept = self.encoder(known.gather(1, shuffled[:, : self.keep, None].expand(-1, -1, known.shape[-1])))
        tokens = torch.cat([kept, self.token.expand(len(x), known.shape[1] - self.keep, -1)], 1)
        return self.decoder(tokens.gather(1, back) + self.place) - patches


class StyleGenerator(nn.Module):
    """Weights that each sample modulates and normalises: one grouped convolution over the batch's channels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.style, self.start = nn.Linear(6, width), nn.Parameter(torch.randn(1, width, 4, 4))
        self.weight, self.bias = nn.Parameter(torch.randn(6, width, 3, 3)), nn.Parameter(torch.zeros(6))
        self.strength = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("noise", torch.randn(1, 1, 4, 4))
        self.colours = nn.Conv2d(6, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        weight = self.weight * (self.style(z) + 1)[:, None, :, None, None]
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
        x = self.start.repeat(len(z), 1, 1, 1).reshape(1, -1, 4, 4)
        x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=len(z)).unflatten(1, (len(z), -1))[0]
        x = x + self.noise * self.strength + self.bias[:, None, None]
        return self.colours(F.leaky_relu(x, 0.2) * math.sqrt(2))


class LinearChain(nn.Module):
    """A tagger with a conditional random field: the partition function less the score of the wanted labels."""

    def __init__(self, labels: int = 4) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(30, 6), nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.score, self.moves = nn.Linear(10, labels), nn.Parameter(torch.randn(labels, labels))
        self.first, self.last = nn.Parameter(torch.randn(labels)), nn.Parameter(torch.randn(labels))

    def forward(self, ids: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        scores, there = self.score(self.cell(self.embed(ids))[0]), mask.float()
        wanted = self.first[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1])[:, 0]
        every = self.first + scores[:, 0]
        for t in range(1, ids.shape[1]):
            own = scores[:, t].gather(1, tags[:, t : t + 1])[:, 0]
            wanted = wanted + (self.moves[tags[:, t - 1], tags[:, t]] + own) * there[:, t]
            after = torch.logsumexp(every[:, :, None] + self.moves + scores[:, t, None], 1)
            every = torch.where(mask[:, t : t + 1] > 0, after, every)
        end = tags.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
        return (torch.logsumexp(every + self.last, 1) - wanted - self.last[end])[:, None] / ids.shape[1]


class SplineFlow(nn.Module):
    """A coupling layer of rational quadratic splines: running sums of widths, the cell of each number looked up."""

    def __init__(self, cells: int = 4) -> None:
        super().__init__()
        self.cells = cells
        self.network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6 * (3 * cells + 1)))

    def forward(self, x: Tensor) -> Tensor:
        place = torch.sigmoid(x[:, 6:])
        told = self.network(x[:, :6]).unflatten(1, (6, -1))
        wide, high = (0.01 + 0.96 * F.softmax(part, -1) for part in told.split(self.cells, -1)[:2])
        slopes = 0.01 + F.softplus(told[..., 2 * self.cells :])
        left, low = (F.pad(torch.cumsum(part, -1), (1, 0)) for part in (wide, high))
        cell = (place[..., None] >= left[..., 1:-1]).sum(-1, keepdim=True)
        x0, w, y0, h, d0, d1 = (
            part.gather(-1, cell)[..., 0] for part in (left, wide, low, high, slopes, slopes[..., 1:])
        )
        steep, t = h / w, (place - x0) / w
        below = steep + (d0 + d1 - 2 * steep) * t * (1 - t)
        found = y0 + h * (steep * t**2 + d0 * t * (1 - t)) / below
        density = steep**2 * (d1 * t**2 + 2 * steep * t * (1 - t) + d0 * (1 - t) ** 2)
        return torch.cat([found, torch.log(density) - 2 * torch.log(below)], 1)


class TuringMachine(nn.Module):
    """A memory that is addressed by content, then shifted (`roll`, also by nothing), sharpened, erased and written."""

    def __init__(self, slots: int = 6, width: int = 4) -> None:
        super().__init__()
        self.cell, self.told = nn.LSTMCell(6 + width, 8), nn.Linear(8, width + 5)
        self.write, self.memory = nn.Linear(8, 2 * width), nn.Parameter(torch.randn(slots, width) * 0.3)
        self.head, self.width = nn.Linear(8 + width, 4), width

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory.expand(len(x), -1, -1)
        weight = x.new_full(memory.shape[:2], 1 / memory.shape[1])
        read, state = x.new_zeros(len(x), self.width), (x.new_zeros(len(x), 8), x.new_zeros(len(x), 8))
        for step in x.unbind(1):
            state = self.cell(torch.cat([step, read], 1), state)
            key, sharp, keep, shift = self.told(state[0]).split([self.width, 1, 1, 3], 1)
            near = F.cosine_similarity(memory, torch.tanh(key)[:, None], -1)
            near = torch.softmax(F.softplus(sharp) * near, 1) * torch.sigmoid(keep)
            near = near + (1 - torch.sigmoid(keep)) * weight
            shift = torch.softmax(shift, 1)
            moved = sum(torch.roll(near, i - 1, 1) * shift[:, i : i + 1] for i in range(3))
            weight = moved**1.5 / (moved**1.5).sum(1, keepdim=True)
            erase, new = self.write(state[0]).chunk(2, 1)
            memory = memory * (1 - weight[..., None] * torch.sigmoid(erase)[:, None])
            memory = memory + weight[..., None] * torch.tanh(new)[:, None]
            read = (weight[:, None] @ memory)[:, 0]
        return self.head(torch.cat([state[0], read], 1))


class ObliviousTrees(nn.Module):
    """Soft decision trees: features chosen by a sparse softmax (sorting, running sums), leaves by products of bins."""

    def __init__(self, trees: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.choice, self.bound = nn.Parameter(torch.rand(12, trees, depth)), nn.Parameter(torch.randn(trees, depth))
        self.leaves = nn.Parameter(torch.randn(trees, 3, 2**depth))
        bits = (torch.arange(2**depth)[None] >> torch.arange(depth)[:, None]) % 2
        self.register_buffer("paths", torch.stack([bits, 1 - bits], -1).float())

    def forward(self, x: Tensor) -> Tensor:
        order = torch.sort(self.choice, 0, descending=True)[0]
        sums, place = order.cumsum(0) - 1, torch.arange(1, 13)[:, None, None]
        count = (place * order > sums).sum(0, keepdim=True)
        chosen = torch.clamp(self.choice - sums.gather(0, count - 1) / count, min=0)
        side = torch.einsum("bi,itd->btd", x, chosen) - self.bound
        bins = torch.clamp(0.5 * torch.stack([-side, side], -1) + 0.5, 0, 1)
        paths = torch.einsum("btds,dcs->btdc", bins, self.paths).prod(-2)
        return torch.einsum("btc,toc->bto", paths, self.leaves).mean(1)


class Edited(nn.Module):
    """Written in place: slices, rows behind a mask, elements behind a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 4)
        self.token, self.floor = nn.Parameter(torch.randn(6)), nn.Parameter(torch.tensor(-0.2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        z = torch.zeros_like(y)
        z[:, 1:] = y[:, :-1]
        z[:, 0] += self.token
        z[x[..., 0] > 0.8] = self.token
        y[y < -1] = self.floor
        z[:, -1, :3] = x[:, 0, :3]
        return self.head((z.clamp_(min=-3) + y).sum(1))


class SharedLayers(nn.Module):
    """One layer under two names, its weight in a third layer; parameters in dictionaries and lists; one unused."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(12, 12)
        self.parts = nn.ModuleDict({"a-b": layer, "0": nn.ModuleList([layer, nn.Linear(12, 12)])})
        self.scales = nn.ParameterDict({"used": nn.Parameter(torch.ones(12)), "unused": nn.Parameter(torch.ones(3))})
        self.numbers = nn.ParameterList([nn.Parameter(torch.randn(())) for _ in range(2)])
        self.head = nn.Linear(12, 12)
        self.head.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.parts["a-b"](x))
        for layer in self.parts["0"]:
            x = torch.tanh(layer(x))
        return self.head(x * self.scales["used"] * self.numbers[0] + self.numbers[1])


ENTRIES = (
    Entry("padded_shortcut", PaddedShortcut, {"input": normal(3, 8, 8)}),
    Entry("fourier_operator", FourierOperator, {"input": normal(8, 6)}),
    Entry("spectrogram", Spectrogram, {"input": normal(64)}),
    Entry("masked_autoencoder", MaskedAutoencoder, {"input": normal(3, 16, 16), "noise": uniform(16)}, "mse"),
    Entry("style_generator", StyleGenerator, {"input": normal(6)}, "mse"),
    Entry("linear_chain", LinearChain, {"ids": tokens(30, 8), "tags": tokens(4, 8), "mask": padding(8)}, "mse"),
    Entry("spline_flow", SplineFlow, {"input": normal(12)}, "mse"),
    Entry("turing_machine", TuringMachine, {"input": normal(4, 6)}),
    Entry("oblivious_trees", ObliviousTrees, {"input": normal(12)}),
    Entry("edited_in_place", Edited, {"input": normal(5, 6)}),
    Entry("shared_layers", SharedLayers, {"input": normal(12)}),
)
