"""Two small binaries with the runtime, and good weights and data for the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler import tiny_images
from tests.compiler.step_process import Data, classifier_data, classifier_state, write_weights


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_images.build(tiny_images.classifier(), tmp_path_factory.mktemp("classifier") / "step")


@pytest.fixture(scope="module")
def table_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_images.build(tiny_images.table(), tmp_path_factory.mktemp("table") / "step")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_weights(tmp_path / "weights.safetensors", classifier_state())


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return classifier_data(tmp_path / "data")
