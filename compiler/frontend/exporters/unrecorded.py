"""Parameters of files that carry no record of the program they came from: TorchScript's, other exporters', hand-made.

Such a file is taken at its word: every float initializer is a parameter, and one that two nodes read is one parameter.
Known habits of exporters are undone; what is a guess is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from compiler.element_types import holds_reals
from compiler.frontend.file.added import is_infinite_mask
from compiler.frontend.file.source import SourceModel, SourceNode, free_name
from compiler.frontend.file.torch_record import UNOPTIMIZED
from compiler.frontend.number_patterns import is_round_number
from compiler.graph import Array
from compiler.warnings import CompileWarning, few_of

MASKED = 1e4
"""Numbers this large stand for minus infinity in an additive attention mask."""
_MADE_UP = re.compile(
    r"onnx::\w+_\d+|/.*|val_\d+|const_fold_opt__\d+|lifted_tensor_\d+|scalar_tensor_default(_\d+)?"
    r"|.*/(x|y|Const(_\d+)?):0"
)
"""Names that exporters give to what they computed; a parameter that they leave as it is keeps its own."""
_PARAMETER = re.compile(r"(weight|bias|gamma|beta|kernel)[^.]*$")
_FOLDED = re.compile(r"val_\d+|onnx::MatMul_\d+")
_BOUNDING = frozenset(
    ("Clip", "Dropout", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Pad", "Where")
)
"""Operators whose single numbers are limits and fillings."""
PYTORCH = "pytorch"
"""The producer of files whose literals are Constant nodes: a single number among the initializers is a parameter."""
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_CALL = re.compile(r"_\d+$")
_SPEC = "decide in the spec: `tied: [[a, b]]`, `untied: [name]`"


def tell_parameters_apart(source: SourceModel, untied: Collection[str]) -> SourceModel:
    """The model with its parameters named and told apart as far as the file tells; a record's words stand.

    Initializers in `untied` are not guessed to be one with others. What holds a mask's infinity is no parameter.
    """
    masks = _infinite_masks(source)
    if source.record is not None:
        return _tell_of_masks(replace(source, constants=source.constants | masks), source.record.parameters & masks)
    source = replace(source, constants=source.constants | _constants(source) | masks)
    if source.producer == PYTORCH:
        source = _named_convolutions(_named_weights(_unmerged_identities(source)))
        source = _tied_tables(_apart_by_module(source), untied)
    return _tell_of_unclear(source)


def is_made_up(name: str) -> bool:
    """Whether an exporter invented a name."""
    return _MADE_UP.fullmatch(name) is not None


def _constants(source: SourceModel) -> frozenset[str]:
    """Float initializers that are masks, weights of a loss's classes, or single numbers that only bound others.

    PyTorch's exporter gives names of its own to what it computed, and those of the author to parameters.
    """
    readers: dict[str, set[str]] = {}
    for node in source.nodes:
        for name in node.inputs:
            readers.setdefault(name, set()).add(node.op_type)
    class_weights = {node.operand(2) for node in source.nodes if node.op_type in _LOSSES}
    return frozenset(
        name
        for name, array in source.initializers.items()
        if (array.size == 1 and (readers.get(name, set()) <= _BOUNDING or _is_damaged(array)))
        or (array.size == 1 and source.producer == PYTORCH and is_made_up(name))
        or (array.dtype.kind == "f" and _is_mask(array))
        or name in class_weights
    )


def _is_damaged(array: Array) -> bool:
    return holds_reals(array) and not bool(np.isfinite(array).all())


def _infinite_masks(source: SourceModel) -> frozenset[str]:
    readers = source.readers()
    return frozenset(
        name for name, array in source.initializers.items() if is_infinite_mask(name, array, readers)
    ) - set(source.outputs)


def _tell_of_masks(source: SourceModel, parameters: Collection[str]) -> SourceModel:
    if not parameters:
        return source
    what = "parameters that hold infinity and are only added or chosen: masks, which stay as they are and do not learn"
    hint = "keep a mask in a buffer, and what is to learn in a parameter without it"
    return _warned(source, "model.mask_parameter", few_of(sorted(parameters)), what, hint)


def _is_mask(array: Array) -> bool:
    """Whether an array is an additive mask of finite numbers: zeros (or ones), and numbers that stand for minus
    infinity.
    """
    large = np.abs(array) >= MASKED
    if not bool(large.any()) or not bool(np.isfinite(array).all()):
        return False
    return np.unique(array[~large]).size <= 2


# --------------------------------------------------------------------------------------------------------- PyTorch's


def _named_weights(source: SourceModel) -> SourceModel:
    """The weight of a Linear, whose transpose the exporter folded, as `<module>.weight` again, in its own layout.

    Equal ones are stored once; each module gets its own.
    """
    initializers = dict(source.initializers)
    prologue: list[SourceNode] = []
    nodes: list[SourceNode] = []
    views: dict[tuple[str, str], str] = {}
    used_names = source.value_names()
    others = used_names - set(initializers)
    modules = {node.module for node in source.nodes if _is_linear(node, source.initializers)}
    biased = _biased_modules(source)
    for node in source.nodes:
        if not _is_linear(node, source.initializers):
            nodes.append(node)
            continue
        x, name = node.inputs
        module = biased.get(node.outputs[0]) or _called_module(node.module, modules)
        weight = _unlike(_weight_name(module, initializers), others)
        array = np.ascontiguousarray(source.initializers[name].T)
        if (weight, name) not in views and np.array_equal(initializers.setdefault(weight, array), array):
            views[weight, name] = free_name(f"{weight}:transpose", used_names)
            output = (views[weight, name],)
            prologue.append(SourceNode(node.name, "Transpose", (weight,), output, {"perm": (1, 0)}, node.module))
        nodes.append(replace(node, inputs=(x, views.get((weight, name), name))))
    separated = replace(source, nodes=(*prologue, *nodes), initializers=initializers)
    merged = [weight for weight, name in views if sum(other == name for _, other in views) > 1]
    if not merged:
        return separated
    what = "stored once because their elements are equal; they learn apart, since their modules differ"
    return _warned(separated, "model.untied", few_of(merged), what, f"if they are one, {_SPEC}")


def _biased_modules(source: SourceModel) -> dict[str, str]:
    """Product -> the module whose bias is added to it, if that has the last part of the path that the product tells.

    The bias keeps its name; in paths, TorchScript leaves out what is not called itself.
    """
    products = {node.outputs[0]: node.module for node in source.nodes if _is_linear(node, source.initializers)}
    modules: dict[str, str] = {}
    for node in source.nodes:
        summands = [name for name in node.inputs if name in products] if node.op_type == "Add" else []
        biases = [name for name in node.inputs if name in source.initializers and name.endswith(".bias")]
        if len(summands) != 1 or len(biases) != 1:
            continue
        module, path = biases[0].removesuffix(".bias"), products[summands[0]]
        if path.rpartition(".")[2] in (module.rpartition(".")[2], module.rpartition(".")[0].rpartition(".")[2]):
            modules[summands[0]] = module
    return modules


def _named_convolutions(source: SourceModel) -> SourceModel:
    """Weight and bias of a convolution into which TorchScript folded a norm, as its module calls them."""
    initializers, others = dict(source.initializers), source.value_names() - set(source.initializers)
    nodes, normed = [], set(source.normed)
    modules = {node.module for node in source.nodes if node.op_type in _CONVOLUTIONS}
    for node in source.nodes:
        stored = [source.initializers.get(name) for name in node.inputs[1:3]]
        # What a folded norm leaves is a bias that is made up too; other arithmetic (weight norm) leaves the bias alone.
        is_folded = node.op_type in _CONVOLUTIONS and len(stored) == 2 and all(map(is_made_up, node.inputs[1:3]))
        if not is_folded or not node.module or any(array is None for array in stored):
            nodes.append(node)
            continue
        module = _called_module(node.module, modules)
        parameter_names = [_unlike(f"{module}.{leaf}", others) for leaf in ("weight", "bias")]
        existing = [initializers.get(name) for name in parameter_names]
        if all(
            old is None or np.array_equal(old, new)
            for old, new in zip(existing, stored, strict=True)
            if new is not None
        ):
            initializers |= {
                name: array for name, array in zip(parameter_names, stored, strict=True) if array is not None
            }
            normed.add(parameter_names[0])
            node = replace(node, inputs=(node.inputs[0], *parameter_names))
        nodes.append(node)
    return replace(source, nodes=tuple(nodes), initializers=initializers, normed=frozenset(normed))


def _unlike(name: str, others: Collection[str]) -> str:
    """The name, with marks as long as it is that of a value that is no initializer."""
    while name in others:
        name += "'"
    return name


def _called_module(module: str, modules: Collection[str]) -> str:
    """TorchScript numbers the calls of a module: `head_1` is the second call of `head`, if that is called too."""
    base = _CALL.sub("", module)
    return base if base in modules else module


def _weight_name(module: str, initializers: Collection[str]) -> str:
    """`<module>.weight`, or what `nn.MultiheadAttention` calls its merged projections."""
    return f"{module}.{'in_proj_weight' if f'{module}.in_proj_bias' in initializers else 'weight'}"


def _is_linear(node: SourceNode, initializers: Mapping[str, Array]) -> bool:
    """Whether the node multiplies by a weight that the exporter transposed. Only dynamo tells the operator."""
    name = node.inputs[1] if node.op_type == "MatMul" and len(node.inputs) == 2 else ""
    array = initializers.get(name)
    if array is None or array.ndim != 2 or not holds_reals(array) or not node.module:
        return False
    return _FOLDED.fullmatch(name) is not None and node.torch_op in ("", "aten.linear.default")


def _unmerged_identities(source: SourceModel) -> SourceModel:
    """TorchScript stores equal tensors once and names the others by Identity nodes; truly shared ones have none."""
    initializers = dict(source.initializers)
    nodes = []
    for node in source.nodes:
        array = initializers.get(node.operand(0)) if node.op_type == "Identity" else None
        if array is None or not holds_reals(array):
            nodes.append(node)
        else:
            initializers[node.outputs[0]] = array
    return replace(source, nodes=tuple(nodes), initializers=initializers)


def _apart_by_module(source: SourceModel) -> SourceModel:
    """A vector of equal elements that several modules read is one for each of them: the exporter merged fresh ones.

    Only dynamo's exports say which module a node came from; TorchScript's names count the calls of a module.
    """
    if not any(node.torch_op for node in source.nodes):
        return source
    initializers = dict(source.initializers)
    others = source.value_names() - set(initializers)
    owner: dict[str, str] = {}
    guessed: list[str] = []
    nodes: list[SourceNode] = []
    for node in source.nodes:
        inputs = list(node.inputs)
        for index, name in enumerate(inputs):
            array = source.initializers.get(name)
            if array is None or not node.module or not _is_fill(array) or name in source.constants:
                continue
            if owner.setdefault(name, node.module) != node.module:
                copy_name = _unlike(f"{node.module}.{'weight' if array.any() else 'bias'}", others)
                while not np.array_equal(initializers.setdefault(copy_name, array), array):
                    copy_name = _unlike(f"{copy_name}'", others)
                inputs[index] = copy_name
                guessed.append(inputs[index])
        nodes.append(replace(node, inputs=tuple(inputs)))
    separated = replace(source, nodes=tuple(nodes), initializers=initializers, created=frozenset(guessed))
    if not guessed:
        return separated
    what = "stored once because their elements are equal; they learn apart, since their modules differ"
    return _warned(separated, "model.untied", few_of(guessed), what, f"if they are one, {_SPEC}")


def _tied_tables(source: SourceModel, untied: Collection[str]) -> SourceModel:
    """An embedding table and an output weight with the same elements are one parameter, stored twice."""
    tables = {node.inputs[0] for node in source.nodes if node.op_type == "Gather" and node.inputs}
    weights = {name for node in source.nodes if node.op_type in ("MatMul", "Gemm", "Transpose") for name in node.inputs}
    renamed: dict[str, str] = {}
    tied: dict[str, str] = {}
    used_names = source.value_names()
    prologue: list[SourceNode] = []
    for table in sorted(tables & set(source.initializers) - weights - set(untied)):
        rows = source.initializers[table]
        if not holds_reals(rows) or rows.ndim != 2 or min(rows.shape) < 2 or bool((rows == rows[0, 0]).all()):
            continue
        for name in sorted(weights & set(source.initializers) - set(untied)):
            if np.array_equal(source.initializers[name], rows):
                renamed[name] = table
            elif np.array_equal(source.initializers[name], rows.T):
                renamed[name] = free_name(f"{table}:transpose", used_names)
                output = (renamed[name],)
                prologue.append(SourceNode(f"transpose {table}", "Transpose", (table,), output, {"perm": (1, 0)}))
            if name in renamed:
                tied[name] = table
    unified = replace(source, nodes=(*prologue, *_reading(source.nodes, renamed)))
    for name, table in tied.items():
        what = f"taken as the same as {table!r}: their elements are equal"
        unified = _warned(unified, "model.tied", f"parameter {name!r}", what, f"if they are two, {_SPEC}")
    return unified


def _reading(nodes: tuple[SourceNode, ...], renamed: Mapping[str, str]) -> tuple[SourceNode, ...]:
    return tuple(replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in nodes)


# ------------------------------------------------------------------------------------------------------------- unclear


def _is_fill(array: Array) -> bool:
    """Whether an array is a vector (one axis longer than 1) of equal elements: a fresh bias or norm, not yet
    trained.
    """
    vector = holds_reals(array) and sum(extent > 1 for extent in array.shape) == 1
    return vector and bool((array == array.reshape(-1)[0]).all())


def _tell_of_unclear(source: SourceModel) -> SourceModel:
    """Warnings of what the file leaves open: shared fresh vectors, and parameters that may be buffers."""
    times: dict[str, int] = {}
    for node in source.nodes:
        for name in node.inputs[:3] if node.op_type == "BatchNormalization" else node.inputs:
            times[name] = times.get(name, 0) + 1
    trained = [
        name
        for name, array in source.initializers.items()
        if holds_reals(array) and name not in source.constants and times.get(name)
    ]
    shared = [name for name in trained if times[name] > 1 and _is_fill(source.initializers[name])]
    # A convolution's weight is computed where a BatchNorm was folded into it: that is told elsewhere.
    computed = [name for name in trained if is_made_up(name) and not name.startswith("onnx::Conv")]
    unlike = [name for name in trained if not is_made_up(name) and not _PARAMETER.search(name)]
    if source.producer != PYTORCH:  # else presets leave these numbers out
        unlike = [name for name in unlike if not is_round_number(source.initializers[name])]
    numbers = [name for name in unlike if source.initializers[name].size == 1]
    doubtful = unlike if source.producer == PYTORCH else numbers
    if shared:
        what = "several nodes read this vector of equal elements: it learns as one parameter"
        source = _warned(source, "model.shared_fill", few_of(shared), what, f"if an exporter merged several, {_SPEC}")
    if computed:
        what = "learn as they are, although an exporter computed them; from which parameters, the file does not tell"
        hint = f"{UNOPTIMIZED}, so that the parameters themselves learn"
        source = _warned(source, "model.computed_parameters", few_of(computed), what, hint)
    if doubtful:
        what = "taken as parameters: the file does not tell them from buffers and constants"
        hint = "freeze what should not learn by a rule with ratio 0"
        source = _warned(source, "model.unlabelled", few_of(doubtful), what, hint)
    return source


def _warned(source: SourceModel, code: str, where: str, message: str, hint: str) -> SourceModel:
    return replace(source, warnings=(*source.warnings, CompileWarning(code, where, message, hint)))
