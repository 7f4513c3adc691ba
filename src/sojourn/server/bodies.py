"""Bodies of epochs: a CBOR sequence of one or more, read within limits."""

from __future__ import annotations

import io

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from sojourn.core.errors import WireError
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import read_epochs

__all__ = ["CBOR", "decoded_epochs", "read_body", "read_body_epochs"]

CBOR = "application/cbor"


async def read_body_epochs(request: Request) -> list[Epoch]:
    """The epochs of a request; 400 if there is none or one is malformed, 413 if they are too large or too many."""
    epochs = await decoded_epochs(request, await read_body(request))
    if not epochs:
        raise HTTPException(400, "the body holds no epoch")
    return epochs


async def decoded_epochs(request: Request, body: bytes) -> list[Epoch]:
    """The epochs in a request's body, which may be none."""
    return await run_in_threadpool(_decode, body, request.app.state.limits.batch_epochs)


async def read_body(request: Request) -> bytes:
    """All bytes of a request, which the gate counts as they come; 413 as soon as they are too many."""
    return await request.body()


def _decode(body: bytes, most: int) -> list[Epoch]:
    epochs: list[Epoch] = []
    try:
        for epoch in read_epochs(io.BytesIO(body)):
            epochs.append(epoch)
            if len(epochs) > most:
                raise HTTPException(413, f"more than {most} epochs in one request")
    except WireError as error:
        raise HTTPException(400, str(error)) from None
    return epochs
