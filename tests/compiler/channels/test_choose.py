"""Which channels a rule means, and what it is told where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from compiler.errors import PlanError
from compiler.graph import Graph, Parameter
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import SparsePlan
from compiler.step.arranged import with_ranges
from compiler.step.plan import decide_plan, resolve_plan
from compiler.values import Value

PRODUCT: dict[str, Any] = {"transpose_a": False, "transpose_b": False}


def transformer() -> Graph:
    """x [1, 3, 8] -> attention of four query heads on two key heads, and a feed-forward block of six units."""
    b, random = GraphBuilder(), np.random.default_rng(0)
    held: dict[Value, Parameter] = {}

    def weight(name: str, *shape: int) -> Value:
        value = b.array_value(random.normal(size=shape).astype(np.float32))
        kind: Any = "bias" if len(shape) == 1 else "weight"
        held[value] = Parameter(
            name, shape, shape, tuple(range(len(shape))), kind, name, 0 if len(shape) == 2 else None
        )
        return value

    def dense(x: Value, name: str, *shape: int) -> Value:
        return b.emit("matmul", x, weight(name, *shape), **PRODUCT)

    x = b.array_value(np.zeros((1, 3, 8), np.float32))
    del b.arrays[x]
    split = {"q": (8, 8, 4), "k": (8, 4, 2), "v": (8, 4, 2)}
    q, k, v = (b.emit("reshape", dense(x, name, i, o), shape=(1, 3, heads, 2)) for name, (i, o, heads) in split.items())
    y = b.fresh()
    b.emit_many("attention", (q, k, v), outputs=(y, b.fresh()), scale=1.0, causal=False)
    y = b.emit("add", x, dense(b.emit("reshape", y, shape=(1, 3, 8)), "o", 8, 8))
    hidden = b.emit("add", dense(y, "up", 8, 6), weight("bias", 6))
    y = b.emit("add", y, dense(b.emit("tanh", hidden), "down", 6, 8))
    y = dense(dense(y, "head", 8, 5), "last", 5, 4)
    graph = b.graph_of(Graph((), (x,), (y,), {}))
    return Graph(
        graph.nodes,
        graph.inputs,
        graph.outputs,
        graph.types,
        graph.arrays,
        held,
        {value: parameter.name for value, parameter in held.items()},
        graph.next_number,
    )


GRAPH = transformer()


def chosen(rule: Mapping[str, Any]) -> dict[str, tuple[int, list[int]]]:
    """Parameter -> the axis and channels that learn, whichever way they are said."""
    found = resolve_plan(GRAPH, SparsePlan.parse({"update": [rule]}))
    return {
        GRAPH.name_of(value): (part.axis, list(part.channels or range(part.start, part.start + part.size)))
        for value, part in found.items()
    }


def test_heads_that_share_a_key_count_as_one() -> None:
    rule = {"parameters": ["[qkvo]"], "channels": {"indices": [1], "along": "heads"}}
    assert chosen(rule) == {"q": (1, [4, 5, 6, 7]), "k": (1, [2, 3]), "v": (1, [2, 3]), "o": (0, [4, 5, 6, 7])}


def test_units_of_a_block_have_one_norm() -> None:
    named = {own.name: GRAPH.arrays[value].astype(np.float64) for value, own in GRAPH.parameters.items()}
    total = np.square(named["up"]).sum(0) + np.square(named["down"]).sum(1) + np.square(named["bias"])
    best = sorted(np.argsort(-total)[:2].tolist())
    rule = {"parameters": ["up", "down", "bias"], "channels": {"ratio": 0.3, "select": "magnitude", "along": "ffn"}}
    assert chosen(rule) == {"up": (1, best), "down": (0, best), "bias": (0, best)}


def test_a_bias_follows_its_weight() -> None:
    named = {own.name: GRAPH.arrays[value].astype(np.float64) for value, own in GRAPH.parameters.items()}
    both = np.square(named["up"]).sum(0) + np.square(named["bias"])
    channels = {"ratio": 0.5, "select": "magnitude", "along": "output"}
    best = sorted(np.argsort(-both)[:3].tolist())
    assert chosen({"parameters": ["up", "bias"], "channels": channels}) == {"up": (1, best), "bias": (0, best)}
    alone = sorted(np.argsort(-np.square(named["bias"]))[:3].tolist())
    assert chosen({"parameters": ["bias"], "channels": channels}) == {"bias": (0, alone)}


def test_short_forms_and_later_rules() -> None:
    assert chosen({"parameters": ["up"], "channels": 0.25}) == {"up": (0, [0, 1])}
    assert chosen({"parameters": ["up"], "channels": [5, 0]}) == {"up": (0, [0, 5])}
    assert chosen({"parameters": ["up"], "channels": 1.0}) == {"up": (-1, [])}
    later = [{"parameters": ["up", "o"], "channels": [5, 0]}, {"parameters": ["up"], "ratio": 0.5}]
    found = resolve_plan(GRAPH, SparsePlan.parse({"update": later}))
    parts = {GRAPH.name_of(value): part for value, part in found.items()}
    assert (parts["o"].channels, parts["up"].channels, parts["up"].size) == ((0, 5), (), 4)


def test_what_has_no_such_axis_learns_whole_with_a_warning() -> None:
    plan = SparsePlan.parse({"update": [{"parameters": ["up", "bias"], "channels": [1, 3]}]})
    assert [one.code for one in decide_plan(GRAPH, plan).warnings] == ["plan.channels_without_axis"]
    assert with_ranges(GRAPH, resolve_plan(GRAPH, SparsePlan.parse("full")))[0] is GRAPH


REFUSED: dict[str, tuple[Any, str]] = {
    "both": ({"ratio": 0.5, "indices": [1]}, "one of ratio and indices"),
    "neither": ({"along": "output"}, "one of ratio and indices"),
    "explicit share": ({"ratio": 0.5, "select": "explicit"}, "explicit needs indices"),
    "ranked numbers": ({"indices": [1], "select": "magnitude"}, "chooses by a ratio"),
    "twice": ([1, 1], "twice"),
    "none": ([], "learns nothing"),
    "nothing": (0, "from 1e-09 to 1"),
    "heads of inputs": ({"ratio": 0.5, "heads": 2}, "has no heads"),
    "beyond": ([8], "numbers 0 to 7; there is no 8"),
    "other heads": ({"indices": [0], "along": "heads", "heads": 4}, "no axis of up"),
    "misspelt": ({"ratio": 0.5, "selct": "first"}, "did you mean 'select'"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_does_not_fit_is_refused_by_its_field(name: str) -> None:
    channels, message = REFUSED[name]
    with pytest.raises(PlanError) as refusal:
        chosen({"parameters": ["up"], "channels": channels})
    assert message in str(refusal.value)
    assert "plan.update[0]" in str(refusal.value)


def test_a_count_of_heads_that_the_model_contradicts_is_refused() -> None:
    with pytest.raises(PlanError, match="the model shows 2 heads here, not 4"):
        chosen({"parameters": ["q"], "channels": {"indices": [0], "along": "heads", "heads": 4}})
    with pytest.raises(PlanError, match="beside ratio"):
        chosen({"parameters": ["up"], "ratio": 0.5, "channels": 0.5})
    with pytest.raises(PlanError, match="no axis of q"):
        chosen({"parameters": ["q"], "channels": {"ratio": 0.5, "along": "ffn"}})


def test_a_choice_looks_the_graph_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of parameters: planning must not take their square."""
    asked: list[Graph] = []
    consumers = Graph.consumers

    def counted(graph: Graph) -> Any:
        asked.append(graph)
        return consumers(graph)

    monkeypatch.setattr(Graph, "consumers", counted)
    counts = []
    for names in (["up"], ["up", "bias", "down", "q", "k", "v", "o", "head", "last"]):
        asked.clear()
        chosen({"parameters": names, "channels": {"indices": [0, 3], "along": "output"}})
        counts.append(len(asked))
    assert counts[0] == counts[1]


