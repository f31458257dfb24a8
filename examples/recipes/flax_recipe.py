"""JAX and Flax: the file's tensors have other names and layouts; `match_weights` finds them by their elements."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax2onnx import to_onnx

import pockfarm


def fine_tuned(model, x, y, spec, path):
    to_onnx(model, [(spec["batch"], *x.shape[1:])], return_mode="file", output_path=path)
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    weights = {".".join(map(str, key)): np.asarray(value) for key, value in state}
    matched = pockfarm.match_weights(path, weights)
    tuned = pockfarm.fine_tune(path, data=(x, y), plan=matched.plan, spec={**spec, "batch_norm": "frozen"})
    trained = matched.back(tuned)
    flat = [(key, nnx.Param(jnp.asarray(trained[".".join(map(str, key))]))) for key, _ in state]
    nnx.update(model, nnx.from_flat_state(flat))
    return tuned, matched.absent
