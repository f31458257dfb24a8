"""Models of tables, graphs, points and fields beyond the families that the project set out to support."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import Entry, normal, tokens, uniform

_VECTOR = {"input": normal(12)}


class PointNet(nn.Module):
    """Points [N, 3, P]: shared layers, the maximum over points, a learned 3 x 3 alignment."""

    def __init__(self) -> None:
        super().__init__()
        self.align = nn.Sequential(
            nn.Conv1d(3, 8, 1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 9)
        )
        self.body = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 1))
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        turn = self.align(x).view(-1, 3, 3) + torch.eye(3)
        return self.head(torch.max(self.body(torch.bmm(turn, x)), 2)[0])


class DenseGraph(nn.Module):
    """Two graph convolutions over a dense adjacency, normalised by degree."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        own = adjacency + torch.eye(adjacency.shape[-1])
        scale = own.sum(-1).rsqrt()
        own = scale[..., None] * own * scale[..., None, :]
        x = torch.relu(own @ self.first(nodes))
        return self.head(torch.relu(own @ self.second(x)).mean(1))


class MessagePassing(nn.Module):
    """Messages along a fixed list of edges, summed by `index_add`; attention over them by `scatter_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update, self.head = nn.Linear(12, 8), nn.Linear(14, 8), nn.Linear(8, 4)
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 4, 5, 0, 2]))
        self.register_buffer("target", torch.tensor([1, 2, 3, 4, 5, 0, 3, 5]))

    def forward(self, nodes: Tensor) -> Tensor:
        edges = torch.cat([nodes[:, self.source], nodes[:, self.target]], -1)
        messages = torch.relu(self.message(edges))
        summed = torch.zeros_like(messages[:, :6]).index_add(1, self.target, messages)
        return self.head(torch.relu(self.update(torch.cat([nodes, summed], -1))).mean(1))


class GraphAttention(nn.Module):
    """Graph attention over a dense adjacency: scores of missing edges are masked."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.project = nn.Linear(6, width, bias=False)
        self.left, self.right = nn.Linear(width, 1, bias=False), nn.Linear(width, 1, bias=False)
        self.head = nn.Linear(width, 4)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        h = self.project(nodes)
        scores = F.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        scores = torch.where(adjacency > 0.5, scores, torch.full_like(scores, -1e9))
        return self.head(F.elu(scores.softmax(-1) @ h))


class Capsules(nn.Module):
    """Routing by agreement, three rounds unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.primary = nn.Conv2d(1, 8, 5, 3)
        self.transform = nn.Parameter(torch.randn(18, 4, 4, 6) * 0.2)

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        square = (x * x).sum(-1, keepdim=True)
        return x * square / (1 + square) / torch.sqrt(square + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.primary(x).reshape(x.shape[0], 18, 4))
        votes = torch.einsum("nid,idjo->nijo", u, self.transform)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            v = self.squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * v[:, None]).sum(-1)
        return torch.linalg.vector_norm(v, dim=-1)


class SplineLayer(nn.Module):
    """A Kolmogorov-Arnold layer: a learned spline for each edge, by the recursion of B-splines."""

    def __init__(self, inputs: int, outputs: int, order: int = 2, cells: int = 4) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, cells + 2 * order + 1))
        self.coefficients = nn.Parameter(torch.randn(outputs, inputs, cells + order) * 0.1)
        self.base, self.order = nn.Parameter(torch.randn(outputs, inputs) * 0.3), order

    def forward(self, x: Tensor) -> Tensor:
        knots, y = self.knots, x[..., None]
        basis = ((y >= knots[:-1]) & (y < knots[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (y - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1]) * basis[..., :-1]
            right = (knots[k + 1 :] - y) / (knots[k + 1 :] - knots[1:-k]) * basis[..., 1:]
            basis = left + right
        return F.linear(F.silu(x), self.base) + torch.einsum("nib,oib->no", basis, self.coefficients)


class HyperNetwork(nn.Module):
    """A network that writes the weights of another one, for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.writer, self.head = nn.Linear(4, 12 * 8 + 8), nn.Linear(8, 5)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        weight, bias = self.writer(task).split([96, 8], -1)
        return self.head(torch.tanh(torch.baddbmm(bias[:, None], x[:, None], weight.view(-1, 12, 8))[:, 0]))


