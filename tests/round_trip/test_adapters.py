"""Fine-tuning with LoRA and DoRA: what comes back merged, what `peft` loads, and what `peft` wrote as a start."""

from __future__ import annotations

import copy
import io
import json
import re
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_tensors
from safetensors.torch import load_file
from torch import nn

import pockfarm
from pockfarm import FineTuned
from pockfarm.cli import main
from tests.compiler.agreement.adapters import SmallCnn, peft
from tests.models import randomize_norms
from tests.vision import transformers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("adapters")]
SPEC = {"optimizer": {"kind": "sgd", "learning_rate": 0.5, "momentum": 0.9}, "batch_norm": "frozen"}
LORA = {"rank": 4, "alpha": 16}
DORA = {"lora": {"targets": ["c_attn", "c_fc"], "kind": "dora", **LORA}}
NAMES = ("lora_A", "lora_B", "lora_magnitude_vector")


def gpt2() -> tuple[nn.Module, Any, torch.Tensor]:
    t = transformers()
    torch.manual_seed(1)
    config = t.GPT2Config(
        vocab_size=60, n_positions=8, n_embd=16, n_layer=1, n_head=2, use_cache=False, bos_token_id=1, eos_token_id=1
    )
    tokens = torch.randint(0, 60, (4, 8))
    return t.GPT2LMHeadModel(config).eval(), {"input_ids": tokens}, torch.randint(0, 60, (4, 8))


def cnn() -> tuple[nn.Module, Any, torch.Tensor]:
    torch.manual_seed(2)
    module = SmallCnn()
    randomize_norms(module)
    return module.eval(), (torch.randn(4, 3, 12, 12),), torch.randint(0, 4, (4,))


def tune(module: nn.Module, x: Any, y: torch.Tensor, plan: Mapping[str, Any], **spec: Any) -> FineTuned:
    return pockfarm.fine_tune(module, x, (x, y), plan=plan, spec={**SPEC, **spec}, steps=4)


@cache
def tuned_gpt2() -> FineTuned:
    """GPT-2 with `DORA`."""
    return tune(*gpt2(), DORA)


def logits(module: nn.Module, x: Any) -> torch.Tensor:
    with torch.no_grad():
        given = module(**x) if isinstance(x, Mapping) else module(*x)
    return given if isinstance(given, torch.Tensor) else given.logits


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert float((found - wanted).abs().max()) <= 2e-5 * float(wanted.abs().max())


def tuned_cnn() -> FineTuned:
    """Convolutions with adapters, and a classifier that learns whole."""
    plan = {"lora": {"targets": ["stem", "body"], **LORA}, "update": [{"parameters": ["classifier.*"]}]}
    return tune(*cnn(), plan)


@pytest.mark.parametrize(
    ("make", "train", "targets", "whole"),
    [
        pytest.param(gpt2, tuned_gpt2, ["c_attn", "c_fc"], (), id="gpt2-dora"),
        pytest.param(cnn, tuned_cnn, ["stem", "body"], ("classifier",), id="cnn-lora", marks=pytest.mark.thorough),
    ],
)
def test_merged_weights_and_peft_compute_the_same(
    make: Any, train: Any, targets: list[str], whole: tuple[str, ...], tmp_path: Path
) -> None:
    (base, x, _), tuned = make(), train()
    weights = {name for name, _ in base.named_parameters() if name.removesuffix(".weight").endswith(tuple(targets))}
    also = {name for name, _ in base.named_parameters() if name.startswith(whole)} if whole else set()
    assert set(tuned.changed) == weights | also
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, tuned[name]) == (name not in tuned.changed), name
    own = copy.deepcopy(base)
    own.load_state_dict(tuned, strict=True)
    tuned.save_adapter(tmp_path)
    theirs = peft().PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    held = load_file(tmp_path / "adapter_model.safetensors")
    assert {name for name, one in theirs.named_parameters() if any(part in name for part in NAMES)} == {
        _as_held(name) for name in held if any(part in name for part in NAMES)
    }
    assert_close(logits(own, x), logits(theirs, x))
    assert float((logits(own, x) - logits(base, x)).abs().max()) > 1e-3 * float(logits(base, x).abs().max())
    assert_close(logits(theirs.merge_and_unload(), x), logits(own, x))


def _as_held(name: str) -> str:
    """The parameter of a module that `peft` wrapped which it reads from an entry of its file."""
    if name.endswith("lora_magnitude_vector"):
        return f"{name}.default.weight"
    return name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def test_kept_apart_the_base_stays_and_the_adapter_is_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export: peft`: the state is the base's to the bit; `peft`'s folder is what a run of the binary begins with.

    A module that says of all its parameters that they do not learn is as it should be.
    """
    module, x, y = gpt2()
    module.requires_grad_(False)
    lora = {"targets": ["c_attn"], "export": "peft", **LORA}
    tuned = tune(module, x, y, {"lora": lora})
    assert tuned.changed == ()
    assert all(torch.equal(tensor, tuned[name]) for name, tensor in module.state_dict().items())
    tuned.save_adapter(tmp_path / "adapter")
    (tmp_path / "step.pfb").write_bytes(tuned.bundle)
    np.savez(tmp_path / "data.npz", input_ids=x["input_ids"].numpy(), y=y.numpy())
    common = ["exec", str(tmp_path / "step.pfb")]
    given = ["--data", str(tmp_path / "data.npz"), "--weights", str(tmp_path / "adapter")]
    assert main([*common, "infer", *given, "--out", str(tmp_path / "out.npy")]) == 0
    theirs = peft().PeftModel.from_pretrained(copy.deepcopy(module), tmp_path / "adapter").eval()
    assert_close(torch.from_numpy(np.load(tmp_path / "out.npy")), logits(theirs, x))
    assert main([*common, "train", *given, "--steps", "1", "--adapter", str(tmp_path / "next")]) == 0
    first, after = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "next"))
    assert first.keys() == after.keys()
    assert all(not torch.equal(first[name], after[name]) for name in first)
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 8}))
    assert main([*common, "infer", *given]) == 2
    assert re.search(r" lora_alpha: 8, .* 16\b", capsys.readouterr().err)


def test_less_memory_trains_the_same_adapters() -> None:
    """Forward calls that are repeated to fit in a limit change no bit of what learns."""
    free = tuned_gpt2()
    limit = int(0.75 * _manifest(free)["memory"]["peak_bytes"])
    tight = tune(*gpt2(), DORA, memory_limit_bytes=limit)
    assert _manifest(tight)["memory"]["peak_bytes"] <= limit
    assert any(call["again"] for call in _manifest(tight)["kernels"])
    found, wanted = load_tensors(tight.checkpoint), load_tensors(free.checkpoint)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def _manifest(tuned: FineTuned) -> Any:
    with tarfile.open(fileobj=io.BytesIO(tuned.bundle)) as archive:
        member = archive.extractfile("manifest.json")
        assert member is not None
        return json.loads(member.read())
