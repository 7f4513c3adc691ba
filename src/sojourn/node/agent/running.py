"""An agent as a process: from its settled configuration until SIGTERM or Ctrl-C.

Guarantee: a first signal closes and sends what is open; the connection to the query unit is closed whatever happens.
With a user to become, everything in the spool is that user's, and nothing that comes from the network is read as root
but the answers to the announcements of its own streams.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import nullcontext

from sojourn.core.errors import UsageError
from sojourn.core.host import service
from sojourn.core.host.privileges import Identity
from sojourn.core.units import plural
from sojourn.node.agent.agent import Agent, Report
from sojourn.node.agent.configuration import AgentConfiguration, instance_of
from sojourn.node.transports.exchange import read_token
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.transport import Transport
from sojourn.node.withholding import settle_spool


def transport_for(configuration: AgentConfiguration, instance: str | None) -> Transport:
    """The way that the server's address names: a broker's, or a query unit's own."""
    access = configuration.broker()
    if access is None:
        return HttpTransport(
            configuration.server,
            configuration.token,
            node=configuration.node,
            instance=instance,
            ca_file=configuration.ca_file,
            token_file=configuration.token_file,
        )
    from sojourn.node.transports.mqtt import MqttTransport

    return MqttTransport(access, node=configuration.node, instance=instance)


def run_agent(configuration: AgentConfiguration, *, report: Report, clock: Callable[[], int] = time.time_ns) -> None:
    """Run until a signal, then report what was measured, sent, and still waits."""
    if not configuration.streams:
        report("no streams; what the query unit assigns is recorded")
    identity = configuration.identity()
    if identity is not None:
        identity.prepare()
        identity.take_over(configuration.spool)
    with nullcontext() if identity is None else identity.borrowed():
        settle_spool(configuration.spool, configuration.pseudonyms)
        instance = instance_of(configuration.spool)
        transport = transport_for(configuration, instance)
        running = Agent(configuration, transport, report=report, clock=clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    try:
        running.run(begun=lambda: _begun(configuration, identity, report))
    finally:
        transport.close()
    counts = running.counts
    report(
        f"{plural(counts.measurements, 'measurement')} in {plural(counts.closed, 'epoch')}, {counts.sent:,} sent, "
        f"{len(running.spool):,} waiting"
    )


def _begun(configuration: AgentConfiguration, identity: Identity | None, report: Report) -> None:
    """What is to be done when sources are open and nothing is recorded yet."""
    if identity is not None:
        identity.assume()
        kept = ", ".join(f"cap_{name}" for name in sorted(identity.kept))
        report(f"runs as {identity.name} from here on, with {kept or 'no capabilities'}")
        if configuration.token_file is not None:
            try:
                read_token(configuration.token_file)
            except UsageError as error:
                report(f"warning: {identity.name} cannot read a new token: {error}")
    service.ready(f"{plural(len(configuration.streams), 'stream')} of {configuration.node}")
