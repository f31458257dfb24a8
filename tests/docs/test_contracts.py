"""docs/contracts.md says what is there: the binary's options, and every field of a manifest and a compile report."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.api import BuildSettings, compile_training, load_target
from compiler.spec.documents import SparsePlan, TrainingSpec
from examples.models import MODELS
from tests.architecture.sources import ROOT
from tests.compiler.agreement.step_binary import native_target

PAGE = (ROOT / "docs/contracts.md").read_text()


def test_the_usage_is_what_the_binary_prints() -> None:
    source = (ROOT / "compiler/runtime/options.c").read_text()
    literal = re.search(r"pf_usage\[\] =\n((?:\s*\"[^\n]*\"\s*\n?)+);", source)
    assert literal is not None
    usage = "".join(json.loads(line.strip()) for line in literal[1].splitlines())
    assert f"```text\n{usage.rstrip()}\n```" in PAGE


@pytest.fixture(scope="module")
def documents(kernel_cache: Path) -> dict[str, object]:
    model = MODELS["small_cnn"]()
    spec = TrainingSpec.parse({"batch": 4, "threads": 1, "optimizer": {"kind": "adamw", "learning_rate": 0.01}})
    plan = SparsePlan.parse({"name": "some", "preset": "full"})
    bundle = compile_training(model, BuildSettings(plan, spec, load_target(native_target()), cache_dir=kernel_cache))
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        names = ("manifest.json", "report.json", "kernels.json")
        return {name: json.load(archive.extractfile(name)) for name in names}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["manifest.json", "report.json"])
def test_every_field_is_on_the_page(name: str, documents: dict[str, object]) -> None:
    missing = sorted({key for key in fields(documents[name]) if not re.search(rf"\b{re.escape(key)}\b", PAGE)})
    assert missing == []


def fields(document: object) -> Iterator[str]:
    """Names of fields; keys that are data (digests, graph counts, paths) are not names."""
    if isinstance(document, list):
        for one in document:
            yield from fields(one)
    elif isinstance(document, dict):
        for key, value in document.items():
            if re.fullmatch(r"[a-z_]+", key):
                yield key
            yield from fields(value)
