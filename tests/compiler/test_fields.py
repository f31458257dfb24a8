"""Every field of every record of plans and specs: published, in the guide, refused when misspelt, shown when it is set.

The fields are those that `compiler.spec` has (`members_of`); the documents below have to set each of them to something
that is not its default. A new field makes the first test fail until a document has it.
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import compiler.spec
from compiler.errors import CompileError
from compiler.explain import explain_plan
from compiler.settings import BuildSettings
from compiler.spec.documents import LossSpec, SparsePlan, TrainingSpec
from compiler.spec.records import members_of
from compiler.spec.schema import published_schema
from compiler.targets import load
from pockfarm.output.plan_text import explanation_text
from tests.architecture.sources import ROOT
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.sample import some

DOCUMENTS: Mapping[str, type[Any]] = {"plan": SparsePlan, "spec": TrainingSpec}
FULL: dict[str, Any] = {"preset": "full"}
TWO: dict[str, Any] = {"batch": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "created": ({"preset": "bias-only", "create_biases": ["block0.*"]}, TWO),
    "preset": ({"name": "mine", "preset": "bias-only", "frozen": ["b0"]}, TWO),
    "rules": (
        {
            "update": [
                {"parameters": ["w*"], "kind": "weight", "ratio": 0.5},
                {"modules": ["m"]},
                {"layers": ["0-1"]},
                {"last_biases": 1},
            ]
        },
        TWO,
    ),
    "channels": (
        {
            "update": [
                {"parameters": ["w0"], "channels": {"ratio": 0.5, "select": "magnitude", "along": "heads", "heads": 6}},
                {"parameters": ["w1"], "channels": {"indices": [1, 2], "along": "output"}},
            ]
        },
        TWO,
    ),
    "lora": (
        {
            "lora": {
                "targets": ["w0"],
                "rank": 2,
                "alpha": 4.0,
                "kind": "dora",
                "rslora": True,
                "seed": 3,
                "export": "peft",
            }
        },
        TWO,
    ),
    "scheme": (
        {
            "scheme": {
                "kind": "bottlenecks",
                "weight_blocks": 1,
                "bias_blocks": 1,
                "skip_blocks": 1,
                "ratios": [0.5],
                "head": False,
            }
        },
        TWO,
    ),
    "step": (
        FULL,
        {
            "batch": 2,
            "accumulate": {"steps": 2, "mean": "labels"},
            "inputs": {"x": {"shape": [2, 3, 4], "batch_axis": 0}, "rate": {"value": [2.0]}},
            "batch_norm": "frozen",
            "dropout": "train",
            "tied": [["b0", "m.b1"]],
            "untied": ["shared"],
            "quantized": "dequantize",
            "convolutions": "direct",
            "precision": {
                "compute": "f16",
                "state": "f32",
                "loss_scale": 512.0,
                "frozen": "int8",
                "frozen_products": "int8",
                "products": "tf32",
            },
            "threads": 1,
            "memory_limit_bytes": 1_000_000,
            "library": True,
        },
    ),
    "classes": (
        FULL,
        {
            "loss": {
                "kind": "next_token",
                "output": "y",
                "batch_axis": 0,
                "labels": "words",
                "reduction": "sum",
                "ignore_index": 3,
                "label_smoothing": 0.25,
                "on": "logits",
                "class_weights": [1.0, 2.0, 1.0, 1.0, 1.0, 0.5],
            },
            "schedule": {"kind": "cosine", "warmup_steps": 3, "final_ratio": 0.25},
        },
    ),
    "terms": (
        FULL,
        {
            "loss": {
                "terms": [
                    {"kind": "huber", "output": "y", "labels": "a", "delta": 2.0, "weight": 0.5},
                    {"kind": "smooth_l1", "beta": 0.5, "batch_axis": 0, "reduction": "sum"},
                    {"kind": "bce_with_logits", "class_axis": 2, "pos_weight": [2.0], "class_weights": [1.0] * 6},
                    {
                        "kind": "next_token",
                        "labels": "words",
                        "ignore_index": 3,
                        "label_smoothing": 0.25,
                        "on": "logits",
                    },
                ]
            }
        },
    ),
    "axes": (FULL, {"loss": {"kind": "bce_with_logits", "class_axis": 2, "pos_weight": [2.0]}}),
    "huber": (FULL, {"loss": {"kind": "huber", "delta": 2.0}}),
    "smooth": (FULL, {"loss": {"kind": "smooth_l1", "beta": 0.5}}),
    "sgd": (
        FULL,
        {
            "optimizer": {
                "learning_rate": 0.5,
                "momentum": 0.5,
                "nesterov": True,
                "weight_decay": 0.5,
                "clip_norm": 2.0,
                "groups": [{"parameters": ["w0"], "kind": "weight", "weight_decay": 0.25, "learning_rate_factor": 0.5}],
            }
        },
    ),
    "adamw": (FULL, {"optimizer": {"kind": "adamw", "beta1": 0.5, "beta2": 0.5, "eps": 0.25}}),
    "adafactor": (
        FULL,
        {
            "optimizer": {
                "kind": "adafactor",
                "beta2_decay": -0.5,
                "eps1": 0.25,
                "eps2": 0.25,
                "clip_threshold": 2.0,
            }
        },
    ),
}


ONE_VALUE = {"precision.state"}
"""Fields that may hold nothing but their default, so far."""


def fields_below(kind: type[Any], place: str = "") -> Iterator[tuple[str, type[Any]]]:
    """(place, record that has it) of every field that a document may have."""
    for one in members_of(kind):
        if kind is LossSpec and one.called in LossSpec().without:
            continue
        yield f"{place}{one.called}", kind
        form, inside = one.form, f"{place}{one.called}"
        while hasattr(form, "form"):
            inside += {"ListOf": "[]", "ByName": ".*"}.get(type(form).__name__, "")
            form = form.form
        record = getattr(form, "kind", None)
        if isinstance(record, type):
            yield from fields_below(record, f"{inside}.")


Keys = tuple[Any, ...]


def places_in(value: Any, told: str = "", general: str = "", keys: Keys = ()) -> Iterator[tuple[str, str, Keys]]:
    """(place in the document, place as `fields_below` calls it, keys) of every field of a document."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        in_inputs = general == "inputs"
        name = f"{general}.*" if in_inputs else f"{general}.{key}" if general else key
        at = f"{told}.{key}" if told else key
        if not in_inputs:
            yield at, name, (*keys, key)
        yield from places_in(inner, at, name, (*keys, key))
    for number, inner in enumerate(value) if isinstance(value, list) else ():
        yield from places_in(inner, f"{told}[{number}]", f"{general}[]", (*keys, number))


