"""Every form of a data set becomes the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pockfarm.errors import UsageError
from pockfarm.fine_tuning.data import Names, read_data
from pockfarm.fine_tuning.model import Input

ONE = {"input": Input((4, 5), "float32")}
TWO = {"ids": Input((4, 5), "int64"), "mask": Input((4, 5), "int64")}


def xy() -> tuple[Tensor, Tensor]:
    return torch.arange(40.0).reshape(8, 5), torch.arange(8)


def loader(x: Tensor, y: Tensor) -> Any:
    return DataLoader(TensorDataset(x, y), batch_size=4)


def by_key(x: Tensor, y: Tensor) -> Iterator[dict[str, Tensor]]:
    for one, label in zip(x, y, strict=True):
        yield {"input": one, "labels": label}


class Squares(Dataset[tuple[Tensor, int]]):
    """A Dataset without an iterator's end of its own."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = xy()
        return x[index % 8], int(y[index % 8])


FORMS = {
    "pair": lambda x, y: (x, y),
    "numpy": lambda x, y: (x.numpy().astype(np.float64), y.numpy().astype(np.int32)),
    "mapping": lambda x, y: {"input": x, "y": y},
    "x and y": lambda x, y: {"x": x, "y": y},
    "inputs by name": lambda x, y: ({"input": x}, y),
    "loader": loader,
    "dataset": TensorDataset,
    "own dataset": lambda x, y: Squares(),
    "samples": lambda x, y: list(zip(x, y, strict=True)),
    "batches": lambda x, y: iter([(x[:4], y[:4]), (x[4:], y[4:])]),
    "mappings": by_key,
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_one_input_comes_in_many_forms(form: str) -> None:
    x, y = xy()
    found = read_data(FORMS[form](x, y), Names(("input",)), ONE)
    assert list(found) == ["input", "y"]
    assert np.array_equal(found["input"], x.numpy())
    assert np.array_equal(found["y"], y.numpy())


PAIRS: dict[str, Callable[..., Any]] = {
    "tuple": lambda a, b, y: ((a, b), y),
    "mapping": lambda a, b, y: {"mask": b, "ids": a, "labels": y},
    "loader": lambda a, b, y: DataLoader(TensorDataset(a, b, y), batch_size=3),
    "samples": lambda a, b, y: [((one, two), label) for one, two, label in zip(a, b, y, strict=True)],
    "mappings": lambda a, b, y: [
        {"ids": a[:4], "mask": b[:4], "labels": y[:4]},
        {"ids": a[4:], "mask": b[4:], "y": y[4:]},
    ],
}


@pytest.mark.parametrize("form", sorted(PAIRS))
def test_two_inputs_come_in_many_forms(form: str) -> None:
    x, y = xy()
    a, b = x.long(), -x.long()
    found = read_data(PAIRS[form](a, b, y), Names(("ids", "mask")), TWO)
    assert {name: array.tolist() for name, array in found.items()} == {
        "ids": a.tolist(),
        "mask": b.tolist(),
        "y": y.tolist(),
    }


@pytest.mark.parametrize("form", ["tuple", "mapping", "loader", "samples"])
def test_an_input_called_as_the_labels_are_is_told_apart(form: str) -> None:
    """`forward(x, y)`: in a mapping, and in the data set that a run gets, it is `input.y`."""
    x, y = xy()
    a, b = x.long(), -x.long()
    data = {"x": a, "input.y": b, "y": y} if form == "mapping" else PAIRS[form](a, b, y)
    found = read_data(data, Names(("x", "y")), {"x": TWO["ids"], "y": TWO["mask"]})
    assert {name: array.tolist() for name, array in found.items()} == {
        "x": a.tolist(),
        "input.y": b.tolist(),
        "y": y.tolist(),
    }


def test_two_samples_are_no_inputs_and_labels() -> None:
    x, y = xy()
    found = read_data(((x[0], y[0]), (x[1], y[1])), Names(("input",)), ONE)
    assert np.array_equal(found["input"], x[:2].numpy())


def test_without_an_example_labels_tell_samples_from_batches() -> None:
    x, y = xy()
    assert len(read_data(list(zip(x, y, strict=True)), Names(("input",)), {})["y"]) == 8
    assert len(read_data([(x, y)], Names(("input",)), {})["y"]) == 8


def test_a_file(tmp_path: Path) -> None:
    x, y = xy()
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    assert np.array_equal(read_data(tmp_path / "data.npz", Names(("input",)), ONE)["input"], x.numpy())
    (tmp_path / "bad.npz").write_bytes(b"PK no")
    with pytest.raises(UsageError, match=r"bad\.npz: no npz of arrays of numbers"):
        read_data(str(tmp_path / "bad.npz"), Names(("input",)), ONE)


def test_several_arrays_of_labels_and_none() -> None:
    x, y = xy()
    names = Names(("input",), ("classes", "boxes"))
    boxes = x[:, :4]
    for data in (
        (x, {"classes": y, "boxes": boxes}),
        (x, (y, boxes)),
        {"x": x, "boxes": boxes, "classes": y},
        DataLoader(TensorDataset(x, y, boxes), batch_size=3),
    ):
        found = read_data(data, names, ONE)
        assert found["classes"].tolist() == y.tolist()
        assert found["boxes"].tolist() == boxes.tolist()
    alone = Names(("input",), ())
    for data in (x, {"input": x}, (x,), DataLoader(x, batch_size=3), [(one,) for one in x]):
        assert read_data(data, alone, ONE)["input"].tolist() == x.tolist()
    with pytest.raises(UsageError, match="no labels 'boxes'"):
        read_data((x, {"classes": y}), names, ONE)


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ([], "no samples"),
    "no labels": ({"input": np.zeros((8, 5), np.float32)}, "no labels"),
    "words": ((np.array(["a", "b"]), np.zeros(2)), "are <U1; expected numbers"),
    "ragged": ([(np.zeros(5), 0), (np.zeros(4), 0)], "different shapes"),
    "items": ([3], "item 0 of data is int"),
    "inputs": (((np.zeros((2, 5)), np.zeros((2, 5))), np.zeros(2)), "data has 2 inputs, the model reads 1: input"),
    "shape": ((np.zeros((2, 4)), np.zeros(2)), r"shape \[4\], those of example_inputs \[5\]"),
    "count": ((np.zeros((2, 5)), np.zeros(3)), "different numbers of samples"),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_is_no_data_set_is_refused(what: str) -> None:
    data, words = REFUSED[what]
    with pytest.raises(UsageError, match=words):
        read_data(data, Names(("input",)), ONE)


SECOND = {
    "src": Input((3, 4, 5), "float32", batch_axis=1),
    "mask": Input((3, 3), "float32", batch_axis=None, example=torch.ones(3, 3)),
}
OTHERS = {"y": Input((3, 4), "int64", is_label=True, batch_axis=1)}


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    return torch.arange(120.0).reshape(3, 8, 5), torch.arange(24).reshape(3, 8), torch.ones(3, 3)


SEQUENCES: dict[str, Callable[..., Any]] = {
    "as the model takes them": lambda x, y, mask: ((x, mask), y),
    "without what is the same": lambda x, y, mask: (x, y),
    "mapping": lambda x, y, mask: {"src": x, "mask": mask, "y": y},
    "mapping without it": lambda x, y, mask: {"src": x, "labels": y},
    "batches": lambda x, y, mask: [(x[:, :4], y[:, :4]), (x[:, 4:], y[:, 4:])],
    "batches with it": lambda x, y, mask: [((x[:, :6], mask), y[:, :6]), ((x[:, 6:], mask), y[:, 6:])],
    "batches of three": lambda x, y, mask: [(x[:, :6], mask, y[:, :6]), (x[:, 6:], mask, y[:, 6:])],
    "samples": lambda x, y, mask: TensorDataset(x.transpose(0, 1), y.T),
}


@pytest.mark.parametrize("form", sorted(SEQUENCES))
def test_samples_come_first_wherever_the_model_has_them(form: str) -> None:
    x, y, mask = sequences()
    names = Names(("src", "mask"), ("y",), {"mask": mask})
    found = read_data(SEQUENCES[form](x, y, mask), names, SECOND, OTHERS)
    assert np.array_equal(found["src"], x.transpose(0, 1).numpy())
    assert np.array_equal(found["y"], y.T.numpy())
    assert np.array_equal(found["mask"], mask[None].numpy())


def test_an_npz_has_its_samples_first_already(tmp_path: Path) -> None:
    x, y, mask = sequences()
    np.savez(tmp_path / "data.npz", src=x.transpose(0, 1).numpy(), mask=mask.numpy(), y=y.T.numpy())
    found = read_data(tmp_path / "data.npz", Names(("src", "mask")), SECOND, OTHERS)
    assert {name: array.shape for name, array in found.items()} == {"src": (8, 3, 5), "mask": (1, 3, 3), "y": (8, 3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, mask: (x[..., :4], y), "have shape"),
        (lambda x, y, mask: (x, y[:, :5]), "different numbers of samples"),
        (lambda x, y, mask: [((x[:, :4], mask), y[:, :4]), ((x[:, 4:], 2 * mask), y[:, 4:])], "batch_axis: null"),
    ],
)
def test_what_does_not_fit_the_axes_is_refused(change: Callable[..., Any], message: str) -> None:
    x, y, mask = sequences()
    with pytest.raises(UsageError) as caught:
        read_data(change(x, y, mask), Names(("src", "mask"), ("y",), {"mask": mask}), SECOND, OTHERS)
    assert message in str(caught.value)
