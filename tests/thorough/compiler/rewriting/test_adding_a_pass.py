"""What adding a pass costs, done on a copy of the compiler: the pass's own file, and its line in the list."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

GRAPH_PASS = '''
"""Takes away a negation of a negation."""

from __future__ import annotations

from compiler.graph import Graph, Node
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import PassResult, rewritten


def drop_double_negations(graph: Graph) -> PassResult[Graph]:
    b = Rewriter(graph)
    for node in graph.nodes:
        b.replay(node, _inner if node.op == "neg" else None)
    return rewritten(graph, b.replayed())


def _inner(b: Rewriter, node: Node):
    negated = b.producer(node.inputs[0], "neg")
    return negated.inputs[0] if negated is not None else None
'''
CALL_PASS = '''
"""Says of every call that it has parts."""

from __future__ import annotations

from dataclasses import replace

from compiler.program.program import Program
from compiler.rewriting.passes import PassResult


def forget_layers(program: Program) -> PassResult[Program]:
    calls = tuple(replace(call, layer="") for call in program.calls)
    return PassResult(replace(program, calls=calls), modified=calls != program.calls)
'''
CASES = {
    "a graph pass": (
        "passes/double_negations.py",
        GRAPH_PASS,
        "passes/__init__.py",
        {
            "from compiler.passes.attention import": (
                "from compiler.passes.double_negations import drop_double_negations\n"
                "from compiler.passes.attention import"
            ),
            "    sink_transposes,  #": "    drop_double_negations,  # why it stands here\n    sink_transposes,  #",
        },
        "forward",
        "drop_double_negations",
    ),
    "a call pass": (
        "program/forget_layers.py",
        CALL_PASS,
        "call_passes.py",
        {
            "from compiler.program.note_gradients import": "from compiler.program.forget_layers import forget_layers\n"
            "from compiler.program.note_gradients import",
            "        note_gradients,  #": "        forget_layers,  # why it stands here\n        note_gradients,  #",
        },
        "schedule",
        "forget_layers",
    ),
}
BUILD = """
import sys
from compiler.pipeline import walk
from compiler.rewriting.passes import Trace
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import load
from examples.models import MODELS

trace = Trace()
settings = BuildSettings(plan=SparsePlan.parse("full"), spec=TrainingSpec.parse("batch: 2"), target=load("x86-64-v4"))
assert any(stage.name == sys.argv[1] for stage in walk(MODELS["mlp"](), settings, trace))
print(*{step.name for step in trace.steps})
"""


@pytest.mark.parametrize("case", CASES)
def test_a_pass_costs_its_file_and_its_line(case: str, tmp_path: Path) -> None:
    path, text, listed, lines, stage, name = CASES[case]
    for package in ("compiler", "examples"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "compiler" / path).write_text(text)
    table = tmp_path / "compiler" / listed
    content = table.read_text()
    for before, after in lines.items():
        assert content.count(before) == 1
        content = content.replace(before, after)
    table.write_text(content)
    command = [sys.executable, "-c", BUILD, stage]
    completed = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "POCKFARM_VERIFY": "each-pass"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    assert name in completed.stdout.split()
