"""Bodies of epochs: a CBOR sequence of one or more, read within limits.

What epochs take in memory once their counters are unpacked follows from their parameters; it is bounded before any is
decoded. They are decoded one after the other, to see whether they can be, and go on as bytes.
"""

from __future__ import annotations

import io

from fastapi import HTTPException, Request

from sojourn.core.errors import WireError
from sojourn.core.keys import FEW_KEYS, NodeKey
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import EncodedEpoch, encode, encoded, read_encoded
from sojourn.server.door.admission import IngestDesk
from sojourn.server.door.limits import Limits
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

__all__ = ["CBOR", "checked_epochs", "load_kernels", "read_body"]

CBOR = "application/cbor"


async def checked_epochs(request: Request, body: bytes) -> list[EncodedEpoch]:
    """The epochs in a request's body, which may be none; 400 if one is malformed, 413 if they are too much."""
    desk: IngestDesk = request.app.state.ingest
    epochs = await desk.run(_read, body, request.app.state.limits)
    async with desk.decoding.reserve(max((epoch.decoded_bytes for epoch in epochs), default=0)):
        await desk.run(_check, epochs)
    return epochs


async def read_body(request: Request) -> bytes:
    """All bytes of a request, which the gate counts as they come; 413 as soon as they are too many."""
    return await request.body()


def _read(body: bytes, limits: Limits) -> list[EncodedEpoch]:
    epochs: list[EncodedEpoch] = []
    decoded = keys = 0
    try:
        for epoch in read_encoded(io.BytesIO(body)):
            epochs.append(epoch)
            decoded += epoch.decoded_bytes
            keys += epoch.key_count
            if len(epochs) > limits.batch_epochs:
                raise HTTPException(413, f"more than {limits.batch_epochs} epochs in one request")
            if epoch.decoded_bytes > limits.epoch_decoded_bytes:
                raise HTTPException(
                    413,
                    f"the counters of epoch {epoch.sequence} of {epoch.stream} take {epoch.decoded_bytes} bytes of "
                    f"memory, the limit is {limits.epoch_decoded_bytes}; record with fewer counters",
                )
            if decoded > limits.request_decoded_bytes:
                raise HTTPException(
                    413,
                    f"the counters of {len(epochs)} epochs take {decoded} bytes of memory, the limit of one request "
                    f"is {limits.request_decoded_bytes}; send fewer at a time",
                )
            if keys > limits.request_keys:
                raise HTTPException(
                    413, f"more than {limits.request_keys} keys in one request; send fewer epochs at a time"
                )
    except WireError as error:
        raise HTTPException(400, str(error)) from None
    return epochs


def _check(epochs: list[EncodedEpoch]) -> None:
    for number, epoch in enumerate(epochs):
        try:
            epoch.check()
        except WireError as error:
            raise HTTPException(400, f"epoch {number + 1} of {len(epochs)}, {error}") from None


def load_kernels() -> None:
    """Load what checking epochs needs: compiled while a request waits, it would keep all others waiting, too."""
    sketch = BucketArray(BucketArrayParameters(buckets=4096, per_instance=1, bits=8, count_bits=8))
    keys = tuple(NodeKey(f"node-{number}") for number in range(2 * FEW_KEYS))
    encoded(encode(Epoch("node", "stream", 0, sketch, keys))).check()
