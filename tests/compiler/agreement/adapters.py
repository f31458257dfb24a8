"""Models with adapters: the author's module as `peft` wraps it, and the same module with a plan of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compiler.api import BuildSettings, compile_training
from compiler.frontend.importer import import_model
from compiler.graph import Parameter
from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import SparsePlan
from compiler.step.adapters import attach_adapters
from compiler.step.plan import resolve_plan
from compiler.targets import load
from tests.compiler.agreement.harness import Built, Case
from tests.compiler.agreement.module_reference import ModuleReference
from tests.compiler.agreement.reference import Window, what_learns
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.models import FAMILIES, Logits, export, randomize_norms, transformers_model
from tests.vision import transformers

WRAPPED = "base_model.model."
Draw = Callable[[np.random.Generator, int], Any]


def peft() -> Any:
    """The package `peft`, which imports transformers."""
    transformers()
    import peft

    return peft


class SmallCnn(nn.Module):
    """Strided, plain and point-wise convolutions with norms, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.point, self.norm2 = nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12)
        self.body, self.norm3 = nn.Conv2d(12, 10, 3, padding=1), nn.BatchNorm2d(10)
        self.classifier = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.stem(x)))
        x = torch.relu(self.norm3(self.body(torch.relu(self.norm2(self.point(x))))))
        return self.classifier(x.mean((2, 3)))


