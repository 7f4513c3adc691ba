"""A query unit at a broker: the link, the desk that works messages off, and the way back to nodes, put together."""

from __future__ import annotations

import secrets

from sojourn.node.transports.broker import Arrived
from sojourn.server.ingest.intake import Intake
from sojourn.server.ingest.link import BrokerLink, BrokerOptions
from sojourn.server.ingest.messages import MessageDesk, Takes, filters
from sojourn.server.ingest.reaching import AssignmentSpreader, BrokerCarrier

MOST_WAITING = 64


def new_unit() -> str:
    """A query unit's name at a broker, another one after each start: nodes notice one that they have not met."""
    return secrets.token_hex(8)


class BrokerIntake:
    """Takes messages of nodes at a broker, beside HTTP; belongs to one event loop.

    Of the processes of one query unit each has a `number`, and `members` of them take requests.
    """

    def __init__(
        self,
        options: BrokerOptions,
        intake: Intake,
        *,
        unit: str,
        takes: Takes = Takes.ALL,
        number: int = 0,
        members: int = 1,
    ) -> None:
        self._intake, self._takes = intake, takes
        self._is_connected = False
        limits = intake.limits
        waiting = min(limits.buffered_bytes // limits.body_bytes, MOST_WAITING)
        self._link = BrokerLink(
            options,
            client_id=f"sojourn-unit-{unit}-{number}" if number else f"sojourn-unit-{unit}",
            filters=filters(unit, takes),
            # All messages that wait here are in memory: together no more than bodies over HTTP may take.
            receive_maximum=max(1, waiting // members),
            work=self._work,
            changed=self._note_broker,
        )
        self._carrier = BrokerCarrier(unit=unit, post=self._link.post)
        self._spreader = AssignmentSpreader(intake.assigned, self._carrier)
        self._desk = MessageDesk(intake, self._carrier, unit=unit, post=self._link.post)

    def start(self) -> None:
        if self._takes is not Takes.REQUESTS:
            self._intake.live.carrier = self._carrier
            self._spreader.start()
        self._link.start()

    async def stop(self) -> None:
        """Finish what came, then leave the broker."""
        await self._link.stop()
        if self._takes is not Takes.REQUESTS:
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
