"""Uploads over HTTP: begun, given their files, started, looked at, and their report; each by its owner alone.

Files are written to disk as they come, a piece at a time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from sojourn.server.door.access import problems, readers_of_some
from sojourn.store.tokens import Token
from sojourn.web.uploads.desk import FILES, NoUploadError, Upload, UploadDesk
from sojourn.web.uploads.room import TooFullError
from sojourn.web.uploads.working import REPORT

router = APIRouter(prefix="/api/v1", tags=["uploads"], responses=problems(400, 401, 403, 404, 429))
PIECE_BYTES = 1 << 20
_BODY = {
    "requestBody": {
        "required": True,
        "description": "the file as it is",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class NewUpload(BaseModel):
    """What is to be made of the files that follow."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["measure", "rtt", "tomography"]
    where: str = Field(default="", max_length=1000, description="a filter in tcpdump's syntax")
    reverse: bool = Field(default=False, description="measure from the receiver to the sender")


class UploadInfo(BaseModel):
    """An upload and how far it is."""

    id: str
    kind: str
    state: str
    needs: list[str] = Field(description="files that are still to be uploaded")
    files: dict[str, str]
    size_bytes: int
    step: str
    share: float
    lines: list[str] = Field(description="what sums up the report")
    error: str
    created_ns: int
    expires_ns: int
    took_ns: int


class UploadList(BaseModel):
    """One's own uploads, the latest first, and what they may take."""

    uploads: list[UploadInfo]
    most_bytes: int
    keep_ns: int


def _desk(request: Request) -> UploadDesk:
    found: UploadDesk = request.app.state.uploads
    return found


def _found(desk: UploadDesk, name: str, token: Token) -> Upload:
    try:
        return desk.find(name, token.id)
    except NoUploadError as error:
        raise HTTPException(404, str(error)) from None


def _info(upload: Upload) -> UploadInfo:
    step, share = upload.progress
    return UploadInfo(
        id=upload.id,
        kind=upload.kind,
        state=upload.state,
        needs=[place for place in FILES[upload.kind] if place not in upload.names],
        files=upload.names,
        size_bytes=upload.size_bytes,
        step=step,
        share=share,
        lines=upload.lines,
        error=upload.error,
        created_ns=upload.created_ns,
        expires_ns=upload.expires_ns,
        took_ns=upload.took_ns,
    )


@router.get("/uploads")
def list_uploads(request: Request, token: Annotated[Token, readers_of_some]) -> UploadList:
    """One's own uploads."""
    desk = _desk(request)
    infos = [_info(one) for one in desk.of(token.id)]
    return UploadList(uploads=infos, most_bytes=desk.room.most_of_one, keep_ns=desk.options.keep_ns)


@router.post("/uploads", status_code=201)
def begin_upload(request: Request, body: NewUpload, token: Annotated[Token, readers_of_some]) -> UploadInfo:
    """Begin an upload; `needs` says which files it is to be given."""
    return _info(_desk(request).create(token.id, body.kind, where=body.where, reverse=body.reverse))


@router.put("/uploads/{upload_id}/files/{place}", responses=problems(413), openapi_extra=_BODY)
async def add_file(
    request: Request,
    upload_id: str,
    place: str,
    token: Annotated[Token, readers_of_some],
    name: Annotated[str, Query(min_length=1, max_length=500, description="what the file is called")],
) -> UploadInfo:
    """One of its files."""
    upload, desk = _found(_desk(request), upload_id, token), _desk(request)
    try:
        with desk.receiving(upload, place, name) as take:
            waiting = bytearray()
            async for piece in request.stream():
                waiting += piece
                if len(waiting) >= PIECE_BYTES:
                    await run_in_threadpool(take, bytes(waiting))
                    waiting.clear()
            await run_in_threadpool(take, bytes(waiting))
    except TooFullError as error:
        raise HTTPException(413, str(error)) from None
    except NoUploadError as error:
        raise HTTPException(404, str(error)) from None
    except OSError as error:
        raise HTTPException(503, f"the file cannot be written ({error.strerror or error})") from None
    return _info(upload)


@router.post("/uploads/{upload_id}/start")
def start_upload(request: Request, upload_id: str, token: Annotated[Token, readers_of_some]) -> UploadInfo:
    """Begin to measure, once all files are there."""
    upload = _found(_desk(request), upload_id, token)
    _desk(request).start(upload)
    return _info(upload)


@router.get("/uploads/{upload_id}")
def get_upload(request: Request, upload_id: str, token: Annotated[Token, readers_of_some]) -> UploadInfo:
    """One upload, and how far it is."""
    return _info(_found(_desk(request), upload_id, token))


@router.get("/uploads/{upload_id}/report", response_class=FileResponse)
def get_report(request: Request, upload_id: str, token: Annotated[Token, readers_of_some]) -> FileResponse:
    """The report, a page of HTML."""
    return report_of(_desk(request), upload_id, token)


def report_of(desk: UploadDesk, upload_id: str, token: Token) -> FileResponse:
    """The report of an upload of this token; 404 if there is none."""
    upload = _found(desk, upload_id, token)
    if upload.state != "done":
        raise HTTPException(404, "there is no report of this upload yet")
    return FileResponse(upload.folder / REPORT, media_type="text/html; charset=utf-8")


@router.delete("/uploads/{upload_id}", status_code=204, response_class=Response)
def remove_upload(request: Request, upload_id: str, token: Annotated[Token, readers_of_some]) -> Response:
    """Remove an upload and its report now."""
    _desk(request).remove(_found(_desk(request), upload_id, token))
    return Response(status_code=204)
