"""`sojourn mplane msets --watch`: m-sets as links of a live network fail and come back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.cli.output import Format
from sojourn.core.errors import ParameterError, SojournError, UsageError, harmless
from sojourn.core.units import format_clock

if TYPE_CHECKING:
    from sojourn.mplane.planning.topology import Topology
    from sojourn.mplane.planning.watch import Change

__all__ = ["WatchTimes", "watch_m_sets"]

_LEAST_EVERY_NS = 100_000_000
_MOST_NS = 86_400 * 10**9


@dataclass(frozen=True, kw_only=True)
class WatchTimes:
    """How often to read, how long old m-sets are held, and when to end (None: never)."""

    every_ns: int
    hold_ns: int
    for_ns: int | None

    def __post_init__(self) -> None:
        if not (_LEAST_EVERY_NS <= self.every_ns <= _MOST_NS and 0 <= self.hold_ns <= _MOST_NS):
            raise ParameterError(
                "times of a watch are out of range", where="--watch", action="use --every 100ms to 24h, --hold 0 to 24h"
            )
        if self.for_ns is not None and self.for_ns <= 0:
            raise ParameterError("no time to watch for", where="--for", action="give more than 0")


def watch_m_sets(read: Callable[[bool], Topology], upgraded: list[str], times: WatchTimes, how: Format) -> None:
    """Print the m-sets, and then what changes, until the time is over or Ctrl-C."""
    from sojourn.cli.capture.packet_source import stopping_on_interrupt
    from sojourn.mplane.planning.polling import Patience
    from sojourn.mplane.planning.watch import TopologyWatch

    if how not in (Format.TABLE, Format.JSON, Format.JSONL):
        raise UsageError(f"changes are not written as {how.value}", where="--format", action="use table or jsonl")
    watch = TopologyWatch(lambda: read(False), upgraded, hold_ns=times.hold_ns)
    show = _print_text if how is Format.TABLE else _print_json
    patience = Patience(times.every_ns, times.for_ns)
    with stopping_on_interrupt(patience.stop):
        for change in watch.changes(patience, told=_say_silent):
            show(change, times.hold_ns)
            sys.stdout.flush()


def _say_silent(error: SojournError) -> None:
    print(f"sojourn: {error}; the last m-sets hold until it answers", file=sys.stderr)


def _changed_nodes(change: Change) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Nodes whose m-sets a change concerns: name, kind, routers monitored now, and those that are only held."""
    names = change.after.shortest.topology.names
    for node, name in enumerate(names):
        now, held = change.after.of(node), list[int]()
        if change.before is not None:
            before = change.before.of(node)
            if now.same_as(before):
                continue
            held = [router for router in before.target.tolist() if router not in set(now.target.tolist())]
        kind = "m-router" if change.after.upgraded[node] else "m-server"
        yield name, kind, [names[router] for router in now.target.tolist()], [names[router] for router in held]


def _print_text(change: Change, hold_ns: int) -> None:
    topology = change.after.shortest.topology
    if change.before is None:
        print(f"{format_clock(change.at_ns)}  {len(topology.names)} routers, {topology.links} links")
    for links, what in ((change.gone, "gone"), (change.come, "come")):
        if links and change.before is not None:
            print(
                f"{format_clock(change.at_ns)}  {what}: {', '.join(f'{u} → {v} ({weight})' for u, v, weight in links)}"
            )
    until = format_clock(change.at_ns + hold_ns)
    for name, kind, routers, held in _changed_nodes(change):
        besides = f"; until {until} also {', '.join(held)}" if held else ""
        print(harmless(f"    {name} ({kind}) monitors {', '.join(routers) or 'nothing'}{besides}"))


def _print_json(change: Change, hold_ns: int) -> None:
    keys = ("source", "target", "weight")
    print(
        json.dumps(
            {
                "time_ns": change.at_ns,
                "hold_until_ns": change.at_ns + hold_ns,
                "gone": [dict(zip(keys, link, strict=True)) for link in change.gone],
                "come": [dict(zip(keys, link, strict=True)) for link in change.come],
                "msets": [
                    {"node": name, "kind": kind, "monitors": routers, "held": held}
                    for name, kind, routers, held in _changed_nodes(change)
                ],
            },
            ensure_ascii=False,
        )
    )
