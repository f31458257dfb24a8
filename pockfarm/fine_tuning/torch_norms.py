"""Norms whose running statistics a step cannot keep as their module does in training mode."""

from __future__ import annotations

from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from pockfarm.errors import BELOW, UsageError
from pockfarm.fine_tuning.torch_modes import modes_of


def require_running_averages(module: Any) -> None:
    """Checks the requirement of `batch_norm: train` on a module's norms, except those that stay in evaluation mode.

    Raises: UsageError naming a norm that averages cumulatively, which its file does not tell, or by instance.
    """
    staying = modes_of(module).staying()
    for name, part in module.named_modules():
        if name in staying or getattr(part, "running_mean", None) is None:
            continue
        if isinstance(part, _InstanceNorm):
            raise UsageError(
                "an InstanceNorm with running statistics, which a step cannot update",
                where=name or "the module",
                hint="say batch_norm: frozen, or give it track_running_stats=False: each sample's own statistics",
                hint_form=BELOW,
            )
        if isinstance(part, _BatchNorm) and part.momentum is None:
            raise UsageError(
                "momentum=None averages over all batches, and a step has one share for each",
                where=name or "the module",
                hint="give it a momentum, as in momentum=0.1, or say batch_norm: frozen",
                hint_form=BELOW,
            )
