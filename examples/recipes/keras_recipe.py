"""Keras: every variable is an input of the export, so that nothing is folded, and an initializer of the file."""

import tensorflow as tf
import tf2onnx
from onnx import numpy_helper

import pockfarm


def fine_tuned(model, x, y, spec):
    learning, rest = model.trainable_variables, model.non_trainable_variables
    values = {f"w{number}": variable for number, variable in enumerate([*learning, *rest])}
    inputs = [tf.TensorSpec((spec["batch"], *x.shape[1:]), x.dtype, name="x")]
    inputs += [tf.TensorSpec(variable.shape, variable.dtype, name=name) for name, variable in values.items()]
    split = len(learning)
    call = tf.function(lambda x, *w: model.stateless_call(w[:split], w[split:], x, training=False)[0], inputs)
    file, _ = tf2onnx.convert.from_function(call, inputs, opset=18)
    del file.graph.input[1:]
    file.graph.initializer.extend(numpy_helper.from_array(v.numpy(), name) for name, v in values.items())
    plan = {"update": [{"parameters": list(values)[:split]}]}
    tuned = pockfarm.fine_tune(file.SerializeToString(), data=(x, y), plan=plan, spec=spec)
    for name, variable in list(values.items())[:split]:
        variable.assign(tuned[name])
    return tuned
