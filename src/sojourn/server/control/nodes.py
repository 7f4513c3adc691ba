"""Nodes as the interface shows them: what the store, the inventory and their streams' states say, put together.

Cost: a few statements for all nodes together, whatever their number.
"""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException

from sojourn.server.control.models import AgentInfo, Node, NodeDetail, NodeEventInfo
from sojourn.server.models import StreamInfo
from sojourn.store.epochs import EpochStore, NodeRecord

MOST_EVENTS = 20


def all_nodes(state: Any, *, tag: str | None = None) -> list[Node]:
    """All nodes of a query unit, or those with a tag."""
    return _shown(state, state.store.nodes(tag=tag))


def _shown(state: Any, records: list[NodeRecord]) -> list[Node]:
    metrics: dict[str, set[str]] = {}
    for stream in state.store.streams():
        metrics.setdefault(stream.node, set()).add(stream.metric)
    failed, presences = state.stream_states.failed(), state.inventory.presences()
    reports, silent = state.inventory.reports(), state.inventory.open_events()
    found: list[Node] = []
    for record in records:
        name, presence = record.name, presences.get(record.name)
        has_ended = presence is not None and presence.has_ended
        seen_ns = record.last_seen_ns if presence is None else presence.heard_ns
        found.append(
            Node(
                **{**vars(record), "last_seen_ns": seen_ns},
                state="silent" if name in silent else "ended" if has_ended else "present",
                listening=state.live.is_listening(name),
                metrics=sorted(metrics.get(name, ())),
                failed=failed.get(name, {}),
                report=AgentInfo(**reports[name]) if name in reports else None,
            )
        )
    return found


def known_node(state: Any, name: str) -> NodeRecord:
    """A node that is known; 404 for any other."""
    for record in state.store.nodes():
        if record.name == name:
            return record  # type: ignore[no-any-return]
    raise HTTPException(404, f"there is no node {name[:200]}; sojourn nodes lists those that were heard of")


def streams_of(store: EpochStore, node: str) -> list[StreamInfo]:
    """The streams that a node announced, and how far each has come."""
    return [
        StreamInfo(**vars(one), last_sequence=store.last_sequence(one.node, one.name))
        for one in store.streams(node=node)
    ]


def node_detail(state: Any, name: str) -> NodeDetail:
    """All that is known of a node."""
    (node,) = _shown(state, [known_node(state, name)])
    return NodeDetail(
        **dict(node),
        settings=state.inventory.settings(name),
        usage=state.quotas.usage(name),
        streams=streams_of(state.store, name),
        states=state.stream_states.of(name),
        events=[NodeEventInfo(**vars(event)) for event in state.inventory.events(node=name, limit=MOST_EVENTS)],
    )
