"""What a spec or a plan may say has a row wherever one is needed."""

from __future__ import annotations

from typing import get_args

from compiler.codegen.linking.tables import TOLD
from compiler.spec.loss import LossKind
from compiler.spec.optimizer import OptimizerKind
from compiler.spec.rules import SELECTORS
from compiler.spec.schemes import SchemeKind
from compiler.step.loss_kinds import LOSSES
from compiler.step.optimizer import HYPER_KINDS
from compiler.step.planning.presets import BLOCKS
from compiler.step.planning.selection import SELECTIONS


def test_every_kind_has_its_rows() -> None:
    assert set(LOSSES) == set(get_args(LossKind))
    assert set(HYPER_KINDS) == set(TOLD) == set(get_args(OptimizerKind))
    assert set(SELECTIONS) == set(SELECTORS)
    assert set(BLOCKS) == set(get_args(SchemeKind))
