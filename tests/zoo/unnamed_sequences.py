"""Sequence models beyond the families that the project set out to support: what other users bring."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import Entry, normal, padding, tokens

_WORDS = {"ids": tokens(50, 10)}
_SERIES = {"input": normal(16, 6)}


class FNet(nn.Module):
    """Mixing by the real part of a Fourier transform, as products with cosines and sines."""

    def __init__(self, length: int = 10, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        for name, count in (("length", length), ("width", width)):
            angle = 2 * math.pi * torch.outer(torch.arange(count), torch.arange(count)) / count
            self.register_buffer(f"cos_{name}", angle.cos())
            self.register_buffer(f"sin_{name}", angle.sin())
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(approximate="tanh"), nn.Linear(32, width))
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = self.norm1(x + self.cos_length @ x @ self.cos_width - self.sin_length @ x @ self.sin_width)
        return self.head(self.norm2(x + self.mlp(x))[:, 0])


class InceptionTime(nn.Module):
    """Parallel convolutions of three lengths and a pool, side by side."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv1d(6, width, k, padding="same", bias=False) for k in (3, 5, 9))
        self.pool = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(6, width, 1, bias=False))
        self.norm, self.head = nn.BatchNorm1d(4 * width), nn.Linear(4 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        y = torch.cat([*(branch(x) for branch in self.branches), self.pool(x)], 1)
        return self.head(torch.relu(self.norm(y)).mean(-1))


class WaveNet(nn.Module):
    """Gated dilated causal convolutions with skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(3))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(3))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1))

    def forward(self, ids: Tensor) -> Tensor:
        x, skips = self.embed(ids).transpose(1, 2), 0
        for i, (both, out) in enumerate(zip(self.filters, self.outs, strict=True)):
            filtered, gate = both(F.pad(x, (2**i, 0))).split(8, 1)
            residual, skip = out(torch.tanh(filtered) * torch.sigmoid(gate)).split(8, 1)
            x, skips = x + residual, skips + skip
        return self.end(skips).transpose(1, 2)


class Conformer(nn.Module):
    """Half feed-forward, attention, convolution with a gated linear unit, half feed-forward."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.start = nn.Linear(6, width)
        self.ff1, self.ff2 = self._feed(width), self._feed(width)
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.conv_norm, self.conv_in = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.batch_norm, self.conv_out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.end, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    @staticmethod
    def _feed(width: int) -> nn.Sequential:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.conv_in(self.conv_norm(x).transpose(1, 2)), 1)
        x = x + self.conv_out(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        return self.head(self.end(x + 0.5 * self.ff2(x)))


class Mamba(nn.Module):
    """A selective state space: the scan is unrolled."""

    def __init__(self, width: int = 8, state: int = 4) -> None:
        super().__init__()
        self.start = nn.Linear(6, 2 * width)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.select, self.rate = nn.Linear(width, 2 * state + 1), nn.Linear(1, width)
        self.log_a = nn.Parameter(torch.log(torch.arange(1, state + 1, dtype=torch.float32)).repeat(width, 1))
        self.d = nn.Parameter(torch.ones(width))
        self.state, self.head = state, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.start(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        rate, b, c = self.select(x).split([1, self.state, self.state], -1)
        rate = F.softplus(self.rate(rate))
        decay = torch.exp(rate[..., None] * -torch.exp(self.log_a))
        drive = rate[..., None] * b[:, :, None] * x[..., None]
        hidden, rows = torch.zeros_like(drive[:, 0]), []
        for step in range(x.shape[1]):
            hidden = decay[:, step] * hidden + drive[:, step]
            rows.append((hidden * c[:, step, None]).sum(-1))
        return self.head((torch.stack(rows, 1) + self.d * x) * F.silu(gate))


class LinearRecurrence(nn.Module):
    """A gated linear recurrence in closed form, by cumulative sums of logarithms."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(6, width), nn.Linear(6, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        log_decay = torch.cumsum(F.logsigmoid(self.gate(x)), 1)
        hidden = torch.exp(log_decay) * torch.cumsum(self.value(x) * torch.exp(-log_decay), 1)
        return self.head(hidden)


class Perceiver(nn.Module):
    """Learned latents look at the input, then at themselves."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, width) * 0.3)
        self.start = nn.Linear(6, width)
        self.cross, self.own = (nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        z = self.latents.expand(x.shape[0], -1, -1)
        z = z + self.cross(z, x, x)[0]
        z = z + self.own(*[self.norm(z)] * 3)[0]
        return self.head(z.mean(1))


class EncoderDecoder(nn.Module):
    """PyTorch's own `nn.Transformer`, with causal and padding masks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, width), nn.Embedding(50, width)
        self.network = nn.Transformer(width, 4, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 50)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        both = self.source(source), self.target(target)
        return self.head(self.network(*both, tgt_mask=self.mask, tgt_is_causal=True))


class PlainEncoder(nn.Module):
    """PyTorch's own `nn.TransformerEncoder`, with a key padding mask."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(ids), src_key_padding_mask=mask == 0).mean(1))


class Alibi(nn.Module):
    """Causal attention whose scores fall with distance; RMS norm and a SwiGLU."""

    def __init__(self, width: int = 16, heads: int = 4, length: int = 10) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, width), nn.RMSNorm(width)
        self.merged, self.out, self.heads = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width), heads
        self.norm2, self.gate, self.up = nn.RMSNorm(width), nn.Linear(width, 24), nn.Linear(width, 24)
        self.down, self.head = nn.Linear(24, width), nn.Linear(width, 50)
        distance = torch.arange(length)[None] - torch.arange(length)[:, None]
        slopes = 2.0 ** -torch.arange(1, heads + 1)
        bias = slopes[:, None, None] * distance.clamp(max=0)
        self.register_buffer("bias", bias.masked_fill(distance > 0, float("-inf")))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.merged(self.norm(x)).chunk(3, -1))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5 + self.bias
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


