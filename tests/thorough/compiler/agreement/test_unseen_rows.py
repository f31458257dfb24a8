"""Left padding and samples that are all padding: transformers against the module itself, in float64.

Rows of queries that see no key are where exporters, ONNX and PyTorch part. What counts is what the module computes, and
its own `named_parameters()`: nothing here comes from the import but the gradients that are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file

from compiler.api import BuildSettings, compile_training
from compiler.passes import FORWARD_PASSES, TRAINING_PASSES, run_passes
from compiler.spec.documents import LossSpec, SparsePlan, TrainingSpec
from compiler.step.autodiff import differentiate
from compiler.step.loss import attach_loss
from compiler.step.plan import resolve_plan
from compiler.targets import load
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary, native_target
from tests.compiler.frontend.onnx_graphs import imported
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value
from tests.models import Logits, export
from tests.sample import sample
from tests.sharing import sharing
from tests.vision import transformers

Kind = Literal["llama", "gpt2", "bert"]
NAMES = ("input_ids", "attention_mask")
BATCH, LENGTH = 3, 8
FULL = SparsePlan.parse("full")
SLICED = {"model.bert.embeddings.position_embeddings.weight", "model.transformer.wpe.weight"}
"""The dynamo exporter cuts these tables to the exported length and names the rest itself."""


@dataclass(frozen=True)
class Trained:
    """A module's loss and gradients in float64 (by all names of a tensor), and the model and data they belong to."""

    model: bytes
    feeds: dict[str, np.ndarray]
    labels: np.ndarray
    loss: float
    gradients: dict[tuple[str, ...], np.ndarray]


def module_of(kind: Kind, attention: str) -> Logits:
    t = transformers()
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    common = {"vocab_size": 60, "attn_implementation": attention}
    if kind == "llama":
        return Logits(
            t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, use_cache=False, **small, **common)), NAMES
        )
    if kind == "gpt2":
        config = t.GPT2Config(
            n_positions=16, n_embd=32, n_layer=2, n_head=4, use_cache=False, bos_token_id=0, eos_token_id=0, **common
        )
        return Logits(t.GPT2LMHeadModel(config), NAMES)
    return Logits(t.BertForSequenceClassification(t.BertConfig(max_position_embeddings=16, **small, **common)), NAMES)


def single_lowest(mask: torch.Tensor) -> torch.Tensor:
    """The finished mask with float32's lowest number.

    LLaMA's eager softmax is float32 even in a float64 module, and float64's lowest number is -inf there.
    """
    seen = torch.ones(LENGTH, LENGTH).tril().bool() & mask.bool()[:, None, None]
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min).double()


@cache
def trained(kind: Kind, attention: str, opset: int) -> Trained:
    """Sample 0 begins with three positions of padding, sample 1 is padding only, sample 2 has none."""
    module = module_of(kind, attention).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 60, (BATCH, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) >= torch.tensor([[3], [LENGTH], [0]])).long()
    model = export(module, (ids, mask), input_names=NAMES, opset=opset)
    logits = module.double()(ids, mask if (kind, attention) != ("llama", "eager") else single_lowest(mask))
    labels = torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=generator)
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    names: dict[torch.nn.Parameter, tuple[str, ...]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names[value] = (*names.get(value, ()), name)
    gradients = {names[value]: value.grad.numpy() for value in names if value.grad is not None}
    assert len(gradients) == len(list(module.parameters()))
    feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    return Trained(model, feeds, labels.numpy(), loss.item(), gradients)


def check(found: dict[str, np.ndarray], want: Trained, tolerance: float) -> None:
    """Every gradient of the module is there and as near as the tolerance says."""
    largest = max(np.abs(gradient).max() for gradient in want.gradients.values())
    for names, gradient in want.gradients.items():
        own = [found[name] for name in names if name in found]
        if not own and SLICED.issuperset(names):
            continue
        assert own, names
        difference = np.abs(own[0].reshape(gradient.shape) - gradient).max()
        assert difference <= tolerance * (np.abs(gradient).max() + 1e-3 * largest), (names, difference)


CASES = [
    (kind, attention, opset)
    for kind in ("llama", "gpt2", "bert")
    for attention in ("sdpa", "eager")
    for opset in (18, 23)
]
KEPT = {"llama-sdpa-23", "llama-eager-18", "gpt2-sdpa-18", "bert-eager-18"}
"""Each model, way to attend, and opset."""
BUILT = [case for case in CASES if case[2] == 18 or case[1] == "sdpa"]


@pytest.mark.parametrize(("kind", "attention", "opset"), sample(sharing("rows", CASES), KEPT))
def test_the_training_graph_is_the_module(kind: Kind, attention: str, opset: int) -> None:
    want = trained(kind, attention, opset)
    forward = run_passes(imported(want.model, batch=BATCH), FORWARD_PASSES)
    fused = [bool(node.attrs["causal"]) for node in forward.nodes if node.op == "attention"]
    # Where the lowest number hides a whole row, later keys count too.
    assert fused == [kind != "bert" and attention == "sdpa"] * 2
    plan = resolve_plan(forward, FULL)
    step = differentiate(attach_loss(forward, LossSpec()), plan)
    graph = run_passes(step.graph, TRAINING_PASSES)
    values = evaluate_graph(graph, {**by_value(graph, want.feeds), step.labels: want.labels})
    assert values[step.loss] == pytest.approx(want.loss, rel=1e-6)
    found = {
        forward.parameters[own].name: forward.parameters[own].to_file(values[value])
        for own, value in step.gradients.items()
    }
    check(found, want, 2e-5)


@pytest.mark.parametrize(("kind", "attention", "opset"), sample(sharing("rows", BUILT), KEPT - {"llama-eager-18"}))
def test_the_binary_is_the_module(kind: Kind, attention: str, opset: int, tmp_path: Path, kernel_cache: Path) -> None:
    want = trained(kind, attention, opset)
    optimizer = {"kind": "sgd", "learning_rate": 0.0, "momentum": 0.5}
    spec = TrainingSpec.parse({"batch": BATCH, "optimizer": optimizer, "threads": 2})
    bundle = compile_training(
        want.model, BuildSettings(plan=FULL, spec=spec, target=load(native_target()), cache_dir=kernel_cache, jobs=1)
    )
    binary = StepBinary.unpack(bundle, tmp_path)
    data = binary.write_data(want.feeds, want.labels)
    losses, after = binary.train(load_file(binary.weights), 1, data)
    names = imported(want.model, batch=BATCH).named_parameters()
    same_on_onnx_runtime(
        binary, data, noise=[name for name in names if name.endswith("key.bias")]
    )  # no softmax sees it
    assert losses[0] == pytest.approx(want.loss, rel=2e-6)
    parameters = imported(want.model, batch=BATCH).named_parameters()
    momentum = {name: after[f"optimizer.momentum.{name}"] for name in parameters}
    check({name: parameters[name].to_file(array) for name, array in momentum.items()}, want, 2e-4)