EVERY = {name: dict(fields_below(record)) for name, record in DOCUMENTS.items()}


def test_a_document_sets_each_field_of_each_record() -> None:
    tried = {
        name: {general for case in CASES.values() for _, general, _ in places_in(case[number])}
        for number, name in enumerate(DOCUMENTS)
    }
    assert {name: set(fields) for name, fields in EVERY.items()} == {
        name: found & EVERY[name].keys() for name, found in tried.items()
    }
    assert all(found <= EVERY[name].keys() for name, found in tried.items())


def test_no_record_is_left_out() -> None:
    """What `compiler.spec` has of records is in one of the two documents."""
    modules = [
        importlib.import_module(one.name) for one in pkgutil.iter_modules(compiler.spec.__path__, "compiler.spec.")
    ]
    records = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and is_dataclass(one) and members_of(one)
    }
    reached = {record for fields in EVERY.values() for record in fields.values()} | set(DOCUMENTS.values())
    assert {one for one in records if not any(issubclass(other, one) for other in reached)} == set()


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_each_field_is_published_and_one_letter_more_is_refused_with_its_name(document: str, case: str) -> None:
    body = CASES[case][list(DOCUMENTS).index(document)]
    validator = Draft202012Validator(published_schema(document))
    validator.validate(body)
    DOCUMENTS[document].parse(body)
    for place, _, keys in some(places_in(body)):
        name = keys[-1]
        wrong = name[:2] + name[1:]
        other = copy.deepcopy(body)
        at = other
        for key in keys[:-1]:
            at = at[key]
        at[wrong] = at.pop(name)
        assert not validator.is_valid(other), place
        with pytest.raises(CompileError, match=rf"did you mean '{name}'\?") as refusal:
            DOCUMENTS[document].parse(other)
        assert refusal.value.where.endswith(wrong), place


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_each_field_stands_in_the_guide_as_code(document: str) -> None:
    """As a word of an example or of a span of code: prose has `rank` and `weight` anyway."""
    guide = "".join(path.read_text() for path in (ROOT / "docs/guide").glob("*.md"))
    code = "\n".join([*re.findall(r"^```\w*\n(.*?)^```$", guide, re.M | re.S), *re.findall(r"`([^`\n]+)`", guide)])
    words = set(re.findall(r"\w+", code))
    assert {place for place in EVERY[document] if re.split(r"[.\[\]]+", place)[-1] not in words} == set()


