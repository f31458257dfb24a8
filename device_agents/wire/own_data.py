"""Data sets that stay on a board: what the farm is told of them, and nothing else. Standard library only."""

import re
from dataclasses import dataclass
from typing import Optional

from device_agents.wire.codec import check

MAX_OWN_DATASETS = 32
MAX_OWN_ARRAYS = 64
MAX_CLASSES = 1000
MAX_COUNT = 1 << 62
"""The largest integer that a database holds."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DTYPES = (
    "float32",
    "float64",
    "float16",
    "int32",
    "int64",
    "int16",
    "int8",
    "uint8",
    "bool",
    "uint16",
    "uint32",
    "uint64",
)


def check_own_name(where: str, name: str) -> None:
    check(bool(_NAME.fullmatch(name)), where, "1-63 lower-case letters, digits and ._-, a letter or digit first")


@dataclass(frozen=True)
class OwnArray:
    """An array; its first extent is samples."""

    name: str
    dtype: str
    """The element type as NumPy names it: `float32`."""
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check(0 < len(self.name) <= 200, "name", "1-200 characters")
        check(self.dtype in DTYPES, "dtype", f"one of {', '.join(DTYPES)}")
        check(
            1 <= len(self.shape) <= 8 and all(0 < extent <= MAX_COUNT for extent in self.shape),
            "shape",
            "1 to 8 extents",
        )


@dataclass(frozen=True)
class OwnDataset:
    """A data set that the board's operator lets runs use there: what of it leaves the board."""

    name: str
    digest: str
    """Digest of the npz; for a folder of classes that of the npz that it makes."""
    size_bytes: int
    samples: int
    arrays: tuple[OwnArray, ...]
    label_counts: Optional[tuple[int, ...]] = None
    """Samples of each class, if the labels are class numbers."""
    weights_stay: bool = False
    """Weights that are trained on it stay on the board too: a run's report leaves, its weights do not."""

    def __post_init__(self) -> None:
        check_own_name("name", self.name)
        check(bool(_DIGEST.fullmatch(self.digest)), "digest", "sha256:<64 hex digits>")
        check(0 < self.size_bytes <= MAX_COUNT and 0 < self.samples <= MAX_COUNT, "samples", "more than 0")
        check(0 < len(self.arrays) <= MAX_OWN_ARRAYS, "arrays", f"1 to {MAX_OWN_ARRAYS}")
        counts = self.label_counts or ()
        check(len(counts) <= MAX_CLASSES and all(0 <= count <= MAX_COUNT for count in counts), "label_counts", "counts")


@dataclass(frozen=True)
class OwnData:
    """The data set of its own that a device is to use; in the report: that it has used."""

    name: str
    digest: str
    weights_stay: bool = False
    """Whether, in the report, the trained weights stayed on the board."""

    def __post_init__(self) -> None:
        check_own_name("name", self.name)
        check(bool(_DIGEST.fullmatch(self.digest)), "digest", "sha256:<64 hex digits>")
