"""Bundles with a library, one for each kind of model and machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.bundle.archive import Bundle
from tests.compiler.agreement.step_binary import native_target
from tests.thorough.on_device.trained import IMAGES, WORDS
from tests.unpacked import unpacked


@pytest.fixture(scope="package")
def built(kernel_cache: Path) -> Bundle:
    return IMAGES.compile(native_target(), kernel_cache)


@pytest.fixture(scope="package")
def bundle(built: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the pictures, as a file."""
    path = tmp_path_factory.mktemp("images") / "images.pfb"
    path.write_bytes(built.data)
    return path


@pytest.fixture(scope="package")
def folder(built: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, unpacked."""
    return unpacked(built.data, tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="package")
def words_bundle(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.pfb"
    path.write_bytes(WORDS.compile(native_target(), kernel_cache).data)
    return path
