"""The loop of the training graph's page as its reader runs it, and as it is copied elsewhere."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

from examples import training_graph


def test_a_reader_trains_a_net_on_onnx_runtime(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `python -m` runs it: the file from its top to its bottom."""
    monkeypatch.setattr(sys, "argv", ["training_graph", "--steps", "21"])
    monkeypatch.delitem(sys.modules, "examples.training_graph")
    runpy.run_module("examples.training_graph", run_name="__main__")
    said = capfd.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in said if line.startswith("step ")]
    assert len(losses) == 3
    assert losses[-1] < 0.8 * losses[0]
    assert said[-1].startswith("learned: classifier.bias, classifier.weight, conv.bias")


def test_it_needs_nothing_of_ours() -> None:
    """The page says so of its class; who copies the file imports it as it is."""
    tree = ast.parse(Path(training_graph.__file__).read_text())
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in named} - sys.stdlib_module_names
    assert roots == {"numpy", "onnxruntime", "safetensors"}