def plain() -> Graph:
    """x [1, 4] -> two linears, 4 to 6 to 4."""
    b, random = GraphBuilder(), np.random.default_rng(1)
    held: dict[Value, Parameter] = {}
    x = y = b.array_value(np.zeros((1, 4), np.float32))
    del b.arrays[x]
    for name, shape in (("up", (4, 6)), ("down", (6, 4))):
        weight = b.array_value(random.normal(size=shape).astype(np.float32))
        held[weight] = Parameter(name, shape, shape, (0, 1), "weight", name, 0)
        y = b.emit("matmul", y, weight, **PRODUCT)
    graph = b.graph_of(Graph((), (x,), (y,), {}))
    return Graph(
        graph.nodes,
        graph.inputs,
        graph.outputs,
        graph.types,
        graph.arrays,
        held,
        {value: parameter.name for value, parameter in held.items()},
        graph.next_number,
    )


def test_heads_where_no_attention_is_known_are_told_as_a_guess() -> None:
    rules = [{"parameters": ["up"], "channels": {"indices": [0], "along": "heads", "heads": 6}}]
    (warning,) = decide_plan(plain(), SparsePlan.parse({"update": rules})).warnings
    assert (warning.code, warning.where) == ("plan.heads_assumed", "plan.update[0].channels.heads")
    assert " 6 parts " in warning.message
    assert warning.message.endswith(" in up")
    rules = [{"parameters": ["q"], "channels": {"indices": [0], "along": "heads", "heads": 2}}]
    assert decide_plan(GRAPH, SparsePlan.parse({"update": rules})).warnings == ()


@pytest.mark.parametrize("later", ["rule", "frozen"])
def test_what_is_decided_later_does_not_count_in_a_choice_by_magnitude(later: str) -> None:
    """The first unit is the largest in `down`, the last one in `up`."""
    graph = plain()
    by_name = {own.name: value for value, own in graph.parameters.items()}
    graph.arrays[by_name["up"]][:, -1] = 10
    graph.arrays[by_name["down"]][0] = 100
    first = {"parameters": ["*"], "channels": {"ratio": 0.1, "along": "ffn", "select": "magnitude"}}
    plan: dict[str, Any] = {"update": [first]}
    both = resolve_plan(graph, SparsePlan.parse(plan))
    assert {part.start for part in both.values()} == {0}
    more: dict[str, Any] = {"frozen": ["down"]} if later == "frozen" else {"update": [first, {"parameters": ["down"]}]}
    assert resolve_plan(graph, SparsePlan.parse(plan | more))[by_name["up"]].start == 5
