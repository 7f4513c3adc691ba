"""What a node that goes by pseudonyms keeps to itself beside its measurements: its spool, filters, and what it says.

- A **spool** of a run in clear is not sent under pseudonyms: which run filled it is written beside it (`settle_spool`).
- **Assignments** come from the query unit, which knows pseudonyms alone. Their patterns are matched with those. A
  filter would be matched with packets: one that names an address would tell the query unit what its pseudonym is, so
  filters of ports and protocols alone are followed (`check_assigned`).
- **Reasons** why a stream fails, and lines of the log, may name what a configuration or a source knows: addresses in
  them become pseudonyms, the stream's own filter, capture and patterns are left out, of a filter that cannot be used
  not a word is repeated (hosts that are not found, parts of it), and of what a plug-in raises only the kind is told
  (`Withholding`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sojourn.core.errors import SojournError, StoreError, UsageError
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.core.pseudonyms.texts import hidden_remark
from sojourn.core.units import plural
from sojourn.node.agent.configuration import StreamConfiguration
from sojourn.node.agent.stream_states import reason_of
from sojourn.node.spool.earlier import earlier_files
from sojourn.node.spool.file import FILE_NAME, reading
from sojourn.sources.registry import is_own

MARK = "pseudonyms"
LEFT_OUT = "…"
# tcpdump's words that say nothing of addresses; a number is that of what stands before it.
_WORDS = {
    "and",
    "or",
    "not",
    "&&",
    "||",
    "!",
    "(",
    ")",
    "ip",
    "ip6",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "src",
    "dst",
}
_NUMBERED = {"port", "portrange", "proto", "less", "greater", "vlan", "mpls"}
_TOKEN = re.compile(r"[()!]|&&|\|\||[^\s()!]+")
_NUMBER = re.compile(r"\d+(-\d+)?")


def settle_spool(directory: Path, pseudonyms: Pseudonyms | None) -> None:
    """Note under which names a spool is filled from now on; refuse where it would send what an earlier run named.

    Pseudonyms may follow others: what waits names nothing in clear.
    """
    mark = directory / MARK
    try:
        if pseudonyms is None:
            # A disk that cannot be written refuses to remove even what is not there.
            if mark.exists():
                mark.unlink()
            return
        if not mark.exists() and (waiting := _waiting(directory)):
            raise UsageError(
                f"{plural(waiting, 'epoch waits', 'epochs wait')} there that a run without pseudonyms recorded",
                where=str(directory),
                action="start once without pseudonyms to send them, or give another spool",
            )
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.write_text(f"{pseudonyms.fingerprint}\n")
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", where=str(mark)) from None


def _waiting(directory: Path) -> int:
    """How many epochs a spool holds, in whatever state and of whatever version."""
    if not directory.is_dir():
        return 0
    count = sum(1 for _ in earlier_files(directory))
    if (path := directory / FILE_NAME).exists():
        with reading(path) as connection:
            count += int(connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0])
    return count


def check_assigned(configuration: StreamConfiguration) -> None:
    """Refuse an assigned stream whose filter may name an address."""
    text = configuration.options.get("filter", "")
    if not isinstance(text, str) or not names_no_address(text):
        raise UsageError(
            "this node keeps addresses to itself, and its filter may name one",
            where=f"stream {configuration.name}",
            action="filter by protocols and ports alone, each number behind its port; choose flows by --instances",
        )


def names_no_address(expression: str) -> bool:
    """Whether a filter is surely about ports and protocols alone; what is not known counts as an address.

    >>> [names_no_address(text) for text in ("tcp dst port 1883", "udp and not (port 53)", "host 10.0.0.1", "src 7")]
    [True, True, False, False]
    """
    before = ""
    for token in _TOKEN.findall(expression.lower()):
        is_number = _NUMBER.fullmatch(token) is not None
        if is_number != (before in _NUMBERED) or not (is_number or token in _WORDS or token in _NUMBERED):
            return False
        before = token
    return before not in _NUMBERED


class Withholding:
    """What an agent says: as it is, or without names where it goes by pseudonyms."""

    def __init__(self, pseudonyms: Pseudonyms | None) -> None:
        self._pseudonyms = pseudonyms

    def reporting(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """A way to report lines."""
        pseudonyms = self._pseudonyms
        return report if pseudonyms is None else lambda line: report(hidden_remark(pseudonyms, line))

    def reason_of(self, error: BaseException, configuration: StreamConfiguration | None) -> str:
        """Why a stream failed, in one line."""
        if self._pseudonyms is None:
            return reason_of(error)
        if configuration is None or not is_own(configuration.metric):
            return f"{type(error).__name__} of a plug-in, whose words may name something and are not repeated"
        if configuration.assigned:
            return hidden_remark(self._pseudonyms, reason_of(error))
        if isinstance(error, SojournError) and error.where.startswith("filter"):
            return "its filter cannot be used, and may name something: its words are not repeated"
        text = reason_of(error)
        for given in (
            configuration.options.get("filter"),
            configuration.options.get("capture"),
            *configuration.instances,
        ):
            # As it stands in a reason, which is one line.
            if isinstance(given, str) and (words := " ".join(given.split())):
                text = text.replace(words, LEFT_OUT)
        return hidden_remark(self._pseudonyms, text)
