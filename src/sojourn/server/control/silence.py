"""Notices nodes that fall silent, and those that are back: an event each, a line in the log, and a notification.

A node may be silent for as long as its own setting says, else for `Limits.silent_after_ns`; one without an agent also
for a few of the pauses that are usual with it. Nobody could be heard of while the query unit was away, or before its
clock was set to another time: both begin all over. A time of that clock that was still to come when it was set back
says nothing; whoever is heard of by another time than when it fell silent is back.
"""

from __future__ import annotations

import logging
import time

from sojourn.core.errors import SojournError
from sojourn.core.units import format_age
from sojourn.server.control.inventory import USUAL_PAUSES, InventoryStore, Presence
from sojourn.server.door.limits import Limits
from sojourn.server.upkeep import Periodic

LOOK_SECONDS, LOOKS = 5.0, 10
# By how much the clock may run otherwise than the machine's own count between two looks.
STEP_NS = 30_000_000_000
_LOG = logging.getLogger("sojourn.nodes")


class SilenceWatch(Periodic):
    """Belongs to one query unit."""

    def __init__(self, inventory: InventoryStore, limits: Limits) -> None:
        self._inventory = inventory
        self._silent_after_ns, self._webhook = limits.silent_after_ns, limits.webhook
        self._began_ns = time.time_ns()
        self._offset_ns = self._began_ns - time.monotonic_ns()
        super().__init__("sojourn-silence", min(LOOK_SECONDS, (self._silent_after_ns or 10**18) / 1e9 / LOOKS))

    def work(self) -> None:
        try:
            self.look(time.time_ns(), time.monotonic_ns())
        except SojournError as error:
            self._complain(_LOG, "nodes could not be looked at", error)

    def look(self, now_ns: int, monotonic_ns: int) -> None:
        """Raise and clear what has changed by a time; `monotonic_ns` is the machine's own count then."""
        offset_ns = now_ns - monotonic_ns
        if abs(offset_ns - self._offset_ns) > STEP_NS:
            self._began_ns = now_ns
        self._offset_ns = offset_ns
        known = self._inventory.open_events()
        for node, presence in self._inventory.presences().items():
            event = known.get(node)
            if event is None and self._is_silent(presence, now_ns):
                self._raise(presence, now_ns)
            elif event is not None and (presence.heard_ns != event.since_ns or presence.silent_after_ns == 0):
                self._clear(node, now_ns)

    def _is_silent(self, presence: Presence, now_ns: int) -> bool:
        own = presence.silent_after_ns
        allowed = self._silent_after_ns if own is None else own
        heard_ns = presence.heard_ns if presence.heard_ns <= now_ns + STEP_NS else 0
        since_ns = max(heard_ns, self._began_ns)
        if not allowed or now_ns - since_ns < allowed:
            return False
        return own is not None or now_ns - since_ns >= USUAL_PAUSES * self._inventory.usual_pause_ns(presence.node)

    def _raise(self, presence: Presence, now_ns: int) -> None:
        if event := self._inventory.raise_silent(presence, webhook=self._webhook, now_ns=now_ns):
            age = format_age(now_ns - event.since_ns)
            _LOG.warning("warning: node %s has been silent for %s: %s", event.node, age, event.reason)

    def _clear(self, node: str, now_ns: int) -> None:
        if event := self._inventory.clear_silent(node, webhook=self._webhook, now_ns=now_ns):
            _LOG.info("node %s is back, after %s", node, format_age(now_ns - event.since_ns))
