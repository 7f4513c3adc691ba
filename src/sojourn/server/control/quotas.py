"""Quotas: how much a node may send on a day, and how many streams and keys it may have.

Bytes count as they come in, from midnight to midnight (UTC); a node that has used them up is refused (429) before what
it sends is read, and its agent keeps its epochs until it is taken again. A stream, or an epoch whose keys are new, that
is beyond a quota is refused by itself (413): an agent sets that epoch aside, on its disk, and sends the others.

Guarantee: a node is refused for its own use alone, and the refusal says which quota it is and how to raise it. Beyond
its bytes a node may have one request (else a quota smaller than a batch would let nothing pass), and where several
processes or query units take its epochs, what it sends to others in `REFRESH_SECONDS`.
Cost: what is counted is remembered, and read again every few seconds; of streams and keys what is new is looked at.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fastapi import HTTPException

from sojourn.core.errors import KeyTextError, WireError
from sojourn.core.keys import named_ids
from sojourn.core.units import format_bytes
from sojourn.epochs.wire import EncodedEpoch
from sojourn.server.control.inventory import InventoryStore
from sojourn.server.control.models import NodeUsage
from sojourn.server.door.limits import Limits, SparingLog
from sojourn.server.telemetry import Telemetry
from sojourn.store.arrivals import DAY_NS

REFRESH_SECONDS = 5.0
_LOG = logging.getLogger("sojourn.quotas")


@dataclass
class _Use:
    """What a node uses, as known lately; keys are at most so many."""

    read: float
    day: int
    sent_bytes: int
    quota_bytes: int | None
    quota_streams: int | None
    quota_keys: int | None
    streams: set[str] = field(default_factory=set)
    keys: int | None = None


class Quotas:
    """Belongs to one query unit; safe from several threads."""

    def __init__(self, inventory: InventoryStore, limits: Limits, telemetry: Telemetry) -> None:
        self._inventory, self._limits, self._telemetry = inventory, limits, telemetry
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        self._lock = threading.Lock()
        self._log = SparingLog(_LOG)

    def forget(self, node: str) -> None:
        """Read all about a node again: its settings have changed."""
        with self._lock:
            self._uses.pop(node, None)

    def usage(self, node: str) -> NodeUsage:
        """What a node uses, and how much it may."""
        use = self._read(node)
        return NodeUsage(
            sent_bytes=use.sent_bytes,
            quota_bytes=use.quota_bytes,
            streams=len(self._inventory.streams(node)),
            quota_streams=use.quota_streams,
            keys=self._inventory.count_keys(node),
            quota_keys=use.quota_keys,
        )

    def require_bytes(self, node: str) -> None:
        """Refuse a node that has sent what it may today; what is taken is to be counted (`take`)."""
        use = self._use(node)
        if use.quota_bytes is None or use.sent_bytes < use.quota_bytes:
            return
        sent, quota = format_bytes(use.sent_bytes), format_bytes(use.quota_bytes)
        left = DAY_NS - time.time_ns() % DAY_NS
        self._refuse(
            "bytes",
            429,
            f"node {node} has sent {sent} of the {quota} that it may on a day; it may again after midnight (UTC): "
            f"record less, or raise it: sojourn nodes set {node} --quota-bytes",
            {"Retry-After": str(left // 10**9 + 1)},
        )

    def take(self, node: str, epochs: Sequence[EncodedEpoch]) -> None:
        """Refuse what a node may not have, or count it."""
        size = sum(len(epoch.data) for epoch in epochs)
        self.require_bytes(node)
        self.require_streams(node, {epoch.stream for epoch in epochs})
        self._require_keys(node, epochs)
        with self._lock:
            if node in self._uses:
                self._uses[node].sent_bytes += size

    def require_streams(self, node: str, streams: Collection[str]) -> None:
        """Refuse a stream that is one too many."""
        use = self._use(node)
        if use.quota_streams is None or use.streams.issuperset(streams):
            return
        known = self._inventory.streams(node)
        new = set(streams) - known
        if new and len(known) + len(new) > use.quota_streams:
            self._refuse(
                "streams",
                413,
                f"stream {min(new)} would be one more than the {use.quota_streams} that node {node} may have; use a "
                f"name that it has, or raise it: sojourn nodes set {node} --quota-streams",
            )
        with self._lock:
            use.streams = known | new

    def _require_keys(self, node: str, epochs: Sequence[EncodedEpoch]) -> None:
        use = self._use(node)
        offered = sum(epoch.key_count for epoch in epochs)
        if use.quota_keys is None or not offered:
            return
        if use.keys is None or use.keys + offered > use.quota_keys:
            count, new = self._inventory.count_keys(node), self._new_keys(node, epochs)
            if new and count + new > use.quota_keys:
                self._refuse(
                    "keys",
                    413,
                    f"{new} new keys beside the {count} of node {node} exceed the {use.quota_keys} that it may have; "
                    f"record fewer instances, or raise it: sojourn nodes set {node} --quota-keys",
                )
            use.keys = count + new
        else:
            use.keys += offered

    def _new_keys(self, node: str, epochs: Sequence[EncodedEpoch]) -> int:
        """How many keys no epoch of the node's stream has had before."""
        keys: dict[str, set[bytes]] = {}
        new = 0
        try:
            for epoch in epochs:
                keys.setdefault(epoch.stream, set()).update(epoch.keys())
            for stream, its in keys.items():
                ids = set(named_ids(sorted(its))[0])
                new += len(ids - self._inventory.store.sighted([(node, stream)], sorted(ids)))
        except (WireError, KeyTextError):
            return 0  # what is no key is never entered in the directory
        return new

    def _use(self, node: str) -> _Use:
        now, day = time.monotonic(), time.time_ns() // DAY_NS
        with self._lock:
            use = self._uses.get(node)
        if use is not None and use.day == day and now - use.read < REFRESH_SECONDS:
            return use
        fresh = self._read(node)
        if use is not None:
            fresh.streams = use.streams
            if use.keys is not None:
                # Others may have taken some; those that were taken here may not be listed yet.
                fresh.keys = max(use.keys, self._inventory.count_keys(node))
        with self._lock:
            self._uses[node] = fresh
            self._uses.move_to_end(node)
            if len(self._uses) > self._limits.callers:
                self._uses.popitem(last=False)
        return fresh

    def _read(self, node: str) -> _Use:
        own, day = self._inventory.settings(node), time.time_ns() // DAY_NS
        limits = self._limits
        return _Use(
            read=time.monotonic(),
            day=day,
            sent_bytes=self._inventory.sent_on(node, day),
            quota_bytes=_of(own.quota_bytes, limits.quota_bytes),
            quota_streams=_of(own.quota_streams, limits.quota_streams),
            quota_keys=_of(own.quota_keys, limits.quota_keys),
        )

    def _refuse(self, what: str, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self._telemetry.quota_refusals.labels(what).inc()
        self._log.warn(f"warning: refused: {text}")
        raise HTTPException(status, text, headers)


def _of(own: int | None, common: int | None) -> int | None:
    """A node's quota: its own (0 for none), or that of all."""
    return common if own is None else own or None
