"""Nothing registers itself by being imported: every kind has one explicit list, and nothing of the kind is left out."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections import Counter
from pathlib import Path

from fastapi import APIRouter

from compiler.codegen.family import FAMILIES as KERNEL_FAMILIES
from compiler.codegen.worker import COMPILERS
from compiler.frontend.rows import ROWS
from compiler.kernels import spec as kernel_spec
from compiler.ops import FAMILIES, OPERATORS
from compiler.ops.record import Operator
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES
from compiler.pipeline import walk
from compiler.rewriting.passes import Trace, each_of, name_of
from compiler.settings import BuildSettings
from compiler.spec.documents import SparsePlan, TrainingSpec
from compiler.targets import KINDS, load
from device_agents.devices import DEVICE_KINDS, DeviceKind
from device_agents.job.step_events import EVENTS
from examples.models import MODELS
from pockfarm import cli
from service.app import ROUTERS
from service.store.queue import TASKS
from tests.architecture.sources import ROOT, functions_returning, modules, python_files


def test_every_operator_record_is_in_the_table() -> None:
    written: list[Operator] = []
    for name in modules("compiler/ops"):
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, tuple) and value and all(isinstance(one, Operator) for one in value):
                written += value
            elif isinstance(value, Operator):
                written.append(value)
    assert {record.name for record in written} == set(OPERATORS)
    assert [
        name for name, count in Counter(one.name for family in FAMILIES for one in family).items() if count > 1
    ] == []


def test_every_pass_runs() -> None:
    running = {name_of(step) for step in each_of((*FORWARD_PASSES, *TRAINING_PASSES))}
    assert functions_returning("PassResult[Graph]", modules("compiler/passes")) == running


def test_every_call_pass_runs() -> None:
    """In builds that take all ways: no Winograd, halves, and so little memory that calls are repeated and cut; and for
    a GPU with tensor cores."""
    trace = Trace()
    spec = TrainingSpec.parse(
        {
            "batch": 4,
            "convolutions": "direct",
            "precision": {"compute": "bf16", "frozen": "int8", "frozen_products": "int8"},
        }
    )
    plan = SparsePlan.parse({"preset": "full", "frozen": ["classifier.weight"]})
    settings = BuildSettings(plan=plan, spec=spec, target=load("x86-64-v4-bf16"))
    in_tf32 = TrainingSpec.parse({"precision": {"products": "tf32"}})
    on_gpu = BuildSettings(plan=SparsePlan.parse("full"), spec=in_tf32, target=load("x86-64-v3/cuda"))
    for one in (settings, on_gpu):
        assert any(stage.name == "memory" for stage in walk(MODELS["small_cnn"](), one, trace))
    running = {step.name for step in trace.steps if step.subject == "train"}
    rooms = ("program", "fusion", "slicing", "rematerialisation", "placement")
    names = [name for room in rooms for name in modules(f"compiler/{room}")]
    assert functions_returning("PassResult[Program]", names) == running


def test_every_kernel_spec_has_a_plan_and_an_emitter() -> None:
    assert set(KERNEL_FAMILIES) == set(KINDS) == set(COMPILERS)
    for table in KERNEL_FAMILIES.values():
        assert set(table) == set(typing.get_args(kernel_spec.KernelSpec))
        for family in table.values():
            assert callable(family.plan.workspace_bytes)
            assert callable(importlib.import_module(family.emitter).emit)
    assert all(callable(importlib.import_module(name).compile_kernel) for name in COMPILERS.values())


def test_every_import_row_is_in_the_table() -> None:
    written = [row for name in modules("compiler/frontend/rows") for row in importlib.import_module(name).ROWS]
    assert sorted(written) == sorted(ROWS)
    assert len(written) == len(set(written)), "one row per ONNX operator"


def test_every_device_module_is_listed() -> None:
    written = {
        module.KIND.name
        for module in map(importlib.import_module, modules("device_agents/devices"))
        if isinstance(getattr(module, "KIND", None), DeviceKind)
    }
    assert written == {kind.name for kind in DEVICE_KINDS}


def test_every_router_is_mounted() -> None:
    written = {
        path.as_posix(): router
        for path in python_files("service")
        if path.name in ("endpoints.py", "routes.py", "health.py")
        for router in [getattr(importlib.import_module(_module(path)), "router", None)]
        if isinstance(router, APIRouter)
    }
    assert [path for path, router in written.items() if not any(router is one for one in ROUTERS)] == []


def test_every_task_has_a_name_and_every_name_a_task() -> None:
    from workers.app import TASK_FUNCTIONS, app

    assert set(TASK_FUNCTIONS) == set(TASKS)
    assert set(TASKS) <= set(app.tasks)


def test_every_event_of_the_runtime_is_one_that_the_agent_knows() -> None:
    sources = (ROOT / "compiler" / "runtime").rglob("*.c")
    calls = " ".join(call for path in sources for call in re.findall(r"pf_event\(([^;]*)\);", path.read_text()))
    # The agent never asks a binary for `info`.
    assert set(re.findall(r'"(\w+)"', calls)) - {"info"} == set(EVENTS)


def test_every_command_is_offered() -> None:
    written = [
        function
        for module in map(importlib.import_module, modules("pockfarm/commands"))
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("add_") and function.__module__ == module.__name__ and not name.endswith("_options")
    ]
    assert set(written) == {add for adders in cli.COMMANDS.values() for add in adders}


def test_every_example_model_is_listed() -> None:
    builders = {
        name
        for module in map(importlib.import_module, modules("examples/models"))
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and _builds_a_model(function)
    }
    assert builders == set(MODELS)


def _builds_a_model(function: object) -> bool:
    signature = inspect.signature(typing.cast(typing.Callable[..., object], function))
    keyword_only = all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in signature.parameters.values())
    return signature.return_annotation == "bytes" and bool(signature.parameters) and keyword_only


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)
