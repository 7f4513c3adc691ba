"""Topics of nodes: every name has one spelling, and no text is two nodes', whatever a broker is given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.keys import is_name
from sojourn.node.transports.topics import NodeTopics, level, named, parsed_topic

NAMES = st.text(min_size=1, max_size=60).filter(is_name)
LEVELS = st.text(st.sampled_from("ab%2F0fE+#/$ é"), max_size=12)


@given(NAMES, st.sampled_from(["epochs", "answers/1f2e", "presence/a/b"]))
def test_a_nodes_topic_leads_back_to_its_name(name: str, what: str) -> None:
    topic = NodeTopics(name).up(what)
    assert parsed_topic(topic) == (name, "up", what)
    assert not set(topic) & set("+#\0")
    assert topic.isascii()


@given(NAMES, NAMES)
def test_two_names_have_two_topics(one: str, other: str) -> None:
    assert (level(one) == level(other)) == (one == other)


@given(LEVELS)
def test_a_text_is_a_name_in_its_one_spelling_or_nobodys(text: str) -> None:
    name = named(text)
    assert name is None or (level(name) == text and is_name(name))


@given(NAMES, NAMES, LEVELS)
def test_replies_and_answers_stay_under_the_nodes_own_topics(node: str, other: str, rest: str) -> None:
    mine, theirs = NodeTopics(node), NodeTopics(other)
    assert mine.is_reply(mine.down(f"replies/{level(rest)}"))
    assert not mine.is_reply(theirs.down(f"replies/{rest}")) or node == other
    assert not mine.is_reply(mine.down(f"assignments{rest}"))
    assert not mine.is_for_answers(theirs.up(f"answers/{rest}")) or node == other
    assert not mine.is_for_answers(mine.up(f"epochs{rest}"))
