"""What a compile says beside its result: kept by every stage, bounded and printable where it leaves the compiler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.frontend.file.prescan import DEFAULT_LIMITS
from compiler.frontend.importer import import_model
from compiler.frontend.scope import Scope
from compiler.graph import Graph
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.pipeline import derive_training_step
from compiler.rewriting.passes import each_of, name_of
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.step.plan import resolve_plan
from compiler.warnings import MAX_CHARACTERS, MAX_WARNINGS, CompileWarning, few_of, presentable
from tests.compiler.frontend.onnx_graphs import model_of, node

SAID = CompileWarning("model.example", "fc", "does something else", "do this instead")


def _graph() -> Graph:
    stored = {"fc.weight": np.ones((3, 4), np.float32), "fc.bias": np.arange(3, dtype=np.float32)}
    model = model_of(
        [node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], transB=1)],
        {"x": ("f32", ("batch", 4))},
        initializers=stored,
    )
    return import_model(model, input_shapes={}, batch=2, batch_norm="fold")


def test_every_stage_keeps_them() -> None:
    graph = replace(_graph(), warnings=(SAID,))
    for step in each_of((*FORWARD_PASSES, *TRAINING_PASSES)):
        assert step(graph).subject.warnings == (SAID,), name_of(step)
    forward = run_passes(graph, FORWARD_PASSES)
    training = derive_training_step(forward, resolve_plan(forward, SparsePlan.parse("full")), TrainingSpec.parse(""))
    assert training.graph.warnings == (SAID,)


def test_a_scope_collects_them_in_order_and_once() -> None:
    scope = Scope(
        DEFAULT_LIMITS,
        lambda scope, node: None,
        readers={},
        batch_norm="fold",
        used_names=(),
        bias_suffix=".bias",
        record=None,
        created=(),
        producer="",
    )
    for name in ("b", "a", "b"):
        scope.warn("model.example", "is odd", where=name)
    assert [one.where for one in scope.warnings] == ["b", "a"]


def test_their_text_reads_like_an_error() -> None:
    assert str(SAID) == "fc: does something else (do this instead)"
    assert few_of(["a", "b", "c"]) == "a, b, c"
    assert few_of(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_a_report_holds_a_bounded_number_of_printable_texts() -> None:
    odd = CompileWarning("model.example", "\x1b[2Jname", "long " * 1000)
    (shown,) = presentable([odd, odd])
    entry = shown.to_json()
    assert set(entry) == {"code", "where", "message", "hint"}
    assert all(text.isprintable() and len(text) <= MAX_CHARACTERS[name] for name, text in entry.items())
    many = presentable([CompileWarning("model.example", str(i), "is odd") for i in range(MAX_WARNINGS + 10)])
    assert len(many) == MAX_WARNINGS
    assert many[-1].code == "compile.more_warnings"
    assert many[-1].message.startswith("11 more")
