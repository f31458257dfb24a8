"""A compiled training step with its weights, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pockfarm.ondevice.arrays import Array, Arrays, Tensor, by_name, fitted, fitted_parameter
from pockfarm.ondevice.bundle import WEIGHTS, check_digest, unpack
from pockfarm.ondevice.errors import StepError
from pockfarm.ondevice.native import (
    CAUSES,
    DTYPES,
    INPUT,
    LABEL,
    OUTPUT,
    PARAMETER,
    NativeArray,
    NativeBuild,
    NativeScore,
    NativeSettings,
    NativeTensor,
    load_library,
)

PathText = Any
"""A path, as text or `os.PathLike`."""


class Score(NamedTuple):
    """The score of an evaluation: the mean loss, and the accuracy of the first cross-entropy (NaN without one)."""

    samples: int
    loss: float
    accuracy: float


class Step:
    """A compiled training step with its weights.

    `source` is a bundle (`.pfb`) or its library (`.so`); `weights` are checkpoints, later ones over earlier ones, on
    top of the bundle's own. `digest` (`sha256:...`, of the file `source`) refuses any other. `threads`, `pin` (`off`,
    `auto` or cores such as `4-7`) and `spare_core` are as for `pockfarm exec`.
    Raises: StepError.
    """

    def __init__(
        self,
        source: PathText,
        weights: PathText | Sequence[PathText] = (),
        *,
        digest: str | None = None,
        threads: int = 0,
        pin: str = "off",
        spare_core: bool = False,
    ) -> None:
        self._step: ctypes.c_void_p | None = None
        self._turn = threading.Lock()
        self._process = os.getpid()
        self.loss: float | None = None
        """The loss of the last step, before its update."""
        weight_files = [weights] if isinstance(weights, (str, os.PathLike)) else list(weights)
        path = Path(source)
        check_digest(path, digest)
        with tempfile.TemporaryDirectory(prefix="pockfarm-step-") as folder:
            if tarfile.is_tarfile(path):
                path, initial = unpack(path, Path(folder))
                weight_files = [initial, *weight_files]
            if not weight_files:
                raise StepError(
                    f"{path}: a library has no weights: give weights=…, such as the bundle's {WEIGHTS}",
                    code="weights.missing",
                    cause="weights",
                )
            self._library = load_library(path)
            self._build = NativeBuild()
            self._library.pockfarm_about(ctypes.byref(self._build))
            self.inputs, self.labels = self._tensors(INPUT), self._tensors(LABEL)
            self.outputs = self._tensors(OUTPUT)
            settings, handle = NativeSettings(threads, spare_core, pin.encode()), ctypes.c_void_p()
            self._try(self._library.pockfarm_create(ctypes.byref(settings), ctypes.byref(handle)))
            self._step = handle
            try:
                self.load(*weight_files)
            except StepError:
                self.close()
                raise
        self.learning_rate = self._build.learning_rate

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def samples(self) -> int:
        """Samples of a training step."""
        return int(self._build.batch * self._build.micro_batches)

    @property
    def memory_bytes(self) -> int:
        """All that the memory plan needs: weights, optimizer's state and arena."""
        return int(self._build.memory_bytes)

    @property
    def steps_done(self) -> int:
        """Those of the loaded checkpoint included."""
        with self._used() as step:
            return int(self._library.pockfarm_steps_done(step))

    def identity(self, key: str) -> str | None:
        """`model`, `plan`, `spec`, `compiler`, `tuning` (digests) or `target`; None for what there is not."""
        identity_text = self._library.pockfarm_identity(key.encode())
        return None if identity_text is None else identity_text.decode()

    # ------------------------------------------------------------------------------------------------- what it does

    def train(self, x: Arrays, y: Arrays | None = None) -> float:
        """Trains one step: forward, backward and update. Returns the loss before the update, which is also `self.loss`.

        `x` is [samples, ...] in samples of a step, or inputs by name; `y` labels, or arrays of labels by name.
        Raises: StepError (`train.diverged` for a loss that is not finite: load weights and begin again).
        """
        arrays, samples, buffers = self._arrays(x, y, with_labels=True)
        if samples != self.samples:
            raise StepError(
                f"a training step takes {self.samples} samples, {samples} were given", code="data.count", cause="data"
            )
        loss = ctypes.c_double()
        with self._used() as step:
            self._try(self._library.pockfarm_train(step, arrays, len(buffers), ctypes.byref(loss)))
        self.loss = loss.value
        return loss.value

    def evaluate(self, x: Arrays, y: Arrays | None = None) -> Score:
        """The loss on any number of samples. Raises: StepError."""
        arrays, samples, buffers = self._arrays(x, y, with_labels=True)
        score = NativeScore()
        with self._used() as step:
            self._try(self._library.pockfarm_evaluate(step, arrays, len(buffers), samples, ctypes.byref(score)))
        return Score(score.samples, score.loss, score.accuracy)

    def infer(self, x: Arrays) -> Array:
        """The outputs (logits) of any number of samples: [samples, ...], float32. Raises: StepError."""
        arrays, samples, buffers = self._arrays(x, None, with_labels=False)
        shape = self.outputs[0].shape if self.outputs else ()
        output = np.empty((samples, *shape), np.float32)
        with self._used() as step:
            self._try(
                self._library.pockfarm_infer(step, arrays, len(buffers), samples, output.ctypes.data, output.nbytes)
            )
        return output

    def parameters(self) -> dict[str, Array]:
        """Every parameter, by the name and in the shape that it has in a checkpoint."""
        arrays = {}
        with self._used() as step:
            for tensor in self._tensors(PARAMETER):
                array = np.empty(tensor.shape, tensor.dtype)
                self._try(self._library.pockfarm_read(step, tensor.name.encode(), array.ctypes.data, array.nbytes))
                arrays[tensor.name] = array
        return arrays

    def set_parameters(self, parameters: Mapping[str, Array]) -> None:
        """Write some of them, all of which are checked before; the optimizer's state stays. Raises: StepError."""
        tensors = {tensor.name: tensor for tensor in self._tensors(PARAMETER)}
        fitted = {name: fitted_parameter(tensors, name, array) for name, array in parameters.items()}
        with self._used() as step:
            for name, array in fitted.items():
                self._try(self._library.pockfarm_write(step, name.encode(), array.ctypes.data, array.nbytes))

    def load(self, *paths: PathText) -> None:
        """Read safetensors checkpoints, later ones over earlier ones; together they hold every parameter and constant.

        Raises: StepError; the step then has no weights until another load.
        """
        encoded = [os.fsencode(path) for path in paths]
        listed = (ctypes.c_char_p * len(encoded))(*encoded)
        with self._used() as step:
            self._try(self._library.pockfarm_load(step, listed, len(encoded)))

    def save(self, path: PathText, *, parameters_only: bool = False) -> None:
        """Write a checkpoint, with the optimizer's state and constants unless `parameters_only`. Raises: StepError."""
        with self._used() as step:
            self._try(self._library.pockfarm_save(step, os.fsencode(path), int(parameters_only)))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the steps to come."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        with self._used() as step:
            self._try(self._library.pockfarm_set_learning_rate(step, ctypes.c_double(value)))
        self._learning_rate = float(value)

    def seed(self, value: int) -> None:
        """Sets the seed of dropout and other random generators of the model; 0 until set."""
        with self._used() as step:
            self._library.pockfarm_set_seed(step, ctypes.c_uint64(value))

    def close(self) -> None:
        """Give back memory and threads; the step cannot be used afterwards."""
        if self._step is not None and self._process == os.getpid():
            with self._used() as step:
                self._library.pockfarm_destroy(step)
        self._step = None

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_step", None) is not None:
            self.close()

    # -------------------------------------------------------------------------------------------------------- inside

    @contextlib.contextmanager
    def _used(self) -> Iterator[ctypes.c_void_p]:
        """The step, for this thread alone."""
        if self._step is None:
            raise StepError("the step is closed", code="user.step")
        if self._process != os.getpid():
            raise StepError(
                "the step was made before fork, and its threads stayed there: make it after it", code="user.fork"
            )
        if not self._turn.acquire(blocking=False):
            raise StepError("another thread is using this step: make one for each thread", code="user.thread")
        try:
            yield self._step
        finally:
            self._turn.release()

    def _try(self, status: int) -> None:
        if status:
            message, code = self._library.pockfarm_error_message(), self._library.pockfarm_error_code()
            raise StepError(message.decode(errors="replace"), code=code.decode(), cause=CAUSES[status])

    def _tensors(self, kind: int) -> tuple[Tensor, ...]:
        tensors = []
        for index in range(self._library.pockfarm_count(kind)):
            description = NativeTensor()
            self._try(self._library.pockfarm_describe(kind, index, ctypes.byref(description)))
            shape = tuple(description.shape[: description.rank])
            tensors.append(
                Tensor(
                    description.name.decode(),
                    DTYPES[description.dtype],
                    shape,
                    bool(description.is_shared),
                    bool(description.is_trained),
                )
            )
        return tuple(tensors)

    def _arrays(self, x: Arrays, y: Arrays | None, *, with_labels: bool) -> tuple[Any, int, list[Array]]:
        """As the library takes them; how many samples; and the arrays, which must live as long."""
        bindings = [(INPUT, tensor, array) for tensor, array in by_name("input", self.inputs, x)]
        if with_labels:
            bindings += [
                (LABEL, tensor, array) for tensor, array in by_name("labels", self.labels, {} if y is None else y)
            ]
        buffers = [fitted(tensor, array) for _, tensor, array in bindings]
        counts = {len(buffers[i]): tensor.name for i, (_, tensor, _) in enumerate(bindings) if not tensor.is_shared}
        if len(counts) > 1:
            listed = ", ".join(f"{name} has {count}" for count, name in counts.items())
            raise StepError(f"every array needs the same number of samples: {listed}", code="data.count", cause="data")
        rows = [
            NativeArray(kind, tensor.name.encode(), buffers[i].ctypes.data, buffers[i].nbytes)
            for i, (kind, tensor, _) in enumerate(bindings)
        ]
        return (NativeArray * len(rows))(*rows), next(iter(counts), 1), buffers