@dataclass(frozen=True)
class PeftReference(ModuleReference):
    """A module that `peft` wrapped; its DoRA does not take weights whose channels lie last."""

    def loss_and_gradients(
        self,
        weights: Mapping[str, np.ndarray],
        feeds: Mapping[str, np.ndarray],
        labels: np.ndarray,
        real: torch.dtype,
        *,
        channels_last: bool = False,
        scale: float = 1.0,
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The same in the order that there is."""
        return super().loss_and_gradients(weights, feeds, labels, real, scale=scale)


@dataclass(frozen=True)
class Adapters:
    """A model, what `peft` calls its adapters, and what is classified."""

    module: nn.Module
    example: tuple[Tensor, ...]
    names: tuple[str, ...]
    lora: Mapping[str, Any]
    config: Mapping[str, Any]
    feeds: Draw
    labels: Draw
    saved: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> SparsePlan:
        rules = [{"parameters": [f"*{name}.*"]} for name in self.saved]
        return SparsePlan.parse({"name": "adapters", "lora": dict(self.lora), "update": rules})

    def wrapped(self) -> nn.Module:
        """A copy of the module with `peft`'s adapters."""
        config = peft().LoraConfig(modules_to_save=list(self.saved) or None, **self.config)
        own = copy.deepcopy(self.module)
        if isinstance(own, Logits):
            own.model = peft().get_peft_model(own.model, config)
            return own.eval()
        wrapped: nn.Module = peft().get_peft_model(own, config)
        return wrapped.eval()


def _images(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    return {"input": rng.standard_normal((batch, 3, 12, 12), np.float32)}


def _tokens(*names: str) -> Draw:
    def draw(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
        given = {"input_ids": rng.integers(0, 100, (batch, 8)), "attention_mask": np.ones((batch, 8), np.int64)}
        return {name: given.get(name, given["input_ids"]) for name in names}

    return draw


def _classes(count: int, *shape: int) -> Draw:
    return lambda rng, batch: rng.integers(0, count, (batch, *shape))


def cnn(kind: str) -> Adapters:
    """Convolutions under `batch_norm: frozen`."""
    torch.manual_seed(5)
    module = SmallCnn()
    randomize_norms(module)
    targets = ["stem", "point", "body"]
    return Adapters(
        module.eval(),
        (torch.randn(4, 3, 12, 12),),
        ("input",),
        {"targets": targets, "rank": 3, "alpha": 6, "kind": kind},
        {"target_modules": targets, "r": 3, "lora_alpha": 6, "use_dora": kind == "dora"},
        _images,
        _classes(4),
        ("classifier",),
        {"batch_norm": "frozen"},
    )


def transformer(name: str, kind: str) -> Adapters:
    """BERT with separate projections and a head; GPT-2, whose layers are transposed and fused; LLaMA."""
    module, inputs, names = transformers_model(name)
    torch.manual_seed(6)
    targets = {"bert": ["query", "value"], "gpt2": ["c_attn", "c_fc"], "llama": ["q_proj", "v_proj", "down_proj"]}[name]
    config = {"target_modules": targets, "r": 4, "lora_alpha": 16, "use_dora": kind == "dora"}
    return Adapters(
        module,
        inputs(4),
        names,
        {"targets": targets, "rank": 4, "alpha": 16, "kind": kind, "rslora": name == "gpt2"},
        {**config, "use_rslora": name == "gpt2"},
        _tokens(*names),
        _classes(2) if name == "bert" else _classes(100, 8),
        *((("classifier",), {"optimizer": {"kind": "adamw", "learning_rate": 1e-2}}) if name == "bert" else ()),
    )


def table() -> Adapters:
    """An embedding with an adapter, in a module of our own."""
    family = FAMILIES["transformer_encoder"]
    torch.manual_seed(7)
    module = family.build()
    return Adapters(
        module.eval(),
        family.inputs(4),
        ("tokens",),
        {"targets": ["embed", "query"], "rank": 2, "alpha": 4},
        {"target_modules": ["embed", "query"], "r": 2, "lora_alpha": 4},
        lambda rng, batch: {"tokens": rng.integers(0, 100, (batch, 16))},
        _classes(4),
    )


CASES: Mapping[str, Callable[[], Adapters]] = {
    "cnn-lora": lambda: cnn("lora"),
    "cnn-dora": lambda: cnn("dora"),
    "bert-lora": lambda: transformer("bert", "lora"),
    "gpt2-dora": lambda: transformer("gpt2", "dora"),
    "table-lora": table,
}


def build_adapters(given: Adapters, folder: Path, cache: Path) -> Built:
    """Compile a model with its plan; `peft`'s module begins as the bundle does."""
    model = export(
        given.module, given.example, input_names=given.names, exporter="dynamo-unoptimized", dynamic_batch=False
    )
    reference = PeftReference(given.wrapped(), given.names, theirs(given))
    case = Case(model, reference, given.plan, 4, given.feeds, given.labels, **given.spec)
    bundle = compile_training(
        model, BuildSettings(plan=case.plan, spec=case.spec, target=load(native_target()), cache_dir=cache, jobs=1)
    )
    binary = StepBinary.unpack(bundle, folder)
    start = binary.checkpoint()
    own = dict(reference.module.named_parameters())
    with torch.no_grad():
        for name, inner in reference.names.items():
            if ".lora_A" in name or ".lora_embedding_B" in name:
                own[inner].copy_(torch.from_numpy(start[name]))
    return Built(case, learning(case), layouts(case), binary, bundle.manifest["memory"])


def theirs(given: Adapters) -> dict[str, str]:
    """Our name of a tensor -> that of the module which `peft` wrapped."""
    return {_ours(name): name for name, _ in given.wrapped().named_parameters() if ".original_module." not in name}


def _ours(name: str) -> str:
    for theirs, ours in ((WRAPPED, ""), (".base_layer", ""), (".modules_to_save.default", ""), (".default", "")):
        name = name.replace(theirs, ours)
    return name


def learning(case: Case) -> dict[str, Window]:
    """What the plan's rules let learn, and the adapters."""
    initial = case.reference.initial()
    own = {name: (slice(None),) * array.ndim for name, array in initial.items() if ".lora_" in name}
    return {**what_learns(case.plan, case.reference), **own}


def layouts(case: Case) -> Mapping[str, Parameter]:
    """How checkpoints hold optimizer state."""
    graph = import_model(case.model, input_shapes={}, batch=case.batch, batch_norm=case.batch_norm)
    graph = run_passes(graph, FORWARD_PASSES)
    return attach_adapters(graph, resolve_plan(graph, case.plan), case.plan.lora).graph.named_parameters()
