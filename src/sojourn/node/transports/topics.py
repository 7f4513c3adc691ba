"""Topics: where a node and the query units meet at an MQTT broker.

::

    sojourn/v1/NODE/up/epochs           a batch of epochs                         node → any one query unit
    sojourn/v1/NODE/up/announce         what a stream measures                    node → any one query unit
    sojourn/v1/NODE/up/states           how the streams fare                      node → any one query unit
    sojourn/v1/NODE/up/assignments      what shall be recorded?                   node → any one query unit
    sojourn/v1/NODE/up/release          the agent ends                            node → any one query unit
    sojourn/v1/NODE/up/presence/AGENT   it is there (retained; its will clears)   node → all query units
    sojourn/v1/NODE/up/answers/UNIT     epochs that were asked for                node → the unit that asked
    sojourn/v1/NODE/down/replies/AGENT  the answer to one of the first five       query unit → node
    sojourn/v1/NODE/down/assignments    what shall be recorded (retained)         query units → node
    sojourn/v1/NODE/down/questions      what was not sent yet?                    query unit → node

All that a node writes lies under its ``up``, all that it reads under its ``down``: an ACL of two lines confines it.
A level of a topic is a name as in a URL, with percent signs for all but letters, digits and ``-._~``. Guarantee: there
is one way to write a name, and what is written otherwise is no node's: a broker compares texts, so a second spelling
would be a way to speak for somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from sojourn.core.keys import is_name

ROOT = "sojourn/v1"
# One member of the group gets each request of a node: any number of query units split them.
GROUP = "$share/sojourn"
REQUESTS = ("epochs", "announce", "states", "assignments", "release")
# A message's payload, and a packet: with its topic and properties. Both ends tell the broker.
MOST_PAYLOAD_BYTES = 16 << 20
MOST_PACKET_BYTES = MOST_PAYLOAD_BYTES + (64 << 10)


def level(name: str) -> str:
    """A name as a level of a topic, and as the user name that an ACL compares with it.

    >>> level("gateway-7"), level("roof +1")
    ('gateway-7', 'roof%20%2B1')
    """
    return quote(name, safe="")


def named(text: str) -> str | None:
    """The name that a level is; none if nothing is called so, or it would be written otherwise.

    >>> named("gateway-7"), named("gateway%2D7"), named("a%2Fb")
    ('gateway-7', None, None)
    """
    name = unquote(text)
    return name if level(name) == text and is_name(name) else None


@dataclass(frozen=True)
class NodeTopics:
    """The topics of one node."""

    node: str

    def up(self, what: str) -> str:
        """Where the node writes."""
        return f"{ROOT}/{level(self.node)}/up/{what}"

    def down(self, what: str) -> str:
        """Where the node reads."""
        return f"{ROOT}/{level(self.node)}/down/{what}"

    def is_reply(self, topic: str) -> bool:
        """Whether a query unit may answer there: nobody has it write to the topics of others."""
        return topic.startswith(self.down("replies/")) and len(topic) < 1000 and not set(topic) & set("+#\0")

    def is_for_answers(self, topic: str) -> bool:
        """Whether a node may answer there."""
        return topic.startswith(self.up("answers/")) and len(topic) < 1000 and not set(topic) & set("+#\0")


def parsed_topic(topic: str) -> tuple[str, str, str] | None:
    """The node, ``up`` or ``down``, and what follows; none for a topic of another form.

    >>> parsed_topic("sojourn/v1/gateway-7/up/answers/1f2e")
    ('gateway-7', 'up', 'answers/1f2e')
    """
    parts = topic.split("/", 4)
    if len(parts) != 5 or "/".join(parts[:2]) != ROOT or parts[3] not in ("up", "down"):
        return None
    node = named(parts[2])
    return None if node is None else (node, parts[3], parts[4])
