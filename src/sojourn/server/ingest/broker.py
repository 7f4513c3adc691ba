"""A query unit at a broker: the link, the desk that works messages off, and the way back to nodes, put together."""

from __future__ import annotations

import secrets

from sojourn.node.transports.broker import Arrived
from sojourn.server.ingest.intake import Intake
from sojourn.server.ingest.link import BrokerLink, BrokerOptions
from sojourn.server.ingest.messages import MessageDesk, filters
from sojourn.server.ingest.reaching import AssignmentSpreader, BrokerCarrier

MOST_WAITING = 64


class BrokerIntake:
    """Takes messages of nodes at a broker, beside HTTP; belongs to one event loop."""

    def __init__(self, options: BrokerOptions, intake: Intake) -> None:
        # Another one after each start: nodes notice that they talk to a query unit that they have not met.
        unit = secrets.token_hex(8)
        self._intake = intake
        self._is_connected = False
        limits = intake.limits
        self._link = BrokerLink(
            options,
            unit=unit,
            filters=filters(unit),
            # All messages that wait here are in memory: together no more than bodies over HTTP may take.
            receive_maximum=max(1, min(limits.buffered_bytes // limits.body_bytes, MOST_WAITING)),
            work=self._work,
            changed=self._note_broker,
        )
        self._carrier = BrokerCarrier(unit=unit, post=self._link.post)
        self._spreader = AssignmentSpreader(intake.assigned, self._carrier)
        self._desk = MessageDesk(intake, self._carrier, unit=unit, post=self._link.post)

    def start(self) -> None:
        self._intake.live.carrier = self._carrier
        self._spreader.start()
        self._link.start()

    async def stop(self) -> None:
        """Finish what came, then leave the broker."""
        await self._link.stop()
        self._spreader.stop()

    async def _work(self, message: Arrived) -> None:
        await self._desk.work(message)

    def is_connected(self) -> bool:
        """Whether what nodes publish comes in now."""
        return self._is_connected

    def _note_broker(self, is_there: bool) -> None:
        self._is_connected = is_there
        self._intake.telemetry.broker.set(is_there)
        if not is_there:
            self._carrier.forget_all()
        self._spreader.note_broker(is_there=is_there)
