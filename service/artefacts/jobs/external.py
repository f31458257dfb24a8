"""A model's data files as they come with `POST /compile`: kept by digest, and named with the model by a listing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence

from starlette.datastructures import UploadFile

from compiler.errors import ModelError
from compiler.external import MAX_LISTING_BYTES, Listing, parse_digests
from service.base.identifiers import clean_text
from service.base.problems import Invalid, NotFound, TooLarge
from service.people.holdings import service as holdings
from service.people.holdings.keeping import removed_if_refused, store_within
from service.store.farm import Farm
from service.store.garbage.noting import note_listing
from service.store.storage import StoredFile


def read_digests(text: str, *, has_data: bool) -> Mapping[str, str]:
    """Returns digests by location, as the form states them; empty if it states none. Raises: Invalid."""
    if not text.strip():
        if has_data:
            raise Invalid(
                "external.invalid",
                "data files are sent, and nothing says where they belong",
                where="external",
                hint='say it in external: {"model.data": "sha256:…"}',
            )
        return {}
    try:
        return parse_digests(json.loads(text))
    except (ValueError, RecursionError):
        raise Invalid(
            "external.invalid", "not JSON", where="external", hint='such as {"model.data": "sha256:…"}'
        ) from None
    except ModelError as problem:
        raise Invalid("external.invalid", problem.message, where=problem.where, hint=problem.hint) from None


def with_external(
    farm: Farm, model: StoredFile, digests: Mapping[str, str], data: Sequence[UploadFile | str]
) -> StoredFile:
    """Returns the file that stands for the model in the storage: the model itself, or the listing of its files.
    `size_bytes` is that of all.

    Raises: Invalid (a file that nobody named), NotFound (a named file that is not there), TooLarge.
    """
    if not digests:
        return StoredFile(model.digest, _whole_bytes(farm, model))
    _keep(farm, digests, data)
    total_bytes = model.size_bytes
    for location, digest in digests.items():
        size_bytes = sent_bytes(farm, digest)
        if size_bytes is None:
            raise NotFound(
                "model.external-missing",
                f"data file {location!r} ({digest}) was not sent",
                where="data",
                hint="send it in this request, as a file part called data",
            )
        total_bytes += size_bytes
    _check_total(farm, total_bytes - model.size_bytes)
    listing = Listing(model.digest, digests)
    stored = store_within(farm, _stream(listing), limit_bytes=MAX_LISTING_BYTES, what="external")
    keep_sent(farm, "model", stored, {model.digest, *digests.values()})
    return StoredFile(stored.digest, total_bytes)


def sent_bytes(farm: Farm, digest: str) -> int | None:
    """Returns the size of a file that the caller's organisation sent before; None if it never did, whatever others
    have.
    """
    with farm.database.read() as session:
        holding = holdings.find(session, holdings.SENT, digest)
    return None if holding is None else farm.storage.size(digest)


def keep_sent(farm: Farm, kind: holdings.Kind, stored: StoredFile, listed: Iterable[str] = ()) -> None:
    """Lets the caller's organisation name the file by its digest from now on, and, if it is a listing, also what it
    names.

    Raises: Forbidden (no more room).
    """
    with removed_if_refused(farm, stored), farm.database.transaction() as session:
        note_listing(session, stored.digest, listed)
        holdings.hold_within(session, farm.settings, kind, stored.digest, size_bytes=stored.size_bytes)


def _keep(farm: Farm, digests: Mapping[str, str], data: Sequence[UploadFile | str]) -> None:
    left_bytes, named = farm.settings.external_limit_bytes, set(digests.values())
    for part in data:
        if not isinstance(part, UploadFile):
            raise Invalid(
                "request.form", "data is text, expected a file", where="data", hint="with curl: -F data=@model.data"
            )
        name = clean_text(part.filename or "data")
        stored = store_within(farm, part.file, limit_bytes=left_bytes, what=f"data ({name})")
        keep_sent(farm, "data", stored)
        left_bytes -= stored.size_bytes
        if stored.digest not in named:
            raise Invalid(
                "upload.digest",
                f"the file {name!r} has digest {stored.digest}, which external does not name",
                where="data",
                hint="name it, or send it again if it was damaged",
            )


def _check_total(farm: Farm, data_bytes: int) -> None:
    limit_bytes = farm.settings.external_limit_bytes
    if data_bytes > limit_bytes:
        raise TooLarge(
            "limits.upload",
            f"{data_bytes:,} bytes of data files, the limit is {limit_bytes:,}",
            where="data",
            hint="use a smaller model, or raise POCKFARM_EXTERNAL_LIMIT_BYTES",
        )
    limit_bytes = farm.settings.bundle_limit_bytes
    if data_bytes > limit_bytes:
        raise TooLarge(
            "limits.bundle",
            f"{data_bytes:,} bytes of data files, which its bundle would hold; a bundle may have {limit_bytes:,}",
            where="data",
            hint="use a smaller model, or raise POCKFARM_BUNDLE_LIMIT_BYTES",
        )


def _whole_bytes(farm: Farm, model: StoredFile) -> int:
    """Returns the size of the model, together with all files that it names if it is a listing that was sent or made
    before.

    Raises: NotFound for one that names what the caller's organisation never sent: a listing grants nothing.
    """
    if model.size_bytes > MAX_LISTING_BYTES:
        return model.size_bytes
    try:
        listing = Listing.parse(b"".join(farm.storage.read(model.digest)))
    except ModelError:
        return model.size_bytes
    if listing is None:
        return model.size_bytes
    sizes = {digest: sent_bytes(farm, digest) for digest in (listing.model, *listing.external.values())}
    for digest, size_bytes in sizes.items():
        if size_bytes is None:
            raise NotFound(
                "model.external-missing",
                f"the model lists {digest}, which was not sent",
                where="model",
                hint="send it as a file part called data, named in external",
            )
    with farm.database.transaction() as session:
        note_listing(session, model.digest, sizes)
    return sum(sizes[digest] or 0 for digest in (listing.model, *listing.external.values()))


def _stream(listing: Listing) -> io.BytesIO:
    return io.BytesIO(listing.to_bytes())
