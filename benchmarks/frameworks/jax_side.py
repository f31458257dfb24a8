"""JAX: the model's operators inside one jitted step with NHWC images, weights and momenta donated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from portable import Operator, feeds_of, load_graph
from steps import MOMENTUM, Task, train

DTYPES = {"f32": jnp.float32, "i64": jnp.int32, "i32": jnp.int32, "bool": jnp.bool_}
IMAGES = ("NHWC", "HWIO", "NHWC")


def _pads(pads: Sequence[int]) -> list[tuple[int, int]]:
    top, left, bottom, right = pads
    return [(top, bottom), (left, right)]


def _conv(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return lax.conv_general_dilated(
        x[0], x[1], a["strides"], _pads(a["pads"]), rhs_dilation=a["dilations"], dimension_numbers=IMAGES
    )


def _depthwise(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    channels = x[0].shape[-1]
    return lax.conv_general_dilated(
        x[0],
        jnp.expand_dims(x[1], 2),
        a["strides"],
        _pads(a["pads"]),
        rhs_dilation=a["dilations"],
        dimension_numbers=IMAGES,
        feature_group_count=channels,
    )


def _max_pool(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    window, strides = (1, *a["kernel"], 1), (1, *a["strides"], 1)
    return lax.reduce_window(x[0], -jnp.inf, lax.max, window, strides, [(0, 0), *_pads(a["pads"]), (0, 0)])


def _slice(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return lax.slice(x[0], a["starts"], a["stops"], a["steps"])


def _normalize(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    mean = jnp.mean(x[0], -1, keepdims=True)
    variance = jnp.mean(jnp.square(x[0] - mean), -1, keepdims=True)
    return (x[0] - mean) * lax.rsqrt(variance + a["epsilon"])


def _matmul(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    left = jnp.swapaxes(x[0], -1, -2) if a["transpose_a"] else x[0]
    right = jnp.swapaxes(x[1], -1, -2) if a["transpose_b"] else x[1]
    return jnp.matmul(left, right)


def _embedding(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    rows = jnp.take(x[0], x[1], axis=0)
    return jnp.where((x[1] == a["padding"])[..., None], lax.stop_gradient(rows), rows)


OPERATORS: Mapping[str, Operator] = {
    "add": lambda x, a: x[0] + x[1],
    "sub": lambda x, a: x[0] - x[1],
    "mul": lambda x, a: x[0] * x[1],
    "div": lambda x, a: x[0] / x[1],
    "neg": lambda x, a: -x[0],
    "and": lambda x, a: jnp.logical_and(x[0], x[1]),
    "where": lambda x, a: jnp.where(x[0], x[1], x[2]),
    "cast": lambda x, a: x[0].astype(DTYPES[a["to"]]),
    "reciprocal": lambda x, a: 1 / x[0],
    "sqrt": lambda x, a: jnp.sqrt(x[0]),
    "rsqrt": lambda x, a: lax.rsqrt(x[0]),
    "tanh": lambda x, a: jnp.tanh(x[0]),
    "sigmoid": lambda x, a: jax.nn.sigmoid(x[0]),
    "erf": lambda x, a: lax.erf(x[0]),
    "relu": lambda x, a: jax.nn.relu(x[0]),
    "clip": lambda x, a: jnp.clip(x[0], a["low"], a["high"]),
    "reshape": lambda x, a: x[0].reshape(a["shape"]),
    "transpose": lambda x, a: jnp.transpose(x[0], a["perm"]),
    "broadcast_to": lambda x, a: jnp.broadcast_to(x[0], a["shape"]),
    "concat": lambda x, a: jnp.concatenate(list(x), a["axis"]),
    "slice": _slice,
    "embedding": _embedding,
    "is_nan": lambda x, a: jnp.isnan(x[0]),
    "gather": lambda x, a: jnp.take(x[0], x[1], axis=a["axis"]),
    "reduce_mean": lambda x, a: jnp.mean(x[0], tuple(a["axes"]), keepdims=bool(a["keepdims"])),
    "softmax": lambda x, a: jax.nn.softmax(x[0], -1),
    "normalize": _normalize,
    "matmul": _matmul,
    "conv2d": _conv,
    "depthwise_conv2d": _depthwise,
    "max_pool": _max_pool,
}


def main() -> None:
    """One process of a comparison. XLA takes its threads from the cores that the process may use."""
    task = Task.from_arguments()
    graph, feeds = feeds_of(load_graph(task.folder), task.feed)
    learned = set(task.learned("module"))
    frozen = {name: jnp.asarray(array) for name, array in graph.parameters.items() if name not in learned}
    constants = {name: jnp.asarray(array) for name, array in graph.constants.items()}
    weights = {name: jnp.asarray(array) for name, array in graph.parameters.items() if name in learned}
    momenta = {name: jnp.zeros_like(array) for name, array in weights.items()}
    batch = {name: jnp.asarray(array) for name, array in feeds.items()}
    labels = jnp.asarray(task.labels().reshape(-1))

    def loss_of(weights: Any, frozen: Any, batch: Any) -> Any:
        logits = graph.run(OPERATORS, {**constants, **frozen, **batch, **weights})
        logits = logits.reshape(-1, logits.shape[-1])
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -jnp.mean(picked)

    def update(weights: Any, momenta: Any, frozen: Any, batch: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, frozen, batch)
        momenta = {name: MOMENTUM * momenta[name] + gradients[name] for name in momenta}
        weights = {name: weights[name] - task.learning_rate * momenta[name] for name in weights}
        return weights, momenta, loss

    compiled = jax.jit(update, donate_argnums=(0, 1))

    def step() -> float:
        nonlocal weights, momenta
        weights, momenta, loss = compiled(weights, momenta, frozen, batch)
        jax.block_until_ready((weights, loss))
        return float(loss)

    train(step)


if __name__ == "__main__":
    main()
