"""Adapters after training: merged into the weights that they stand beside, or apart in the form that `peft` loads.

    lora: W + s B A           dora: m (W + s B A) / |W + s B A|, the length along the inputs of each output

in float64, rounded once. Source: peft 0.21, for the form of its files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.bundle.content import Chunk
from compiler.errors import ModelError
from compiler.origins import Adapter
from compiler.tensors import Array
from compiler.trained.checkpoints import tensors_file
from compiler.warnings import few_of

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix that `peft` puts before a name of the module that it wraps."""
_MAGNITUDE, _OURS = ".lora_magnitude_vector", ".lora_magnitude_vector.weight"


def merged(adapter: Adapter, tensors: Mapping[str, Array]) -> Array:
    """The author's weight with what its adapter learned; where that is nothing, the same bits."""
    weight = tensors[adapter.weight]
    wide = weight.astype(np.float64) + adapter.scaling * _product(adapter, tensors).reshape(weight.shape)
    if adapter.magnitude:
        axes = tuple(axis for axis in range(weight.ndim) if axis != adapter.out_axis)
        length = np.sqrt(np.square(wide).sum(axis=axes, keepdims=True))
        magnitude = tensors[adapter.magnitude].astype(np.float64).reshape(length.shape)
        wide *= np.divide(magnitude, length, out=np.zeros_like(length), where=length > 0)
    return wide.astype(weight.dtype)


def _product(adapter: Adapter, tensors: Mapping[str, Array]) -> Array:
    """B A in the order of the weight's elements."""
    b = tensors[adapter.b].astype(np.float64).reshape(-1, adapter.rank)
    a = tensors[adapter.a].astype(np.float64).reshape(adapter.rank, -1)
    return np.asarray(b @ a if adapter.out_axis == 0 else a.T @ b.T)


@dataclass(frozen=True)
class AdapterFiles:
    """The files that `peft` loads beside the base model: its configuration, and tensors under its names."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Array]

    def chunks(self) -> Iterator[Chunk]:
        """The bytes of its safetensors file."""
        return tensors_file(self.tensors, {"format": "pt"})


def adapter_files(
    adapters: Collection[Adapter], tensors: Mapping[str, Array], changed: Collection[str], names: Collection[str]
) -> AdapterFiles:
    """The adapters, and beside them the modules of which a rule let something learn, whole (`modules_to_save`).

    `tensors` are those of the author and of the adapters, `changed` what learned of the author's without adapters,
    `names` what the model holds.
    Raises: ModelError where there are no adapters, or `peft` has no place for what was learned.
    """
    if not adapters:
        raise ModelError("its plan has no adapters", where="bundle", hint="say `lora` in the plan")
    first = next(iter(adapters))
    odd = [adapter.weight for adapter in adapters if adapter.weight == adapter.module]
    if odd:
        raise ModelError(
            f"{few_of(odd)}: not the weight of a module of its own, for which peft has no place",
            where="adapter",
            hint="take the merged weights",
        )
    modules = _modules(changed, [adapter.module for adapter in adapters])
    saved = {name: tensors[name] for adapter in adapters for name in adapter.names}
    saved |= {name: tensors[name] for name in names if _module(name) in modules}
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": _plain(first.alpha),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": first.rslora,
        "use_dora": bool(first.magnitude),
        "init_lora_weights": True,
        "fan_in_fan_out": any(adapter.form == "linear" and adapter.out_axis == 1 for adapter in adapters),
        "target_modules": _targets([adapter.module for adapter in adapters], names),
        "modules_to_save": list(modules) or None,
    }
    return AdapterFiles(config, {f"{PREFIX}{_theirs(name)}": array for name, array in saved.items()})


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _theirs(name: str) -> str:
    return name.removesuffix(_OURS) + _MAGNITUDE if name.endswith(_OURS) else name


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _modules(changed: Collection[str], adapted: Collection[str]) -> tuple[str, ...]:
    """The modules of which something learned. Raises: ModelError where `peft` cannot keep one beside an adapter."""
    modules = dict.fromkeys(map(_module, changed))
    odd = [name for name in changed if any(_holds(_module(name), module) for module in adapted)]
    if odd:
        raise ModelError(
            f"{few_of(odd)} learned by a rule in a module that holds adapters, or whose name ends that of one: peft "
            "cannot keep it beside them",
            where="adapter",
            hint="take the merged weights, or freeze it",
        )
    return tuple(modules)


def _targets(modules: list[str], names: Collection[str]) -> list[str] | str:
    """Returns what finds these modules alone: their paths, or a pattern where one is the end of another layer's
    path.
    """
    targets = set(modules)
    others = {_module(name) for name in names} - targets
    clash = any(ending in targets for other in others for ending in _endings(other))
    return f"({'|'.join(map(re.escape, modules))})" if clash else modules


def _endings(path: str) -> Iterator[str]:
    """Yields what follows each dot."""
    while "." in path:
        path = path.partition(".")[2]
        yield path


def _holds(module: str, adapted: str) -> bool:
    """Whether `peft` would wrap an adapted module as a part of `module`, or as one that ends with its path."""
    return f"{adapted}.".startswith(f"{module}.") or adapted.endswith(module)


_UNSAID: Mapping[str, Any] = {
    "r": 8,
    "lora_alpha": 8,
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""The meaning of a configuration of `peft` that leaves a setting out: files of its earlier versions know less."""


def as_start(tensors: Mapping[str, Array], adapters: Collection[Adapter], config: Mapping[str, Any]) -> AdapterFiles:
    """A file of peft's under the names of our checkpoints, as `--weights` takes it; one of ours stays as it is.

    Raises: ModelError where its configuration computes with another scale or kind than the bundle.
    """
    first = next(iter(adapters), None)
    if first is None:
        raise ModelError("its plan has no adapters", where="bundle", hint="build it with `lora` in the plan")
    expected = {
        "r": first.rank,
        "lora_alpha": first.alpha,
        "use_rslora": first.rslora,
        "use_dora": bool(first.magnitude),
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    for name, value in expected.items():
        actual = _UNSAID[name] if config.get(name) is None else config[name]
        if actual != value:
            raise ModelError(
                f"says {name}: {f'{actual}':.100}, the bundle computes with {value}",
                where=CONFIG,
                hint="build with the adapter's rank, alpha and kind, which are the same for all of its layers",
            )
    return AdapterFiles({}, {_ours(name): array for name, array in tensors.items()})


def _ours(name: str) -> str:
    name = name.removeprefix(PREFIX)
    return f"{name}.weight" if name.endswith(_MAGNITUDE) else name
