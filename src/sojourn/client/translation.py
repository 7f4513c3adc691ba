"""`Translation`: questions into pseudonyms before they are asked, answers back, for whoever has the secret.

The query unit sees pseudonyms in the question and gives pseudonyms; it never has the secret. Addresses come back
whatever they are; names of processes and nodes where they are among the candidates, which are the names asked for and
those of a list (such as what ``ps -eo comm=`` prints on a node); others stay as they are.

The nodes asked about have to go by the same secret: an address of one that goes by none would be turned into another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from sojourn.core.errors import InputError, KeyTextError
from sojourn.core.keys import DestinationKey, NodeKey, ProcessKey, parse_key
from sojourn.core.pseudonyms.mapping import Names, Pseudonyms
from sojourn.core.pseudonyms.texts import clear_remark, clear_text, hidden_text, is_pattern

MOST_NAMES_BYTES = 4 << 20
_ENDS = ("src_ip", "dest_ip")


class Translation:
    """Of one secret, with candidates for names; remembers the names that it was asked for."""

    def __init__(self, pseudonyms: Pseudonyms, names: Iterable[str] = ()) -> None:
        self._pseudonyms = pseudonyms
        self._names = Names(pseudonyms, names)

    @classmethod
    def of_files(cls, secret: Path, names: Path | None = None) -> Translation:
        """Of the secret in a file, and of a list of names, one on a line."""
        return cls(Pseudonyms.of_file(secret), () if names is None else read_names(names))

    def hidden(self, text: str, *, nodes: Sequence[str] = ()) -> str:
        """The pseudonym of a key or pattern; names of the nodes asked about are their own."""
        name = text.strip()
        if name in nodes:
            return text
        self._names.add(_names_in(name))
        return hidden_text(self._pseudonyms, text)

    def clear(self, text: str) -> str:
        """What a pseudonym stands for."""
        return clear_text(self._pseudonyms, text, self._names)

    def hidden_word(self, word: str) -> str:
        """The pseudonym of a key, a pattern, an address or a bare name of a process."""
        return self._in_word(word, self.hidden)

    def clear_word(self, word: str) -> str:
        """What such a pseudonym stands for."""
        return self._in_word(word, self.clear)

    def _in_word(self, word: str, translated: Callable[[str], str]) -> str:
        """A bare address or network as a destination, a bare name as that of a process."""
        with suppress(ValueError):
            return translated(str(DestinationKey(ip_network(word, strict=False)))).removeprefix("> ")
        is_bare = not is_pattern(word) and isinstance(parse_key(word), NodeKey)
        return translated(f"{word}[0]").removesuffix("[0]") if is_bare else translated(word)

    def question(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A question about instances of nodes."""
        if not asked.get("instance"):
            return dict(asked)
        nodes = asked.get("node") or ()
        return {**asked, "instance": self.hidden(asked["instance"], nodes=[nodes] if isinstance(nodes, str) else nodes)}

    def answers(self, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Its answers: instances, and remarks that name some."""
        return [
            {**one, "instance": one["instance"] and self.clear(one["instance"]), "notes": self._remarks(one["notes"])}
            for one in found
        ]

    def segment_question(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A question about flows of a segment."""
        return {**asked, "flows": [self.hidden(flow) for flow in asked.get("flows", ())]}

    def segment(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer."""
        flows = self._rows(answer["flows"])
        remarks = {name: self._remarks(answer[name]) for name in ("warnings", "notes") if name in answer}
        return {**answer, "flows": flows, **remarks}

    def lost(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer about lost packets."""
        return {**answer, "packets": self._rows(answer["packets"]), "notes": self._remarks(answer.get("notes", []))}

    def packets(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer about a flow's packets."""
        remarks = {name: self._remarks(answer.get(name, [])) for name in ("warnings", "notes")}
        return {**answer, "flow": self._rows([answer["flow"]])[0], **remarks}

    def _rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, **{end: self._address(row[end]) for end in _ENDS if row.get(end)}} for row in rows]

    def _remarks(self, remarks: Sequence[str]) -> list[str]:
        return [clear_remark(self._pseudonyms, remark, self._names) for remark in remarks]

    def _address(self, text: str) -> str:
        """An address or network, as columns have it."""
        key = self._pseudonyms.clear_key(DestinationKey(ip_network(text)))
        assert isinstance(key, DestinationKey)
        return key.dest_ip


def read_names(path: Path) -> list[str]:
    """The names in a file, one on a line."""
    with open(path, "rb") as file:
        data = file.read(MOST_NAMES_BYTES + 1)
    if len(data) > MOST_NAMES_BYTES:
        raise InputError(f"more than {MOST_NAMES_BYTES} bytes of names", where=str(path), action="give fewer")
    return [name for line in data.decode("utf-8", "replace").splitlines() if (name := line.strip())]


def _names_in(text: str) -> list[str]:
    """The names in a key or pattern."""
    if is_pattern(text):
        name, bracket, _ = text.rpartition("[")
        return [name] if bracket and not is_pattern(name) and ">" not in name else []
    try:
        key = parse_key(text)
    except KeyTextError:
        return []
    return [key.name] if isinstance(key, ProcessKey | NodeKey) else []
