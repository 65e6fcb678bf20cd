"""REST of uploads: a file as the body of a request, streamed to storage and never sent back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path as FilePath
from typing import IO, Annotated, Any, Self

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from kalla.database import Connection
from kalla.errors import InvalidInput, NotAllowed, Problem
from kalla.reconcile.propose.side_tables import sniffed
from kalla.reconcile.registry import entries
from kalla.reconcile.registry.timed_inspection import SourceInspector
from kalla.reconcile.registry.upload_names import public_errors
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.inspection import PREVIEW_ROWS, Preview
from kalla.reconcile.uploads import upload_store
from kalla.reconcile.uploads.upload_store import Upload
from kalla.settings import Settings
from kalla.storage import Storage, is_s3
from kalla.web.access import Asking, GuardedRoute, harmless, needs
from kalla.web.app_state import State
from kalla.web.commands import Commanded
from kalla.web.storable import Text

router = APIRouter(prefix="/api", route_class=GuardedRoute, tags=["uploads"])

UPLOAD_PATH = "/api/uploads"
_PUT_SECONDS = 3600  # for the file to reach its place
UploadId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


class ShownUpload(BaseModel):
    """An uploaded file. Recipes name it by `uri` until it expires."""

    upload_id: str
    file_name: str
    uri: str = Field(examples=["source://upload-0011223344556677"])
    bytes: int
    created_at: datetime
    created_by: str
    expires_at: datetime | None = Field(description="null: it is a source, and does not expire")

    @classmethod
    def of(cls, found: Upload) -> Self:
        return cls(
            upload_id=found.upload_id,
            file_name=found.file_name,
            uri=f"source://{found.source_name}",
            bytes=found.bytes,
            created_at=found.created_at,
            created_by=found.created_by,
            expires_at=found.expires_at,
        )


class UploadPreview(BaseModel):
    """The first rows, and how the file is written."""

    upload: ShownUpload
    preview: Preview
    decisions: list[Decided]
    csv: dict[str, Any]


class NewName(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=100, description="what recipes call the source")
    replace: bool = Field(False, description="replace the existing source of this name")


@router.post("/uploads", status_code=201)
@harmless
async def upload_file(
    state: State,
    caller: Asking,
    request: Request,
    name: Annotated[Text, Query(min_length=1, max_length=255, description="of the file")],
) -> ShownUpload:
    """Upload a file as the body of the request. It is a source until it expires."""
    settings = state.settings
    upload_id, url = upload_store.new_place(settings, name)
    storage = Storage.of(settings.storage)
    async with _received(request, settings.uploads_url) as (file, size):
        if not size:
            raise InvalidInput(Problem("name", f"{name!r} is empty"))
        async with state.database.transaction() as connection:
            await upload_store.add(
                connection, upload_id, name, url, size, caller.name, _PUT_SECONDS
            )
        try:
            await asyncio.to_thread(_put, storage, file, url)
        except Exception:
            async with state.database.transaction() as connection:
                await upload_store.discard(connection, storage, upload_id, url)
            raise
    async with state.database.transaction() as connection:
        kept = settings.uploads.kept_seconds
        return ShownUpload.of(await upload_store.extend(connection, upload_id, kept))


@router.get("/uploads")
async def list_uploads(state: State) -> list[ShownUpload]:
    """Uploaded files that have not expired, the newest first."""
    async with state.database.transaction() as connection:
        return [ShownUpload.of(each) for each in await upload_store.uploads(connection)]


@router.get("/uploads/{upload_id}/preview")
async def preview_upload(
    state: State, upload_id: UploadId, rows: Annotated[int, Query(ge=1, le=500)] = PREVIEW_ROWS
) -> UploadPreview:
    """The first rows of an uploaded file, and its detected options."""
    async with state.database.transaction() as connection:
        found = await upload_store.upload(connection, upload_id)
    look = SourceInspector.of(state.settings)
    with public_errors(state.settings):
        source, decisions = await asyncio.to_thread(sniffed, found.source, look.storage)
        preview = await look.preview(source, rows)
    return UploadPreview(
        upload=ShownUpload.of(found),
        preview=preview,
        decisions=list(decisions),
        csv=source.csv.model_dump(exclude_defaults=True),
    )


@router.post("/uploads/{upload_id}/save")
@needs("operator")
async def save_upload(
    command: Commanded, state: State, upload_id: UploadId, new: NewName
) -> ShownUpload:
    """Make an uploaded file a permanent source of this name, with the detected options.

    An operator may: an uploaded file is not a new place that Kalla connects to. Only an admin may
    replace a source of another kind.
    """
    connection, settings = command.connection, state.settings
    found = await upload_store.upload(connection, upload_id)
    if new.replace and not command.caller.may("admin"):
        await _demand_uploaded(connection, settings, new.name)
    with public_errors(settings):
        source, _ = await asyncio.to_thread(sniffed, found.source, Storage.of(settings.storage))
    options = source.csv.model_dump(exclude_defaults=True)
    document = found.source.model_validate(
        {"uri": found.url, **({"csv": options} if options else {})}
    )
    await entries.register_source(connection, new.name, document, command.caller.name, new.replace)
    await upload_store.keep(connection, upload_id)
    return ShownUpload.of(await upload_store.upload(connection, upload_id))


@router.delete("/uploads/{upload_id}", status_code=204)
async def remove_upload(state: State, command: Commanded, upload_id: UploadId) -> None:
    """Remove an uploaded file now. One that is kept for a source is removed with the source."""
    storage = Storage.of(state.settings.storage)
    await upload_store.remove(command.connection, storage, upload_id)


async def _demand_uploaded(connection: Connection, settings: Settings, name: str) -> None:
    """Recipes and schedules read the new file from now on, so an operator replaces uploads only."""
    known = {each.name: each.source for each in await entries.sources(connection)}
    if name in known and not known[name].uri.startswith(f"{settings.uploads_url}/"):
        raise NotAllowed(f"{name} is not an uploaded file: an admin must replace it")


@asynccontextmanager
async def _received(request: Request, place: str) -> AsyncIterator[tuple[FilePath, int]]:
    """Streams the body to a temporary file, next to its final place if that is a folder."""
    folder = None if is_s3(place) else FilePath(place)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(prefix=".upload-", dir=folder) as file:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            await asyncio.to_thread(_write, file, piece)
        await asyncio.to_thread(file.flush)
        yield FilePath(file.name), size


def _write(file: IO[bytes], piece: bytes) -> None:
    file.write(piece)


def _put(storage: Storage, file: FilePath, url: str) -> None:
    if is_s3(url):
        storage.put(file, url)
        return
    target = FilePath(url)
    target.parent.mkdir(parents=True, mode=0o700)
    shutil.copyfile(file, target)
    target.chmod(0o600)