class Factorisation(nn.Module):
    """Users and items: dot products, biases and a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 6), nn.Embedding(30, 6)
        self.user_bias, self.item_bias = nn.Embedding(20, 1), nn.Embedding(30, 1)
        self.mean = nn.Parameter(torch.tensor(0.3))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        dot = (self.users(user) * self.items(item)).sum(-1, keepdim=True)
        return dot + self.user_bias(user) + self.item_bias(item) + self.mean


class TwoTower(nn.Module):
    """Normalised towers; every row's logits are its similarities to the rows of the batch's fixed candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        self.candidates, self.log_scale = nn.Parameter(torch.randn(9, 8)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        query, candidates = F.normalize(self.query(x), dim=-1), F.normalize(self.candidates, dim=-1)
        return self.log_scale.exp() * query @ candidates.T


class Siamese(nn.Module):
    """One encoder, two inputs, their distance and cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.encoder(left), self.encoder(right)
        return torch.stack([F.pairwise_distance(a, b), F.cosine_similarity(a, b)], -1)


class NBeats(nn.Module):
    """Doubly residual blocks of backcast and forecast, with a trend basis."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6)) for _ in range(3))
        self.register_buffer("back", torch.stack([torch.linspace(0, 1, 12) ** i for i in range(3)]))
        self.register_buffer("ahead", torch.stack([torch.linspace(1, 1.5, 4) ** i for i in range(3)]))

    def forward(self, x: Tensor) -> Tensor:
        forecast = torch.zeros(x.shape[0], 4)
        for stack in self.stacks:
            theta = stack(x)
            x = x - theta[:, :3] @ self.back
            forecast = forecast + theta[:, 3:] @ self.ahead
        return forecast


class GatedResidual(nn.Module):
    """The temporal fusion transformer's gated residual networks and variable selection."""

    def __init__(self, width: int = 8, variables: int = 4) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.select = nn.Linear(variables * width, variables)
        self.fc1, self.fc2, self.gate = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.stack([embed(x[..., i : i + 1]) for i, embed in enumerate(self.embed)], -2)
        chosen = (self.select(parts.flatten(-2)).softmax(-1).unsqueeze(-1) * parts).sum(-2)
        return self.head(self.norm(chosen + F.glu(self.gate(self.fc2(F.elu(self.fc1(chosen)))), -1)))


class SoftExperts(nn.Module):
    """Experts as one tensor of weights, mixed by a soft gate."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(12, experts)
        self.up, self.down = nn.Parameter(torch.randn(experts, 12, 16) * 0.2), nn.Parameter(torch.randn(experts, 16, 5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(torch.einsum("nd,edh->neh", x, self.up))
        return (self.gate(x).softmax(-1)[..., None] * torch.einsum("neh,eho->neo", hidden, self.down)).sum(1)


class TopExperts(nn.Module):
    """Experts of which the two best of each row count."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(12, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).topk(2, -1)
        weights = torch.zeros(x.shape[0], len(self.experts)).scatter(1, which, best.softmax(-1))
        return sum(weights[:, i, None] * expert(x) for i, expert in enumerate(self.experts))


class Field(nn.Module):
    """NeRF's Fourier features and skip, then density and colour along rays, composed by a running sum of densities."""

    def __init__(self, frequencies: int = 4) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(frequencies))
        width = 3 * 2 * frequencies
        self.first, self.second, self.out = nn.Linear(width, 16), nn.Linear(16 + width, 16), nn.Linear(16, 4)

    def forward(self, points: Tensor) -> Tensor:
        angles = (points[..., None] * self.bands).flatten(-2)
        features = torch.cat([angles.sin(), angles.cos()], -1)
        hidden = torch.relu(self.first(features))
        found = self.out(torch.relu(self.second(torch.cat([hidden, features], -1))))
        density = F.softplus(found[..., 0]) * 0.1
        alpha, through = 1 - torch.exp(-density), torch.exp(density - torch.cumsum(density, 1))
        return ((alpha * through)[..., None] * torch.sigmoid(found[..., 1:])).sum(1)


class Siren(nn.Module):
    """Sines as activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 16)])
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(5.0 * layer(x))
        return self.out(x)


class Highway(nn.Module):
    """Gates between a layer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.gates = (nn.ModuleList(nn.Linear(12, 12) for _ in range(3)) for _ in range(2))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, self.gates, strict=True):
            t = torch.sigmoid(gate(x))
            x = t * torch.relu(layer(x)) + (1 - t) * x
        return self.head(x)


