"""Tensors in files beside the model: what PyTorch and ONNX write is read, what is wrong or hostile is refused."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, external_data_helper, numpy_helper

from compiler.errors import ModelError
from compiler.external import Listing, check_location, mapped, model_digest, open_data_file
from compiler.frontend.file.prescan import external_locations
from compiler.frontend.importer import import_model
from compiler.graph import Graph
from pockfarm.errors import UsageError
from pockfarm.files.model_files import files_of
from tests.compiler.frontend.onnx_graphs import model_of, node
from tests.compiler.named import stored

WIDTH = 300


def imported(model: bytes, external: Mapping[str, Any]) -> Graph:
    return import_model(model, input_shapes={}, batch=2, batch_norm="fold", external=external)


def exported(folder: Path) -> tuple[bytes, Path]:
    """A module as PyTorch writes it: in one file, and with its data beside it."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (torch.zeros(2, WIDTH),), dynamo=True, verbose=False)
        assert program is not None
        program.save(str(folder / "one.onnx"))
        program.save(str(folder / "model.onnx"), external_data=True)
    return (folder / "one.onnx").read_bytes(), folder / "model.onnx"


def test_a_pytorch_export_is_the_same_model_with_its_data_beside_it(tmp_path: Path) -> None:
    whole, path = exported(tmp_path)
    assert external_locations(whole) == ()
    with files_of(path) as files:
        assert list(files.external) == ["model.onnx.data"]
        apart = imported(files.model, files.mapped())
        assert model_digest(files.model, files.mapped()) == Listing(model_digest(files.model), files.digests()).digest
    one = imported(whole, {})
    assert apart.nodes == one.nodes
    for name, array in stored(one).items():
        np.testing.assert_array_equal(stored(apart)[name], array)


def test_a_file_for_each_tensor_also_in_a_folder_below(tmp_path: Path) -> None:
    whole, _ = exported(tmp_path)
    proto = onnx.load_from_string(whole)
    for number, tensor in enumerate(proto.graph.initializer):
        external_data_helper.set_external_data(tensor, f"data/{number}.bin")
    (tmp_path / "data").mkdir()
    onnx.save(proto, tmp_path / "many.onnx")
    with files_of(tmp_path / "many.onnx") as files:
        assert len(files.external) == len(proto.graph.initializer) > 2
        many = imported(files.model, files.mapped())
    for name, array in stored(imported(whole, {})).items():
        np.testing.assert_array_equal(stored(many)[name], array)


KINDS = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_those_that_onnx_reads(kind: str) -> None:
    """Of every type, at an offset that no element is aligned to, and inside an attribute too."""
    array = (np.random.default_rng(0).standard_normal((3, 5)) * 3).astype(kind)
    own = numpy_helper.from_array(array, "w")
    tensor = apart(own, "w.bin", offset=7)
    constant = onnx.helper.make_node("Constant", [], ["c"], value=apart(own, "w.bin", offset=7 + array.nbytes))
    data = bytes(7) + array.tobytes() * 2
    for made in (with_tensor(tensor), with_tensor(None, constant)):
        graph = imported(made, {"w.bin": data})
        (found,) = (value for value in graph.arrays.values() if value.shape == array.shape)
        np.testing.assert_array_equal(found, array.astype(found.dtype))


def apart(tensor: TensorProto, location: str, **entries: object) -> TensorProto:
    """The tensor with its elements elsewhere."""
    made = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    made.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        entry = made.external_data.add()
        entry.key, entry.value = key, str(value)
    return made


def with_tensor(*tensors: TensorProto | None, **_: object) -> bytes:
    """x [2, 3, 5] + the tensors (Constant nodes as they are), each cast to float."""
    nodes, held, last = [], [], "x"
    for number, one in enumerate(tensor for tensor in tensors if tensor is not None):
        if isinstance(one, onnx.NodeProto):
            nodes.append(one)
            name = one.output[0]
        else:
            held.append(one)
            name = one.name
        nodes.append(onnx.helper.make_node("Cast", [name], [f"f{number}"], to=TensorProto.FLOAT))
        nodes.append(onnx.helper.make_node("Add", [last, f"f{number}"], [f"y{number}"]))
        last = f"y{number}"
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, [2, 3, 5])], [value(last, 1, [2, 3, 5])], initializer=held
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    return bytes(model.SerializeToString())


W = TensorProto(name="w", dims=[3, 5], data_type=TensorProto.FLOAT)
V = TensorProto(name="v", dims=[3, 5], data_type=TensorProto.FLOAT)
FILE = {"w.bin": bytes(120)}

