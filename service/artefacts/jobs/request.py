"""The request for a compile, and the digest that makes two requests the same."""

from __future__ import annotations

import json
from dataclasses import dataclass

from compiler.identity import compiler_identity
from compiler.spec.documents import SparsePlan, TrainingSpec
from service.base.identifiers import digest_of
from service.base.settings import Settings


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A checked request. The model is bytes in the storage: the API never parses it."""

    model_digest: str
    model_bytes: int
    model_name: str
    plan: SparsePlan
    spec: TrainingSpec
    target: str
    compiler_version: str
    tuning_json: str = ""
    """Measured schedules of the target (`pockfarm.tuning/1`); empty: none."""

    @property
    def parts(self) -> dict[str, str]:
        """Equal for requests that must give the same bundle."""
        parts = {
            "model": self.model_digest,
            "plan": self.plan.digest,
            "spec": self.spec.digest,
            "target": self.target,
            "compiler": self.compiler_version,
        }
        if self.tuning_json:
            parts["tuning"] = digest_of(self.tuning_json.encode())
        return parts

    @property
    def digest(self) -> str:
        """Digest of those parts."""
        return digest_of(json.dumps(self.parts, sort_keys=True).encode())


def compiler_version(settings: Settings) -> str:
    """Returns the identity of the compiler that the farm runs: the setting, or that of the compiler beside the
    service.
    """
    return settings.compiler_version or f"sha256:{compiler_identity()}"
