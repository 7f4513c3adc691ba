"""What an agent replies from its streams' ledgers: which packets were lost, and the packets of one flow.

The query unit asks about a run when both ends have sent it, which may be after the stream has ended: another plan took
over. Guarantee: a ledger whose stream has ended is kept for `KEPT_SECONDS`, as long as no other stream needs its
memory, so that the last runs of a plan are named as all others. Cost: that of `segments.fleet.ledgers.replying`; the
memory of ledgers that are kept, which an agent's limit holds, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.node.agent.stream import AgentStream
    from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsQuestion
    from sojourn.sketches.ledgers.ledger import Ledger, LedgerPackets

KEPT_SECONDS = 300.0


class StreamLedgers:
    """The ledgers of an agent's streams; `lock` is held while they are read, `poll` records what has come."""

    def __init__(
        self,
        streams: Mapping[str, AgentStream],
        lock: threading.RLock,
        poll: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams, self._lock, self._poll, self._clock = streams, lock, poll, clock
        self._ended: dict[str, tuple[Ledger, float]] = {}

    def keep(self, name: str, stream: AgentStream, room_bytes: int) -> None:
        """A stream has ended: its ledger is kept if there is room for it."""
        ledger = stream.ledger
        if ledger is not None and ledger.memory_bytes <= room_bytes:
            self.make_room(room_bytes - ledger.memory_bytes)
            self._ended[name] = ledger, self._clock() + KEPT_SECONDS

    def make_room(self, room_bytes: int) -> None:
        """Forget ended ledgers that are old, and the oldest ones that there is no room for."""
        now = self._clock()
        self._ended = {name: kept for name, kept in self._ended.items() if kept[1] > now}
        while self._ended and sum(ledger.memory_bytes for ledger, _ in self._ended.values()) > room_bytes:
            del self._ended[next(iter(self._ended))]

    def reply(self, name: str, question: str) -> bytes:
        """What the ledger of a stream tells; recording goes on meanwhile."""
        from sojourn.segments.fleet.ledgers.packets import PREFIX
        from sojourn.segments.fleet.ledgers.replying import named_reply, packets_reply

        if question.startswith(PREFIX):
            return packets_reply(question, lambda asked: self._of_flow(name, asked))
        return named_reply(question, lambda first_ns, last_ns: self._between(name, first_ns, last_ns))

    def _between(self, name: str, first_ns: int, last_ns: int) -> LedgerPackets | None:
        with self._lock:
            stream, kept = self._streams.get(name), self._ended.get(name)
            ledger = stream.ledger if stream is not None else kept[0] if kept is not None else None
            return None if ledger is None else ledger.between(first_ns, last_ns)

    def _of_flow(self, name: str, asked: PacketsQuestion) -> FlowPackets | None:
        with self._lock:
            self._poll()
            stream = self._streams.get(name)
            return None if stream is None else stream.flow_packets(asked)
