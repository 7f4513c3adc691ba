"""An agent as a process: from its settled configuration until SIGTERM or Ctrl-C.

Guarantee: a first signal closes and sends what is open; the connection to the query unit is closed whatever happens.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from sojourn.core.units import plural
from sojourn.node.agent.agent import Agent, Report
from sojourn.node.agent.configuration import AgentConfiguration, instance_of
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
    settle_spool(configuration.spool, configuration.pseudonyms)
    instance = instance_of(configuration.spool)
    transport = transport_for(configuration, instance)
    running = Agent(configuration, transport, report=report, clock=clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    try:
        running.run()
    finally:
        transport.close()
    counts = running.counts
    report(
        f"{plural(counts.measurements, 'measurement')} in {plural(counts.closed, 'epoch')}, {counts.sent:,} sent, "
        f"{len(running.spool):,} waiting"
    )