class DeepFm(nn.Module):
    """Factorisation machine and a deep part over the same embeddings."""

    def __init__(self, fields: int = 5, width: int = 4) -> None:
        super().__init__()
        self.first, self.embed = nn.Embedding(40, 1), nn.Embedding(40, width)
        self.deep = nn.Sequential(nn.Linear(fields * width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("offsets", torch.arange(fields) * 8)

    def forward(self, fields: Tensor) -> Tensor:
        ids = fields + self.offsets
        x = self.embed(ids)
        pairs = 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(-1, keepdim=True)
        return torch.sigmoid(self.first(ids).sum(1) + pairs + self.deep(x.flatten(1)))


class TabTransformer(nn.Module):
    """Categories as tokens beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.column = nn.Embedding(40, 8), nn.Parameter(torch.randn(5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm, self.head = nn.LayerNorm(12), nn.Sequential(nn.Linear(52, 16), nn.SELU(), nn.Linear(16, 3))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        x = self.layer(self.embed(categories) + self.column).flatten(1)
        return self.head(torch.cat([x, self.norm(numbers)], 1))


class RealNvp(nn.Module):
    """Affine couplings of a flow; output: latent numbers and the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        total = torch.zeros_like(x[:, :1])
        for net in self.nets:
            scale, shift = net(left).chunk(2, -1)
            scale = torch.tanh(scale)
            left, right = right * torch.exp(scale) + shift, left
            total = total + scale.sum(-1, keepdim=True)
        return torch.cat([left, right, total], -1)


class VectorQuantised(nn.Module):
    """Rows are replaced by the nearest code; gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes, self.decoder = nn.Linear(12, 4), nn.Embedding(10, 4), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.weight.T + self.codes.weight.pow(2).sum(1)
        code = self.codes(distance.argmin(1))
        return self.decoder(z + (code - z).detach()) + 0.1 * (code - z).pow(2).mean(1, keepdim=True)


class Bilinear(nn.Module):
    """`nn.Bilinear` of two inputs and a ranking by maximum and minimum."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = nn.Bilinear(12, 5, 8), nn.Linear(10, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = torch.tanh(self.pair(x, y))
        return self.head(torch.cat([found, found.amax(1, keepdim=True), found.amin(1, keepdim=True)], 1))


class DeepSets(nn.Module):
    """A sum, a maximum, a variance over a set."""

    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = nn.Linear(6, 8), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.softplus(self.phi(x))
        return self.rho(torch.cat([h.sum(1), h.amax(1), h.std(1)], 1))


_GRAPH = {
    "nodes": normal(6, 6),
    "adjacency": lambda generator, batch: (torch.rand(batch, 6, 6, generator=generator) < 0.5).float(),
}
ENTRIES = (
    Entry("point_net", PointNet, {"input": normal(3, 20)}),
    Entry("graph_convolution", DenseGraph, _GRAPH),
    Entry("message_passing", MessagePassing, {"nodes": normal(6, 6)}),
    Entry("graph_attention", GraphAttention, _GRAPH),
    Entry("capsules", Capsules, {"input": normal(1, 12, 12)}),
    Entry("kan", lambda: nn.Sequential(SplineLayer(12, 8), SplineLayer(8, 5)), _VECTOR),
    Entry("hyper_network", HyperNetwork, {"input": normal(12), "task": normal(4)}),
    Entry("matrix_factorisation", Factorisation, {"user": tokens(20), "item": tokens(30)}, "mse"),
    Entry("two_tower", TwoTower, _VECTOR),
    Entry("siamese", Siamese, {"left": normal(12), "right": normal(12)}, "mse"),
    Entry("n_beats", NBeats, _VECTOR, "mse"),
    Entry("gated_residual", GatedResidual, {"input": normal(4)}),
    Entry("soft_experts", SoftExperts, _VECTOR),
    Entry("top_experts", TopExperts, _VECTOR),
    Entry("nerf", Field, {"points": uniform(8, 3)}, "mse"),
    Entry("siren", Siren, {"input": uniform(2)}, "mse"),
    Entry("highway", Highway, _VECTOR),
    Entry("deep_fm", DeepFm, {"fields": tokens(8, 5)}, "mse"),
    Entry("tab_transformer", TabTransformer, {"categories": tokens(40, 5), "numbers": normal(12)}),
    Entry("real_nvp", RealNvp, _VECTOR, "mse"),
    Entry("vector_quantised", VectorQuantised, _VECTOR, "mse", untold=True),
    Entry("bilinear", Bilinear, {"input": normal(12), "other": normal(5)}),
    Entry("deep_sets", DeepSets, {"input": normal(7, 6)}),
)