class Rotary(nn.Module):
    """Interleaved rotary positions by complex-free pairs, grouped keys, `scaled_dot_product_attention`."""

    def __init__(self, width: int = 16, heads: int = 4, length: int = 10) -> None:
        super().__init__()
        self.embed, self.heads, size = nn.Embedding(50, width), heads, width // heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, width)
        angle = torch.outer(torch.arange(length), 1.0 / 100 ** (torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.head = nn.Linear(width, 50)

    def turn(self, x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * self.cos - odd * self.sin, even * self.sin + odd * self.cos], -1).flatten(-2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q = self.turn(self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        k, v = self.kv(x).unflatten(-1, (2, self.heads // 2, -1)).permute(2, 0, 3, 1, 4)
        k, v = self.turn(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + y.transpose(1, 2).flatten(2))


class Relative(nn.Module):
    """Transformer-XL's relative scores, shifted by padding and reshaping."""

    def __init__(self, width: int = 16, length: int = 10) -> None:
        super().__init__()
        self.embed, self.merged = nn.Embedding(50, width), nn.Linear(width, 3 * width)
        self.relative = nn.Parameter(torch.randn(length, width) * 0.2)
        self.u, self.v = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        n, length, width = x.shape
        q, k, v = self.merged(x).chunk(3, -1)
        content = (q + self.u) @ k.transpose(1, 2)
        position = F.pad((q + self.v) @ self.relative.T, (1, 0)).view(n, length + 1, length)[:, 1:]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = ((content + position) / width**0.5).masked_fill(mask, float("-inf"))
        return self.head((scores.softmax(-1) @ v).mean(1))


class Attentive(nn.Module):
    """A GRU encoder, additive attention over its states, a masked mean beside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(50, 8, padding_idx=0), nn.GRU(8, 12, batch_first=True)
        self.key, self.score, self.head = nn.Linear(12, 8), nn.Linear(8, 1, bias=False), nn.Linear(24, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states, last = self.cell(self.embed(ids))
        scores = self.score(torch.tanh(self.key(states))).squeeze(-1).masked_fill(mask == 0, -1e9)
        context = (scores.softmax(-1)[..., None] * states).sum(1)
        return self.head(torch.cat([context, last[0]], -1))


class TextCnn(nn.Module):
    """Convolutions of three widths over words, the largest answer of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 6, k) for k in (2, 3, 4))
        self.head = nn.Linear(18, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        return self.head(torch.cat([torch.relu(conv(x)).amax(-1) for conv in self.convs], 1))


class QuasiRecurrent(nn.Module):
    """A minimal gated unit whose input parts are computed for all steps at once."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.head, self.width = nn.Conv1d(6, 2 * width, 2), nn.Linear(width, 4), width

    def forward(self, x: Tensor) -> Tensor:
        candidate, forget = self.conv(F.pad(x.transpose(1, 2), (1, 0))).chunk(2, 1)
        candidate, forget = torch.tanh(candidate), torch.sigmoid(forget)
        state = candidate[..., 0]
        for step in range(1, candidate.shape[-1]):
            state = torch.lerp(candidate[..., step], state, forget[..., step])
        return self.head(state)


class Vocoder(nn.Module):
    """Upsampling by one-dimensional transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Conv1d(6, 12, 7, padding=3)
        self.ups = nn.Sequential(
            nn.LeakyReLU(0.1), nn.ConvTranspose1d(12, 6, 4, 2, 1), nn.LeakyReLU(0.1), nn.ConvTranspose1d(6, 3, 4, 2, 1)
        )
        self.post = nn.Conv1d(3, 1, 7, padding=3, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.post(self.ups(self.pre(x.transpose(1, 2)))))


_BOTH = {"ids": tokens(50, 10), "mask": padding(10)}
ENTRIES = (
    Entry("fnet", FNet, _WORDS),
    Entry("inception_time", InceptionTime, _SERIES),
    Entry("wave_net", WaveNet, {"ids": tokens(32, 12)}),
    Entry("conformer", Conformer, _SERIES),
    Entry("mamba", Mamba, _SERIES),
    Entry("linear_recurrence", LinearRecurrence, _SERIES),
    Entry("perceiver", Perceiver, _SERIES),
    Entry("nn_transformer", EncoderDecoder, {"source": tokens(50, 10), "target": tokens(50, 8)}),
    Entry("nn_encoder", lambda: PlainEncoder(norm_first=False), _BOTH),
    Entry("nn_encoder_pre_norm", lambda: PlainEncoder(norm_first=True), _BOTH),
    Entry("alibi", Alibi, _WORDS),
    Entry("rotary", Rotary, _WORDS),
    Entry("transformer_xl", Relative, _WORDS),
    Entry("attentive_gru", Attentive, _BOTH, untold=True),
    Entry("text_cnn", TextCnn, _WORDS),
    Entry("quasi_recurrent", QuasiRecurrent, _SERIES),
    Entry("vocoder", Vocoder, _SERIES, "mse"),
)