@cache
def model() -> bytes:
    """Three linears; tensors that could be one, and one that could be several."""
    random = np.random.default_rng(0)
    tensors = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"w0": (4, 6), "m.w1": (6, 6), "w1": (6, 6), "shared": (6,), "b2": (6,)}.items()
    }
    tensors |= dict.fromkeys(("b0", "m.b1"), np.ones(6, np.float32))
    nodes = [
        node("MatMul", ["x", "w0"], ["a"]),
        node("Add", ["a", "b0"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("Mul", ["c", "shared"], ["d"]),
        node("MatMul", ["d", "m.w1"], ["e"]),
        node("Add", ["e", "m.b1"], ["f"]),
        node("Mul", ["f", "shared"], ["g"]),
        node("MatMul", ["g", "w1"], ["h"]),
        node("Add", ["h", "b2"], ["y"]),
    ]
    return model_of(nodes, {"x": ("f32", (2, 3, 4)), "rate": ("f32", ())}, initializers=tensors)


@cache
def bottlenecks() -> bytes:
    """Three of them, each a point-wise, a depth-wise and a point-wise convolution."""
    random, nodes, data = np.random.default_rng(0), [], "x"
    tensors: dict[str, np.ndarray] = {}
    for block in range(3):
        for place, shape in enumerate(((8, 4, 1, 1), (8, 1, 3, 3), (4, 8, 1, 1))):
            name, made = f"block{block}.{place}.weight", "y" if (block, place) == (2, 2) else f"v{block}{place}"
            tensors[name] = random.standard_normal(shape).astype(np.float32)
            nodes.append(node("Conv", [data, name], [made], group=8 if place == 1 else 1, pads=[place % 2] * 4))
            data = made
    return model_of(nodes, {"x": ("f32", (2, 4, 5, 5))}, initializers=tensors)


@pytest.mark.parametrize("case", sorted(CASES))
def test_each_field_that_is_set_is_shown_with_its_value(case: str) -> None:
    given = dict(zip(DOCUMENTS, CASES[case], strict=True))
    spec = TrainingSpec.parse({"loss": {"kind": "mse"}, **TWO, **given["spec"]})
    settings = BuildSettings(SparsePlan.parse(given["plan"]), spec, load("x86-64-v3"))
    told = explain_plan(bottlenecks() if case in ("created", "scheme") else model(), settings)
    lines = explanation_text(told).splitlines()
    for document, body in given.items():
        shown = {one["field"]: one for one in told[document]}
        for place, _, keys in places_in(body):
            value = body
            for key in keys:
                value = value[key]
            if any(other.startswith((f"{place}.", f"{place}[")) for other in shown):
                continue
            if place in ONE_VALUE:
                assert (shown[place]["value"], shown[place]["default"]) == (value, True), place
                continue
            assert (shown[place]["value"], shown[place]["default"]) == (value, False), place
            assert any(line.startswith(f"  * {place}: ") for line in lines), place
