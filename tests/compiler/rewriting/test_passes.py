"""Running passes: rounds until nothing changes, a trace of what was done, and who is to blame for a broken graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.errors import InternalError
from compiler.graph import Graph, TensorType
from compiler.passes import CLEAN_UP, run_passes
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import VERIFY, Declined, PassResult, Trace, rewritten, until_stable
from tests.compiler.named import named


def chain(length: int) -> Graph:
    """exp of ever the same input, over identities that hide it."""
    b = GraphBuilder()
    x = named("x")
    b.types[x] = TensorType("f32", (2,))
    value = x
    for _ in range(length):
        value = b.emit("reshape", b.emit("identity", value), shape=(2,))
    output = b.emit("exp", value)
    return Graph(tuple(b.nodes), (x,), (output,), b.types)


def drop_one(graph: Graph) -> PassResult[Graph]:
    """Takes away the first node whose result is its operand."""
    for position, node in enumerate(graph.nodes):
        if node.op == "identity":
            nodes = [
                replace(other, inputs=tuple({node.output: node.inputs[0]}.get(n, n) for n in other.inputs))
                for other in graph.nodes
            ]
            return rewritten(graph, graph.with_nodes(nodes[:position] + nodes[position + 1 :]))
    return PassResult(graph, False, (Declined("drop.none", "graph", "an identity"),))


def drop_all_but_outputs(graph: Graph) -> PassResult[Graph]:
    return rewritten(graph, graph.with_nodes(graph.nodes[-1:]))


def flip(graph: Graph) -> PassResult[Graph]:
    return PassResult(graph, True)


def refuse(graph: Graph) -> PassResult[Graph]:
    raise ValueError("no")


def test_rounds_end_when_nothing_changes() -> None:
    trace = Trace()
    made = run_passes(chain(4), (until_stable((drop_one,)),), trace, of="made")
    assert [node.op for node in made.nodes] == ["reshape"] * 4 + ["exp"]
    assert [step.modified for step in trace.steps] == [True] * 4 + [False]
    assert {(step.subject, step.name) for step in trace.steps} == {("made", "drop_one")}
    assert list(trace.declined()) == [("drop_one", Declined("drop.none", "graph", "an identity"))]


def test_what_a_pass_said_last_is_what_counts() -> None:
    trace = Trace()
    run_passes(chain(0), (drop_one, drop_one), trace)
    assert len(trace.steps) == 2
    assert len(list(trace.declined())) == 1


def test_cleaning_up_says_when_it_is_done() -> None:
    trace = Trace()
    cleaned = run_passes(chain(3), (until_stable(CLEAN_UP),), trace)
    assert [node.op for node in cleaned.nodes] == ["exp"]
    assert [step.modified for step in trace.steps[-len(CLEAN_UP) :]] == [False] * len(CLEAN_UP)


def test_passes_that_never_settle_are_named() -> None:
    with pytest.raises(InternalError, match=r"^flip: .* 50 rounds$"):
        run_passes(chain(1), (until_stable((drop_one, flip)),))


@pytest.mark.parametrize("verify", ["each-pass", "at-the-end"])
def test_the_pass_that_broke_a_graph_is_named(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the end is looked at: then the passes run once more, each with a look."""
    monkeypatch.setenv(VERIFY, verify)
    with pytest.raises(InternalError, match=r"^drop_all_but_outputs: .* before: drop_one$"):
        run_passes(chain(2), (drop_one, drop_all_but_outputs, drop_one))


def test_only_the_end_is_verified_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def repair(graph: Graph) -> PassResult[Graph]:
        return rewritten(graph, chain(2))

    passes = (drop_all_but_outputs, repair)
    monkeypatch.delenv(VERIFY)
    assert run_passes(chain(2), passes) == chain(2)
    monkeypatch.setenv(VERIFY, "each-pass")
    with pytest.raises(InternalError, match="drop_all_but_outputs"):
        run_passes(chain(2), passes)


def test_what_a_pass_raises_names_it() -> None:
    with pytest.raises(ValueError, match="no") as raised:
        run_passes(chain(1), (drop_one, refuse))
    assert raised.value.__notes__ == ["in refuse; passes run before: drop_one"]
