"""What `make large` does, act by act."""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pockfarm
from pockfarm.client import Client
from pockfarm.local import toolchain as local
from pockfarm.own_farm import up
from pockfarm.own_farm.state import StateFolder

WIDTH, CLASSES, BATCH, RATE = 4096, 10, 4, 0.01
SPEC = {"batch": BATCH, "optimizer": {"kind": "sgd", "learning_rate": RATE}}
CLOSE = 1e-3
"""Of the largest update of a tensor: PyTorch's own step is float32 too."""
AGENT_WITHIN_S = 120.0


def stack(gigabytes: float) -> nn.Module:
    """Linear layers near the identity, so that gradients reach the first."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(int(gigabytes * 1e9 / (4 * WIDTH**2)) + 1)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(0.05).add_(torch.eye(WIDTH))
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def held_bytes(module: nn.Module) -> int:
    return sum(one.nbytes for one in module.parameters())


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


def compiled(gigabytes: float, folder: Path) -> None:
    """Build a bundle of the exported file; the export is another process's, so that the peak is the compiler's."""
    apart(_exported, gigabytes, folder)
    started, weights = time.monotonic(), (folder / "model.onnx.data").stat().st_size
    built = local.build(folder / "model.onnx", "full", json.dumps(SPEC), "host", lambda stage, share: None)
    built.write(folder / "step.pfb")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    _say("compile", started, f"weights {weights:,}, bundle {built.size_bytes:,}, peak {peak:,}: {peak / weights:.2f}x")


def _exported(gigabytes: float, folder: Path) -> None:
    program = torch.onnx.export(stack(gigabytes), (samples()[0],), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    program.save(folder / "model.onnx", external_data=True)


def here(gigabytes: float, folder: Path) -> None:
    """`pockfarm.fine_tune` on this machine."""
    _check("here", stack(gigabytes), folder, pockfarm.fine_tune)


def farm(gigabytes: float, folder: Path) -> None:
    """`Client.fine_tune` on a farm of its own, whose agent is this machine."""
    state = StateFolder(folder / "state")
    status = up.up(state, say=print)
    try:
        with Client(status.url, state.api_key() or "") as client:
            deadline = time.monotonic() + AGENT_WITHIN_S
            while not any(one.measurement_class == "host" for one in client.devices()):
                assert time.monotonic() < deadline, "this machine's agent has not enrolled"
                time.sleep(1)
            _check("farm", stack(gigabytes), folder, client.fine_tune)
    finally:
        up.down(state, say=print)


def _check(act: str, module: nn.Module, folder: Path, fine_tune: Callable[..., Any]) -> None:
    """One step, beside PyTorch's own; the state loads, and the file that comes back computes what the module does."""
    x, y = samples()
    started, weights = time.monotonic(), held_bytes(module)
    tuned = fine_tune(module, x, (x, y), spec=SPEC, steps=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    _say(act, started, f"weights {weights:,}, peak of this process {peak:,} (the module and its result are in it)")
    nn.functional.cross_entropy(module(x), y).backward()
    worst = 0.0
    for name, one in module.named_parameters():
        assert one.grad is not None
        update = -RATE * one.grad
        # What float32 weights can hold of an update counts as right.
        off = float((tuned[name] - one.detach() - update).abs().max()) - float(one.detach().abs().max()) * 2**-23
        worst = max(worst, off / float(update.abs().max()))
        one.grad = None
    module.load_state_dict(tuned)
    tuned.save_onnx(folder / "back.onnx")
    del tuned
    with torch.no_grad():
        logits = module(x).numpy()
    answered = _by_runtime(folder / "back.onnx", x.numpy())
    off_by = float(np.abs(answered - logits).max() / np.abs(logits).max())
    _say(act, started, f"update off by {worst:.1e}, logits of the file that came back by {off_by:.1e}")
    assert max(worst, off_by) < CLOSE


def _by_runtime(path: Path, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def _say(act: str, started: float, words: str) -> None:
    print(f"{act:<8} {time.monotonic() - started:>6.0f} s  {words}", flush=True)


def apart(act: Callable[..., None], *arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=act, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{act.__name__} failed")


ACTS: dict[str, Callable[[float, Path], None]] = {"compile": compiled, "here": here, "farm": farm}
