"""Reads the multipart body of `POST /compile`, field by field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from compiler import targets
from compiler.errors import CompileError
from compiler.external import MAX_FILES
from compiler.spec.documents import SparsePlan, TrainingSpec
from service.artefacts.jobs.external import keep_sent, read_digests, sent_bytes, with_external
from service.artefacts.jobs.request import CompileRequest, compiler_version
from service.base.identifiers import DIGEST, clean_name, clean_text
from service.base.problems import Invalid, NotFound, TooLarge
from service.people.access import FarmDep, PrincipalDep
from service.people.holdings.keeping import store_within
from service.store.farm import Farm
from service.store.files import read_form
from service.store.storage import StoredFile

Parsed = TypeVar("Parsed")
FIELDS = ("model", "plan", "spec", "target", "name", "external", "data")
MAX_TARGET_CHARACTERS = 100
COMPILE_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["model", "plan", "target"],
                "properties": {
                    "model": {
                        "description": "The ONNX file; or, as text, the digest of one that was sent before",
                        "oneOf": [{"type": "string", "format": "binary"}, {"type": "string"}],
                    },
                    "external": {
                        "description": "Of a model whose tensors lie in other files: JSON, location -> digest of each",
                        "type": "string",
                    },
                    "data": {
                        "description": "Those files, in any order; one that was sent before may be left out",
                        "type": "array",
                        "items": {"type": "string", "format": "binary"},
                    },
                    "plan": {
                        "description": "Sparse plan: JSON or YAML (text or file), or `full`, `bias-only`, `last-layer`",
                        "type": "string",
                    },
                    "spec": {"description": "Training spec: JSON or YAML (text or file)", "type": "string"},
                    "target": {"description": "Name of a target, such as `raspberry-pi-4`", "type": "string"},
                    "name": {"description": "The model's name for people; default: the file's", "type": "string"},
                },
            }
        }
    },
}


async def compile_form(request: Request, farm: FarmDep, _: PrincipalDep) -> AsyncIterator[CompileRequest]:
    """Yields the request in the form, with the model in the storage. Raises: Invalid, TooLarge, NotFound."""
    form = await read_form(request, max_files=4 + MAX_FILES, max_fields=8, field_bytes=farm.settings.text_limit_bytes)
    try:
        yield await run_in_threadpool(_read_form, farm, form)
    finally:
        await form.close()


CompileForm = Annotated[CompileRequest, Depends(compile_form)]


def _read_form(farm: Farm, form: FormData) -> CompileRequest:
    _check_names(form)
    limit_bytes = farm.settings.text_limit_bytes
    plan = _parse("plan", SparsePlan.parse, _text(form, "plan", limit_bytes))
    spec = _parse("spec", TrainingSpec.parse, _text(form, "spec", limit_bytes, default=""))
    target = _text(form, "target", MAX_TARGET_CHARACTERS).strip()
    if not target.isprintable() or not target:
        raise Invalid("target.invalid", "expected the name of a target", where="target")
    _parse("target", targets.load, target)  # a worker would say so too, minutes later
    digests = read_digests(_text(form, "external", limit_bytes, default=""), has_data="data" in form)
    model, name = _model(farm, form["model"])
    model = with_external(farm, model, digests, form.getlist("data"))
    return CompileRequest(
        model_digest=model.digest,
        model_bytes=model.size_bytes,
        model_name=clean_name(_text(form, "name", 1000, default="")) or name,
        plan=plan,
        spec=spec,
        target=target,
        compiler_version=compiler_version(farm.settings),
    )


def _check_names(form: FormData) -> None:
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in FIELDS:
            raise Invalid(
                "request.unknown-field",
                f"unknown field {name!r:.60}",
                where=clean_text(name, 60),
                hint=f"known fields: {', '.join(FIELDS)}",
            )
        if names.count(name) > 1 and name != "data":
            raise Invalid(
                "request.repeated-field",
                f"{name} is given more than once",
                where=name,
                hint="send one request for each",
            )
    for name in ("model", "plan", "target"):
        if name not in names:
            raise Invalid(
                "request.missing-field",
                f"{name} is needed",
                where=name,
                hint="send multipart/form-data with model, plan, target and perhaps spec",
            )


def _text(form: FormData, name: str, limit_bytes: int, *, default: str | None = None) -> str:
    value = form.get(name, default)
    if value is None:
        raise Invalid("request.missing-field", "missing", where=name)
    data = value.file.read(limit_bytes + 1) if isinstance(value, UploadFile) else value.encode()
    if len(data) > limit_bytes:
        raise TooLarge("limits.field", f"more than {limit_bytes:,} bytes", where=name)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{name}.invalid", "not UTF-8 text", where=name, hint="send JSON or YAML") from None


def _parse(name: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    try:
        return parse(text)
    except CompileError as error:
        where = error.where or name
        raise Invalid(error.code, error.message, where=where, hint=error.hint, cause=error.cause) from None


def _model(farm: Farm, value: UploadFile | str) -> tuple[StoredFile, str]:
    if isinstance(value, UploadFile):
        stored = store_within(farm, value.file, limit_bytes=farm.settings.model_limit_bytes, what="model")
        keep_sent(farm, "model", stored)
        return stored, clean_name((value.filename or "model").rpartition("/")[2].removesuffix(".onnx")) or "model"
    digest = value.strip()
    if not DIGEST.fullmatch(digest):
        raise Invalid(
            "model.invalid",
            "expected a file, or the digest (sha256:…) of one sent before",
            where="model",
            hint="with curl: -F model=@model.onnx",
        )
    size_bytes = sent_bytes(farm, digest)
    if size_bytes is None:
        raise NotFound("model.unknown", f"no file {digest} was sent before", where="model", hint="send the file itself")
    return StoredFile(digest, size_bytes), digest.removeprefix("sha256:")[:12]
