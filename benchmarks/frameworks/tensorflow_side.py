"""TensorFlow: the model's operators inside one `tf.function` with NHWC images and momentum updates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from portable import Operator, feeds_of, load_graph
from steps import MOMENTUM, Task, train

DTYPES = {"f32": tf.float32, "i64": tf.int64, "i32": tf.int32, "bool": tf.bool}


def _padded(x: Any, pads: Sequence[int], value: float = 0.0) -> Any:
    top, left, bottom, right = pads
    if not any(pads):
        return x
    return tf.pad(x, [[0, 0], [top, bottom], [left, right], [0, 0]], constant_values=value)


def _window(x: Any, weight: Any, a: Mapping[str, Any]) -> tuple[Any, str]:
    """(input, padding): "SAME" where it means the same pads, else the input padded by itself."""
    (top, left, bottom, right), kernel = a["pads"], weight.shape[:2]
    centred = all(
        2 * before == 2 * after == extent - 1
        for before, after, extent in zip((top, left), (bottom, right), kernel, strict=True)
    )
    if centred and list(a["strides"]) == [1, 1] and list(a["dilations"]) == [1, 1]:
        return x, "SAME"
    return _padded(x, a["pads"]), "VALID"


def _conv(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    image, padding = _window(x[0], x[1], a)
    return tf.nn.conv2d(image, x[1], a["strides"], padding, dilations=a["dilations"])


def _depthwise(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    image, padding = _window(x[0], x[1], a)
    weight = tf.expand_dims(x[1], -1)
    return tf.nn.depthwise_conv2d(image, weight, [1, *a["strides"], 1], padding, dilations=a["dilations"])


def _max_pool(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    padded = _padded(x[0], a["pads"], float("-inf"))
    return tf.nn.max_pool2d(padded, a["kernel"], a["strides"], "VALID")


def _slice(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return tf.strided_slice(x[0], a["starts"], a["stops"], a["steps"])


def _normalize(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    mean, variance = tf.nn.moments(x[0], -1, keepdims=True)
    return tf.nn.batch_normalization(x[0], mean, variance, None, None, a["epsilon"])


def _matmul(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    if x[1].shape.rank == 2 and x[0].shape.rank > 2 and not a["transpose_a"]:
        rows = tf.reshape(x[0], [-1, x[0].shape[-1]])
        product = tf.matmul(rows, x[1], transpose_b=a["transpose_b"])
        return tf.reshape(product, [*x[0].shape[:-1], product.shape[-1]])
    return tf.matmul(x[0], x[1], a["transpose_a"], a["transpose_b"])


def _embedding(x: Sequence[Any], a: Mapping[str, Any]) -> Any:
    rows = tf.gather(x[0], x[1])
    return tf.where(tf.equal(x[1], a["padding"])[..., None], tf.stop_gradient(rows), rows)


OPERATORS: Mapping[str, Operator] = {
    "add": lambda x, a: x[0] + x[1],
    "sub": lambda x, a: x[0] - x[1],
    "mul": lambda x, a: x[0] * x[1],
    "div": lambda x, a: x[0] / x[1],
    "neg": lambda x, a: -x[0],
    "and": lambda x, a: tf.logical_and(x[0], x[1]),
    "where": lambda x, a: tf.where(x[0], x[1], x[2]),
    "cast": lambda x, a: tf.cast(x[0], DTYPES[a["to"]]),
    "reciprocal": lambda x, a: tf.math.reciprocal(x[0]),
    "sqrt": lambda x, a: tf.sqrt(x[0]),
    "rsqrt": lambda x, a: tf.math.rsqrt(x[0]),
    "tanh": lambda x, a: tf.tanh(x[0]),
    "sigmoid": lambda x, a: tf.sigmoid(x[0]),
    "erf": lambda x, a: tf.math.erf(x[0]),
    "relu": lambda x, a: tf.nn.relu(x[0]),
    "clip": lambda x, a: (
        tf.nn.relu6(x[0]) if (a["low"], a["high"]) == (0, 6) else tf.clip_by_value(x[0], a["low"], a["high"])
    ),
    "reshape": lambda x, a: tf.reshape(x[0], a["shape"]),
    "transpose": lambda x, a: tf.transpose(x[0], a["perm"]),
    "broadcast_to": lambda x, a: tf.broadcast_to(x[0], a["shape"]),
    "concat": lambda x, a: tf.concat(list(x), a["axis"]),
    "slice": _slice,
    "embedding": _embedding,
    "is_nan": lambda x, a: tf.math.is_nan(x[0]),
    "gather": lambda x, a: tf.gather(x[0], x[1], axis=a["axis"]),
    "reduce_mean": lambda x, a: tf.reduce_mean(x[0], a["axes"], keepdims=bool(a["keepdims"])),
    "softmax": lambda x, a: tf.nn.softmax(x[0]),
    "normalize": _normalize,
    "matmul": _matmul,
    "conv2d": _conv,
    "depthwise_conv2d": _depthwise,
    "max_pool": _max_pool,
}


def main() -> None:
    """One process of a comparison."""
    task = Task.from_arguments()
    tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    tf.config.threading.set_inter_op_parallelism_threads(task.threads)
    graph, feeds = feeds_of(load_graph(task.folder), task.feed)
    learned = set(task.learned("module"))
    constants = {name: tf.constant(array) for name, array in graph.constants.items()}
    constants |= {name: tf.constant(array) for name, array in graph.parameters.items() if name not in learned}
    variables = {name: tf.Variable(array) for name, array in graph.parameters.items() if name in learned}
    momenta = {name: tf.Variable(tf.zeros_like(variable)) for name, variable in variables.items()}
    batch = {name: tf.constant(array) for name, array in feeds.items()}
    labels = tf.constant(task.labels().reshape(-1))

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Mapping[str, Any], labels: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(variables.values()))
            weights = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
            logits = graph.run(OPERATORS, {**constants, **batch, **weights})
            logits = tf.reshape(logits, [-1, logits.shape[-1]])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, list(variables.values()))
        for name, gradient in zip(variables, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variables[name].handle,
                accum=momenta[name].handle,
                lr=task.learning_rate,
                grad=tf.convert_to_tensor(gradient),
                momentum=MOMENTUM,
            )
        return loss

    train(lambda: float(step(batch, labels)))


if __name__ == "__main__":
    main()