REFUSED: dict[str, tuple[list[TensorProto], Mapping[str, bytes], str]] = {
    "no file": ([apart(W, "w.bin")], {}, "'w.bin', which was not given"),
    "beyond the end": ([apart(W, "w.bin", offset=61)], FILE, "needs bytes 61 to 121 of 'w.bin', which has 120"),
    "far beyond": ([apart(W, "w.bin", offset=10**17)], FILE, "which has 120"),
    "too short": ([apart(W, "w.bin", length=56)], FILE, "needs 60 bytes, and it refers to 56"),
    "too long": ([apart(W, "w.bin", length=64)], FILE, "needs 60 bytes, and it refers to 64"),
    "overlapping": ([apart(W, "w.bin", offset=0), apart(V, "w.bin", offset=59)], FILE, "shares bytes 59 to 60"),
    "the same bytes": ([apart(W, "w.bin"), apart(V, "w.bin")], FILE, "shares bytes 0 to 60 of 'w.bin'"),
    "negative offset": ([apart(W, "w.bin", offset=-1)], FILE, "offset '-1' of its external data"),
    "offset in words": ([apart(W, "w.bin", offset="ten")], FILE, "offset 'ten'"),
    "offset too long": ([apart(W, "w.bin", offset="9" * 30)], FILE, "is no number of bytes"),
    "no location": ([apart(W, "")], FILE, "does not say which"),
    "spare file": ([apart(W, "w.bin")], {**FILE, "other": b""}, "no tensor of it lies in 'other'"),
    "texts": ([apart(TensorProto(name="w", dims=[3, 5], data_type=8), "w.bin")], FILE, "cannot lie in another file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself_is_refused_by_the_tensors_name(name: str) -> None:
    tensors, files, message = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        imported(with_tensor(*tensors), files)
    assert message in str(caught.value)
    assert caught.value.hint or name == "texts"


def test_elements_here_and_elsewhere_are_refused() -> None:
    tensor = apart(numpy_helper.from_array(np.zeros((3, 5), np.float32), "w"), "w.bin")
    tensor.raw_data = bytes(60)
    with pytest.raises(ModelError, match="more than once"):
        imported(with_tensor(tensor), FILE)


HOSTILE = (
    "../w.bin",
    "/etc/passwd",
    "a/../../w.bin",
    "./w.bin",
    "a//b",
    "",
    "..",
    "a\\b",
    "c:x",
    "w\0",
    "w\n",
    "n" * 201,
)


@pytest.mark.parametrize("location", HOSTILE)
def test_locations_outside_the_models_folder_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        check_location(location)
    with pytest.raises(ModelError):
        open_data_file(tmp_path, location)
    if "\0" not in location:
        with pytest.raises(ModelError):
            imported(with_tensor(apart(W, location)), {location: bytes(60)})


MAKE: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/etc/hostname"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("below", [False, True])
def test_only_plain_files_are_opened(kind: str, below: bool, tmp_path: Path) -> None:
    """Nothing waits (a pipe), and no link is followed, of a folder on the way either."""
    location = "w.bin"
    if below:
        location = "there/w.bin"
        (tmp_path / "real").mkdir()
        (tmp_path / "there").symlink_to("real")
        (tmp_path / "real/w.bin").write_bytes(bytes(60))
    else:
        MAKE[kind](tmp_path / location)
    (tmp_path / "m.onnx").write_bytes(with_tensor(apart(W, location)))
    with pytest.raises(UsageError, match=location), files_of(tmp_path / "m.onnx"):
        pass


def test_an_empty_file_is_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open_data_file(tmp_path, "empty") as stream:
        assert mapped(stream) == b""


def test_a_listing_is_read_again_and_nothing_else_is() -> None:
    listing = Listing("sha256:" + "a" * 64, {"b.bin": "sha256:" + "b" * 64, "a.bin": "sha256:" + "c" * 64})
    data = listing.to_bytes()
    assert Listing.parse(data) == listing
    assert Listing.parse(model_of([node("Relu", ["x"], ["y"])], {"x": ("f32", (2,))}, ("y",))) is None
    for wrong in (
        data[:-1],
        data.replace(b"b.bin", b"../b"),
        data + b" ",
        b'{"external":' * 9000,
        b'{"external":{}}',
        data.replace(b"a" * 64, b"A" * 64),
    ):
        with pytest.raises(ModelError):
            Listing.parse(wrong)
