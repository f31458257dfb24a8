"""The elements of tensors that lie in files beside the model (`compiler.frontend.file.references` says where)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from compiler.errors import LimitExceeded
from compiler.external import External
from compiler.frontend.file.prescan import DEFAULT_LIMITS, prescan
from compiler.frontend.file.references import Reference, payload_bytes
from compiler.tensors import Array


def fill_in(proto: Any, external: External) -> dict[str, Array]:
    """The elements of the graph's initializers that lie in other files, by name: views, not copies.

    Tensors elsewhere (of attributes, sub-graphs, functions) get theirs inside the message.
    """
    arrays: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            arrays[tensor.name] = _array(tensor, external)
    for tensor in _inner_tensors(proto):
        _embed(tensor, external)
    return arrays


def embedded(model: bytes, external: External) -> bytes:
    """The model in one file. Raises: ModelError (as an import), LimitExceeded (above what a protobuf message holds)."""
    import onnx

    sizes = {location: memoryview(data).nbytes for location, data in external.items()}
    prescan(model, external_bytes=sizes)
    total_bytes = len(model) + sum(sizes.values())
    if total_bytes > DEFAULT_LIMITS.model_bytes:
        limit = f"{total_bytes:,} bytes with its data, the limit is {DEFAULT_LIMITS.model_bytes:,} here"
        raise LimitExceeded(limit, where="model", hint="use `pockfarm build`, which takes its files as they are")
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    for tensor in tensors_elsewhere(proto):
        _embed(tensor, external)
    return bytes(proto.SerializeToString(deterministic=True))


def tensors_elsewhere(proto: Any) -> list[Any]:
    """Returns every tensor (protobuf) of a model that lies in a data file."""
    tensors = (*proto.graph.initializer, *_inner_tensors(proto))
    return [tensor for tensor in tensors if tensor.data_location == tensor.EXTERNAL]


def _embed(tensor: Any, external: External) -> None:
    if tensor.data_location == tensor.EXTERNAL:
        tensor.raw_data = bytes(_bytes_of(tensor, external))
        tensor.data_location = tensor.DEFAULT
        tensor.ClearField("external_data")


def _bytes_of(tensor: Any, external: External) -> memoryview:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    reference = Reference.read(entries, f"tensor {tensor.name!r}")
    data = memoryview(external[reference.location]).cast("B")
    needed = payload_bytes(prod(tensor.dims), tensor.data_type)
    return data[reference.offset : reference.offset + needed]


def _array(tensor: Any, external: External) -> Array:
    from onnx import TensorProto, helper, numpy_helper

    dtype, shape = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims)
    count = prod(shape)
    content = _bytes_of(tensor, external)
    if tensor.data_type == TensorProto.BOOL or dtype.itemsize * count > len(content):
        # Packed elements of less than a byte: the library knows how.
        whole = TensorProto(dims=shape, data_type=tensor.data_type, raw_data=bytes(content))
        return np.asarray(numpy_helper.to_array(whole))
    return np.frombuffer(content, dtype, count).reshape(shape)


def _inner_tensors(proto: Any) -> Iterator[Any]:
    todo = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while todo:
        for attribute in todo.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            for graph in (attribute.g, *attribute.graphs):
                yield from graph.initializer
                todo += graph.node
