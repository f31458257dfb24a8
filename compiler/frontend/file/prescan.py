"""Refuses what is absurd in an ONNX file before any library parses it.

Walks the protobuf wire format in plain Python: sizes, nesting, counts, names, ranks, products of dimensions (Python
integers, so nothing overflows), declared against present bytes, external data, domains, recursive functions. Nothing
is allocated by a declared size, and the payload of tensors is skipped, so the time depends on the number of fields.

Source: field numbers of onnx.proto (ONNX IR version 10 to 13).

The stated limits on a model that the compiler accepts; every refusal names the limit and the actual figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from compiler.errors import LimitExceeded, ModelError, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.references import ITEM_BITS, Reference, check_apart, check_range, payload_bytes
from compiler.frontend.file.wire import BYTES, FIXED32, FIXED64, VARINT, WireReader, signed


@dataclass(frozen=True)
class ModelLimits:
    """Bounds on an ONNX file and on the graph it becomes.

    Units: `_bytes` are bytes, everything else is a count. A farm may set smaller ones; the defaults admit any model
    that fits one protobuf message.
    """

    model_bytes: int = (1 << 31) - 1
    """A protobuf message cannot be larger."""
    message_depth: int = 64
    """Nested protobuf messages; a plain graph needs 7."""
    wire_fields: int = 2_000_000
    """Protobuf fields in the file: bounds the time of the scan."""
    nodes: int = 50_000
    """Nodes after all model-local functions are expanded."""
    function_depth: int = 32
    """Model-local functions that call each other."""
    initializers: int = 50_000
    node_ends: int = 1_024
    """Inputs plus outputs of one node."""
    graph_ends: int = 256
    """Inputs (initializers not counted) plus outputs of the graph."""
    name_bytes: int = 1_024
    rank: int = 8
    tensor_elements: int = (1 << 31) - 1
    """Elements of any tensor, stored or computed."""
    folded_bytes: int = 1 << 28
    """Bytes of all tensors computed at compile time from constants."""


DEFAULT_LIMITS = ModelLimits()


Call = tuple[str, str]
"""(domain, operator or function name)."""

STANDARD_DOMAINS = ("", "ai.onnx")
_STRING = 8
_ITEMS_PER_NUMBER = {21: 2, 22: 2, 23: 2, 25: 4, 26: 4}
_NUMBERS_PER_ITEM = {14: 2, 15: 2}


@dataclass
class _Scope:
    """The functions that one graph or function body calls, sub-graphs included."""

    calls: Counter[Call] = field(default_factory=Counter)
    places: dict[Call, str] = field(default_factory=dict)


def prescan(
    model: bytes, limits: ModelLimits = DEFAULT_LIMITS, external_bytes: Mapping[str, int] | None = None
) -> None:
    """Checks the bytes of an ONNX file against the limits; returns nothing when it may be parsed.

    `external_bytes` has the sizes of its data files by location. Every tensor that lies in one must fit it, and every
    file must have one.
    Raises: ModelError (not an ONNX file, contradictory, a data file that is not given), UnsupportedOperator (other
    domains), LimitExceeded (naming the limit and the actual figure).
    """
    sizes = external_bytes or {}
    scan = _scanned(model, limits)
    for reference, needed_bytes, place in scan.references:
        check_range(reference, needed_bytes, sizes, place)
    check_apart(
        [(source.location, source.offset, source.offset + needed, place) for source, needed, place in scan.references]
    )
    spare = sorted(sizes.keys() - {reference.location for reference, *_ in scan.references})
    if spare:
        raise ModelError(f"no tensor of it lies in {spare[0]!r}", where="model", hint="leave that data file out")


def external_locations(model: bytes, limits: ModelLimits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """The data files that a model names, in order. Raises: as `prescan`."""
    return tuple(dict.fromkeys(reference.location for reference, *_ in _scanned(model, limits).references))


def _scanned(model: bytes, limits: ModelLimits) -> _Scan:
    if not model:
        raise ModelError("the model is empty (0 bytes)", where="model", hint="send the bytes of an .onnx file")
    if len(model) > limits.model_bytes:
        raise LimitExceeded(f"{len(model):,} bytes, the limit is {limits.model_bytes:,}", where="model")
    scan = _Scan(model, limits)
    scan.model()
    return scan


class _Scan:
    def __init__(self, model: bytes, limits: ModelLimits) -> None:
        self._reader = WireReader(model, limits.wire_fields)
        self._limits = limits
        self._scope = _Scope()
        self._functions: dict[Call, _Scope] = {}
        self.references: list[tuple[Reference, int, str]] = []
        """References to other files: where, how many bytes the shape needs, which tensor."""
        self._nodes = 0
        self._initializers = 0

    # ------------------------------------------------------------------------------------------------------- model

    def model(self) -> None:
        graphs: list[tuple[int, int]] = []
        for number, wire, begin, end in self._reader.fields(0, len(self._reader.data), "model"):
            if wire != BYTES:
                continue
            if number == 7:
                graphs.append((begin, end))
            elif number == 20:
                raise UnsupportedOperator(
                    "the file carries a training_info section", where="model", hint="export the inference graph only"
                )
            elif number == 25:
                self._function(begin, end)
        if len(graphs) != 1:
            raise ModelError(
                f"{len(graphs)} graphs in the file, expected 1", where="model", hint="is this an ONNX file?"
            )
        self._scope = _Scope()
        self._graph(*graphs[0], depth=1, where="graph", outermost=True)
        self._check_expansion()

    def _function(self, begin: int, end: int) -> None:
        self._scope = _Scope()
        name, domain = "", ""
        for number, wire, first, last in self._reader.fields(begin, end, "function"):
            if wire != BYTES:
                continue
            if number == 1:
                name = self._name(first, last, "function")
            elif number == 10:
                domain = self._name(first, last, "function")
            elif number == 7:
                self._node(first, last, 2, f"function {name!r}")
            elif number == 11:
                self._attribute(first, last, 2, f"function {name!r}")
            elif number == 12:
                self._value_info(first, last, 2)
        key = (_plain(domain), name)
        if key in self._functions:
            raise ModelError("defined twice", where=f"function {domain}::{name}")
        self._functions[key] = self._scope

    def _check_expansion(self) -> None:
        sizes: dict[Call, int] = {}
        total = self._expanded(self._scope, sizes, ())
        if total > self._limits.nodes:
            raise LimitExceeded(
                f"{total:,} nodes with functions expanded, the limit is {self._limits.nodes:,}", where="graph"
            )

    def _expanded(self, body: _Scope, sizes: dict[Call, int], path: tuple[Call, ...]) -> int:
        """Nodes of a body once every call of a function is replaced by the function's nodes."""
        total = 0
        for call, count in body.calls.items():
            if call not in self._functions:
                total += count
                continue
            if call in path:
                raise ModelError("calls itself", where=f"function {call[0]}::{call[1]}")
            if len(path) >= self._limits.function_depth:
                raise LimitExceeded(f"functions nest deeper than {self._limits.function_depth}", where=str(call[1]))
            if call not in sizes:
                sizes[call] = self._expanded(self._functions[call], sizes, (*path, call))
            total += count * max(sizes[call], 1)
        return total

    # ------------------------------------------------------------------------------------------------ graph and node

    def _graph(self, begin: int, end: int, *, depth: int, where: str, outermost: bool = False) -> None:
        self._deepen(depth, where)
        ends = stored = 0
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire != BYTES:
                continue
            if number == 1:
                self._node(first, last, depth + 1, where)
            elif number == 5:
                stored += 1
                self._tensor(first, last, depth + 1, f"initializer {stored - 1}")
            elif number in (11, 12):
                ends += 1
                self._value_info(first, last, depth + 1)
            elif number == 13:
                self._value_info(first, last, depth + 1)
            elif number == 15:
                raise UnsupportedOperator("sparse initializers are not supported", where=where, hint="store them dense")
        self._initializers += stored
        self._at_most(self._initializers, self._limits.initializers, "initializers", where)
        # Old files list every initializer among the inputs too.
        self._at_most(ends - (stored if outermost else 0), self._limits.graph_ends, "graph inputs and outputs", where)

    def _node(self, begin: int, end: int, depth: int, where: str) -> None:
        self._deepen(depth, where)
        self._nodes += 1
        self._at_most(self._nodes, self._limits.nodes, "nodes", where)
        ends = 0
        texts = {3: "", 4: "", 7: ""}
        attributes: list[tuple[int, int]] = []
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire != BYTES:
                continue
            if number in (1, 2):
                ends += 1
                self._name(first, last, where)
            elif number in texts:
                texts[number] = self._name(first, last, where)
            elif number == 5:
                attributes.append((first, last))
        label = f"node {texts[3] or self._nodes - 1!r} ({texts[4]})"
        self._at_most(ends, self._limits.node_ends, "inputs and outputs", label)
        call = (_plain(texts[7]), texts[4])
        self._scope.calls[call] += 1
        self._scope.places.setdefault(call, label)
        for first, last in attributes:
            self._attribute(first, last, depth + 1, label)

    def _attribute(self, begin: int, end: int, depth: int, where: str) -> None:
        self._deepen(depth, where)
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire != BYTES:
                continue
            if number in (1, 21):
                self._name(first, last, where)
            elif number in (5, 10):
                self._tensor(first, last, depth + 1, where)
            elif number in (6, 11):
                self._graph(first, last, depth=depth + 1, where=where)
            elif number in (14, 15):
                self._type(first, last, depth + 1, where)
            elif number in (22, 23):
                raise UnsupportedOperator("sparse tensors are not supported", where=where, hint="store them dense")

    # --------------------------------------------------------------------------------------------- types and tensors

    def _value_info(self, begin: int, end: int, depth: int) -> None:
        name = "?"
        for number, wire, first, last in self._reader.fields(begin, end, "value"):
            if wire == BYTES and number == 1:
                name = self._name(first, last, "value")
            elif wire == BYTES and number == 2:
                self._type(first, last, depth + 1, f"value {name!r}")

    def _type(self, begin: int, end: int, depth: int, where: str) -> None:
        """TypeProto and everything below it: tensor, sequence, map, optional, shape, dimension."""
        self._deepen(depth, where)
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire == BYTES and number in (1, 8):
                self._tensor_type(first, last, where)
            elif wire == BYTES and number in (4, 5, 9):
                self._element_type(first, last, depth + 1, where)

    def _element_type(self, begin: int, end: int, depth: int, where: str) -> None:
        self._deepen(depth, where)
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire == BYTES and number in (1, 2):
                self._type(first, last, depth + 1, where)

    def _tensor_type(self, begin: int, end: int, where: str) -> None:
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire == BYTES and number == 2:
                self._shape(first, last, where)

    def _shape(self, begin: int, end: int, where: str) -> None:
        dims: list[int] = []
        rank = 0
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire != BYTES or number != 1:
                continue
            rank += 1
            self._at_most(rank, self._limits.rank, "dimensions", where)
            dims += self._dimension(first, last, where)
        self._check_dims([max(dim, 0) for dim in dims], where)  # exporters write -1 for what is open

    def _dimension(self, begin: int, end: int, where: str) -> list[int]:
        fixed: list[int] = []
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if number == 1 and wire == VARINT:
                fixed = [signed(first)]
            elif number == 2 and wire == BYTES:
                self._name(first, last, where)
        return fixed

    def _tensor(self, begin: int, end: int, depth: int, where: str) -> None:
        self._deepen(depth, where)
        dims: list[int] = []
        spans: list[tuple[int, int, int, int]] = []
        entries: dict[str, str] = {}
        data_type, name, is_external = 0, "", False
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if number == 1 and wire in (VARINT, BYTES):
                dims += [first] if wire == VARINT else self._reader.varints(first, last, where)
                self._at_most(len(dims), self._limits.rank, "dimensions", where)
            elif number == 2 and wire == VARINT:
                data_type = first
            elif number == 8 and wire == BYTES:
                name = self._name(first, last, where)
            elif number == 13 and wire == BYTES:
                key, value = self._entry(first, last, where)
                entries[key] = value
            elif number == 14 and wire == VARINT:
                is_external = first == 1
            elif number in (4, 5, 6, 7, 9, 10, 11):
                spans.append((number, wire, first, last))
        place = f"tensor {name!r}" if name else where
        if entries and not is_external:
            raise ModelError("names external data and does not use it", where=place, hint="is the file damaged?")
        shape = [signed(dim) for dim in dims]
        if is_external:
            self._check_external(shape, data_type, spans, Reference.read(entries, place), place)
        else:
            self._check_payload(shape, data_type, spans, place)

    def _entry(self, begin: int, end: int, where: str) -> tuple[str, str]:
        """A key and its value (StringStringEntryProto)."""
        texts = {1: "", 2: ""}
        for number, wire, first, last in self._reader.fields(begin, end, where):
            if wire == BYTES and number in texts:
                texts[number] = self._name(first, last, where)
        return texts[1], texts[2]

    def _check_external(
        self, dims: list[int], data_type: int, spans: list[tuple[int, int, int, int]], to: Reference, where: str
    ) -> None:
        """Records the bytes that it stands for; whether they are there is checked when all files are known."""
        if data_type not in ITEM_BITS:
            raise UnsupportedOperator(f"element type {data_type} cannot lie in another file", where=where)
        if spans:
            raise ModelError("holds its data more than once", where=where)
        self.references.append((to, payload_bytes(self._check_dims(dims, where), data_type), where))

    def _check_payload(
        self, dims: list[int], data_type: int, spans: list[tuple[int, int, int, int]], where: str
    ) -> None:
        """Declared elements against the bytes or numbers that are there."""
        elements = self._check_dims(dims, where)
        if data_type != _STRING and data_type not in ITEM_BITS:
            raise UnsupportedOperator(f"element type {data_type} is unknown", where=where)
        raw = [span for span in spans if span[0] == 9 and span[1] == BYTES]
        if len(raw) > 1 or (raw and len(spans) > 1):
            raise ModelError("holds its data more than once", where=where)
        if raw:
            bits = elements * ITEM_BITS.get(data_type, 0)
            declared, present, unit = (bits + 7) // 8, raw[0][3] - raw[0][2], "bytes"
        else:
            declared, present, unit = self._numbers(elements, data_type), self._present(spans), "numbers"
        if declared != present:
            raise ModelError(
                f"shape {dims} declares {declared:,} {unit}, {present:,} are present",
                where=where,
                hint="is the file damaged?",
            )

    def _numbers(self, elements: int, data_type: int) -> int:
        packed = _ITEMS_PER_NUMBER.get(data_type, 1)
        return (elements * _NUMBERS_PER_ITEM.get(data_type, 1) + packed - 1) // packed

    def _present(self, spans: list[tuple[int, int, int, int]]) -> int:
        total = 0
        for number, wire, first, last in spans:
            if wire in (VARINT, FIXED32, FIXED64) or number == 6:
                total += 1
            elif number in (4, 10):
                total += (last - first) // (4 if number == 4 else 8)
            else:
                total += self._reader.packed_varints(first, last)
        return total

    # -------------------------------------------------------------------------------------------------------- guards

    def _check_dims(self, dims: list[int], where: str) -> int:
        if min(dims, default=0) < 0:
            raise ModelShapeError(f"shape {dims} has a negative dimension", where=where)
        elements = prod(dims)
        self._at_most(elements, self._limits.tensor_elements, f"elements in shape {dims}", where)
        return elements

    def _name(self, begin: int, end: int, where: str) -> str:
        return self._reader.text(begin, end, self._limits.name_bytes, where)

    def _deepen(self, depth: int, where: str) -> None:
        self._at_most(depth, self._limits.message_depth, "nested messages", where)

    def _at_most(self, actual: int, limit: int, what: str, where: str) -> None:
        if actual > limit:
            raise LimitExceeded(f"{actual:,} {what}, the limit is {limit:,}", where=where)


def _plain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain
