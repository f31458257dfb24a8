"""A folder of built steps that is carried to a machine with a GPU, without weights and data: those are made there.

    manifest.json                   models, steps, what steps should come to
    steps/NAME.xz                   a binary
    constants/NAME.xz               what it reads beside parameters, as safetensors
    courses/MODEL-bBATCH-PLAN.npz   fingerprints of gradients and updates in float64 (`course.py`)

What reads it needs NumPy and nothing else.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.fingerprint import Fingerprint
from benchmarks.gpu.precisions import PRECISIONS, Precision
from benchmarks.gpu.seeded import Arrays, Drawn, Weight, digest_of, weights_of
from compiler.bundle.content import write_file
from compiler.trained.checkpoints import tensors_file

SCHEMA = "pockfarm.bench-gpu/1"
MANIFEST = "manifest.json"
MOST_BYTES = 50 << 20
"""Of the folder: with the working tree, what is carried to a lent machine at once."""


class NotAsBuilt(Exception):
    """The folder, or what is made of it here, is not what was built; the message says what and what to do."""


@dataclass(frozen=True)
class CarriedModel:
    """What a model is fed, and its parameters without their elements."""

    inputs: Mapping[str, Drawn]
    labels: Drawn
    weights: Mapping[str, Weight]
    weights_digest: str
    learning_rate: float
    is_image: bool

    @property
    def has_kinks(self) -> bool:
        """Whether it has so many ReLUs and pools that some of their inputs lie at a kink: nets of images have."""
        return self.is_image

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> CarriedModel:
        """The inverse of `asdict`."""
        inputs = {name: Drawn.from_json(one) for name, one in body["inputs"].items()}
        weights = {name: Weight.from_json(one) for name, one in body["weights"].items()}
        return cls(**{**body, "inputs": inputs, "labels": Drawn.from_json(body["labels"]), "weights": weights})

    def made_weights(self) -> Arrays:
        """The parameters' elements. Raises: NotAsBuilt if they are others than those the steps were built with."""
        found = weights_of(self.weights)
        if digest_of(found) != self.weights_digest:
            raise NotAsBuilt(
                f"NumPy {np.__version__} makes other weights from the seed than the builder's did: use another version"
            )
        return found


@dataclass(frozen=True)
class Step:
    """A built step. `memory`: bytes, as the bundle's manifest tells them."""

    model: str
    batch: int
    plan: str
    precision: str
    memory: Mapping[str, int]
    loss_scale: float
    bundle: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.model}-b{self.batch}-{self.plan}-{self.precision}"

    @property
    def course(self) -> str:
        """Name of what it should come to."""
        return course_name(self.model, self.batch, self.plan)

    @property
    def computes(self) -> Precision:
        """In what."""
        return PRECISIONS[self.precision]

    @property
    def device_bytes(self) -> int:
        """All that it allocates on the device: weights, optimizer state and arena."""
        return self.memory["peak_bytes"]


@dataclass(frozen=True)
class Course:
    """What a few steps on one batch come to: losses, and of each parameter that learns what `course.py` says."""

    losses: tuple[float, ...]
    learned: tuple[str, ...]
    gradients: Mapping[str, Fingerprint]
    """Of momenta after the last step, as checkpoints hold them."""
    moved: Mapping[str, Fingerprint]
    """Of weights after the last step less those before the first."""
    sizes: Mapping[str, float]
    """Lengths of momenta."""
    own_errors: Mapping[str, float]
    """How far PyTorch's momenta in float32 are from these."""
    moves: Mapping[str, float]
    """Lengths of what moved."""

    def save(self, path: Path) -> None:
        """As a file of NumPy's."""
        path.parent.mkdir(parents=True, exist_ok=True)
        table = np.array([[self.sizes[one], self.own_errors[one], self.moves[one]] for one in self.learned])
        np.savez_compressed(
            path,
            losses=self.losses,
            learned=np.array(self.learned),
            table=table,
            gradients=np.array([self.gradients[one] for one in self.learned], np.float64),
            moved=np.array([self.moved[one] for one in self.learned], np.float64),
        )

    @classmethod
    def load(cls, path: Path) -> Course:
        """The inverse. Raises: OSError."""
        with np.load(path) as held:
            learned = tuple(str(name) for name in held["learned"])
            sizes, own, moves = held["table"].T.tolist()
            return cls(
                tuple(held["losses"].tolist()),
                learned,
                dict(zip(learned, held["gradients"], strict=True)),
                dict(zip(learned, held["moved"], strict=True)),
                *(dict(zip(learned, column, strict=True)) for column in (sizes, own, moves)),
            )


@dataclass(frozen=True)
class Carried:
    """The folder's contents. `refused`: what was not built, with the compiler's words."""

    folder: Path
    target: str
    capability: str
    commit: str
    models: dict[str, CarriedModel] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def is_for_a_gpu(self) -> bool:
        """False for steps of a CPU, by which all but the GPU is tried."""
        return self.target.endswith("/cuda")

    def save(self) -> None:
        """Write the manifest."""
        body = asdict(self)
        del body["folder"]
        text = json.dumps({"schema": SCHEMA, **body}, indent=1, allow_nan=False)
        write_file(self.folder / MANIFEST, [text.encode() + b"\n"])

    @classmethod
    def load(cls, folder: Path) -> Carried:
        """The inverse. Raises: NotAsBuilt."""
        try:
            body = json.loads((folder / MANIFEST).read_text())
        except OSError as problem:
            raise NotAsBuilt(f"{folder} holds no built steps ({problem.strerror}): build them first") from None
        if body.pop("schema") != SCHEMA:
            raise NotAsBuilt(f"{folder / MANIFEST} is of another version than this program: build the steps again")
        models = {name: CarriedModel.from_json(one) for name, one in body.pop("models").items()}
        return cls(folder, models=models, steps=[Step(**one) for one in body.pop("steps")], **body)

    def step_path(self, name: str) -> Path:
        """A packed binary."""
        return self.folder / "steps" / f"{name}.xz"

    def constants_path(self, name: str) -> Path:
        """A packed file of constants."""
        return self.folder / "constants" / f"{name}.xz"

    def course_path(self, name: str) -> Path:
        """What steps should come to."""
        return self.folder / "courses" / f"{name}.npz"

    def course(self, step: Step) -> Course:
        """What a step should come to. Raises: NotAsBuilt."""
        try:
            return Course.load(self.course_path(step.course))
        except OSError as problem:
            raise NotAsBuilt(f"{problem.filename} is missing: carry the whole folder, or build it again") from None

    def clear(self) -> None:
        """Remove what an earlier build left, and nothing else that lies there."""
        for path in (self.step_path("*"), self.constants_path("*"), self.course_path("*"), self.folder / MANIFEST):
            for file in path.parent.glob(path.name):
                file.unlink()

    def drop(self, name: str) -> None:
        """Remove one step, if it is there."""
        self.steps[:] = [step for step in self.steps if step.name != name]
        self.refused.pop(name, None)
        for path in (self.step_path(name), self.constants_path(name)):
            path.unlink(missing_ok=True)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def course_name(model: str, batch: int, plan: str) -> str:
    """Steps of all precisions have one course."""
    return f"{model}-b{batch}-{plan}"


def pack(path: Path, data: bytes) -> None:
    """Write a file in a tenth of its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)])


def unpack(path: Path) -> bytes:
    """The inverse. Raises: NotAsBuilt."""
    try:
        return lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as problem:
        raise NotAsBuilt(f"{path}: {problem}: carry the whole folder, or build it again") from None


def write_tensors(path: Path, tensors: Arrays) -> None:
    """A checkpoint that no step has been made from."""
    write_file(path, tensors_file(tensors, {"step": "0"}))
