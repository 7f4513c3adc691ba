"""`Pseudonyms`: keys in which addresses and names are replaced by what only who has the secret can undo.

**Addresses** keep their prefixes, and nothing else: two addresses with k leading bits in common have pseudonyms with
exactly k leading bits in common, IPv4 in IPv4 and IPv6 in IPv6. Bit i of a pseudonym is bit i of the address, flipped
or not by a keyed function of the i bits before it. That is a bijection, and the only kind that keeps prefixes; its
inverse walks the bits in the same order. A network's pseudonym is that of its addresses, so far as its prefix reaches.

    J. Xu, J. Fan, M. H. Ammar, S. B. Moon, "Prefix-Preserving IP Address Anonymization" (2002), Theorem 1; the
    canonical form with f_i(a_1 … a_i) as one bit of a pseudo-random function.

The function is BLAKE2s with the secret as its key: one call gives the 255 bits that decide about the next eight, one
for each node of their binary tree, so that an address takes 4 calls (IPv6: 16), of which those of known prefixes are
remembered.

**Names** of processes become ``p-`` and 16 letters (80 bits of keyed BLAKE2s), names of nodes other than the node's own
``n-`` and 16: nobody turns them back, but who has the secret can compare them with those of candidates. Process
numbers, ports, protocols, VLANs and prefix lengths stay.

What it does not hide: which addresses share prefixes; so an address that is recognised by its traffic gives away
prefixes of others, bit by bit. Sizes, times, ports and process numbers tell as much as they do. ``docs/pseudonyms.md``
has the whole list.

Cost: 15 µs for an address of IPv4, 70 µs for one of IPv6, 0.2 µs if it is remembered. Memory: 200 bytes for each of
`MOST_REMEMBERED` addresses and prefixes.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2s
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import TypeAlias, TypeVar

from sojourn.core.errors import ParameterError
from sojourn.core.keys import DestinationKey, FlowKey, HostPairKey, Key, NodeKey, ProcessKey, VlanFlowKey
from sojourn.core.pseudonyms.secret import SECRET_BYTES, read_secret

Address: TypeAlias = IPv4Address | IPv6Address
K = TypeVar("K")
V = TypeVar("V")
PROCESS_MARK, NODE_MARK = "p-", "n-"
NAME_BYTES = 10
MOST_REMEMBERED = 1 << 16
_HASH_KEY_BYTES = 16


class Pseudonyms:
    """The pseudonyms of one secret; ``node`` is the one node whose name is not replaced. Safe from several threads.

    >>> from sojourn.core.keys import parse_key
    >>> pseudonyms = Pseudonyms(bytes(32))
    >>> str(pseudonyms.key(parse_key("10.0.0.1:40112 > 10.0.0.2:443 tcp")))
    '227.118.171.237:40112 > 227.118.171.239:443 tcp'
    >>> str(pseudonyms.key(parse_key("mosquitto[812]")))
    'p-riocq5mocgir3atm[812]'
    """

    def __init__(self, secret: bytes, *, node: str = "") -> None:
        if len(secret) != SECRET_BYTES:
            raise ParameterError(f"a secret of {len(secret)} bytes", action=f"use {SECRET_BYTES} random ones")
        self._secret, self.node = secret, node
        self._flips: dict[tuple[int, bytes], int] = {}
        self._addresses: dict[Address, Address] = {}

    @classmethod
    def of_file(cls, path: Path, *, node: str = "") -> Pseudonyms:
        """The pseudonyms of the secret in a file."""
        return cls(read_secret(path), node=node)

    def __repr__(self) -> str:
        return f"Pseudonyms({self.fingerprint})"

    def _keyed(self, purpose: str, data: bytes, size: int) -> bytes:
        """A pseudo-random function for each purpose, whose name has at most 8 letters."""
        return blake2s(data, key=self._secret, person=purpose.encode(), digest_size=size).digest()

    @property
    def fingerprint(self) -> str:
        """What tells secrets apart, and nothing about them."""
        return self._keyed("print", b"", 4).hex()

    def hash_key(self, purpose: str) -> tuple[int, int]:
        """Two words for a keyed hash of numbers, by kernels."""
        words = self._keyed(purpose, b"", _HASH_KEY_BYTES)
        return int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")

    def unknown_id(self, instance_id: int) -> int:
        """An id for an instance of which nothing but its own id is known; it fits no key."""
        return int.from_bytes(self._keyed("unknown", instance_id.to_bytes(8, "little"), 8), "little")

    def address(self, address: Address) -> Address:
        """An address's pseudonym.

        >>> [str(Pseudonyms(bytes(32)).address(IPv4Address(text))) for text in ("10.0.0.1", "10.0.0.2", "192.0.2.1")]
        ['227.118.171.237', '227.118.171.239', '102.231.147.5']
        """
        found = self._addresses.get(address)
        if found is None:
            found = type(address)(self._walk(address.packed, is_back=False))
            _remember(self._addresses, address, found)
        return found

    def clear_address(self, pseudonym: Address) -> Address:
        """The address that has a pseudonym."""
        return type(pseudonym)(self._walk(pseudonym.packed, is_back=True))

    def _walk(self, packed: bytes, *, is_back: bool) -> bytes:
        """The bytes of an address into those of its pseudonym, or back; each by the flips that its prefix decides."""
        clear, result = bytearray(), bytearray()
        for byte in packed:
            flips, node, turned = self._flips_after(len(packed), bytes(clear)), 1, 0
            for at in range(7, -1, -1):
                bit = byte >> at & 1
                other = bit ^ (flips >> node & 1)
                turned = turned << 1 | other
                node = node << 1 | (other if is_back else bit)
            clear.append(turned if is_back else byte)
            result.append(turned)
        return bytes(result)

    def _flips_after(self, size: int, prefix: bytes) -> int:
        """Which of the next eight bits are flipped: bit n is of the n-th node of their tree, from 1 at its root."""
        found = self._flips.get((size, prefix))
        if found is None:
            found = int.from_bytes(self._keyed(f"ip {size}", prefix, 32), "little")
            _remember(self._flips, (size, prefix), found)
        return found

    def process_name(self, name: str) -> str:
        """The pseudonym of a process's name."""
        return PROCESS_MARK + self._letters("process", name)

    def node_name(self, name: str) -> str:
        """The pseudonym of a node's name; the node's own stays."""
        return name if name == self.node else NODE_MARK + self._letters("node", name)

    def _letters(self, purpose: str, name: str) -> str:
        return b32encode(self._keyed(purpose, name.encode(), NAME_BYTES)).decode("ascii").lower()

    def key(self, key: Key) -> Key:
        """The key under which an instance is known outside."""
        return _replaced(key, self.address, self.process_name, self.node_name)

    def clear_key(self, key: Key, names: Names | None = None) -> Key:
        """The key that has a pseudonym; names only as far as they are among the candidates."""
        known: dict[str, str] = {} if names is None else names.of
        return _replaced(
            key,
            self.clear_address,
            lambda name: known.get(name, name),
            lambda name: known.get(name, name),
        )


class Names:
    """Candidates for names of processes and nodes: what each one's pseudonym stands for."""

    def __init__(self, pseudonyms: Pseudonyms, names: Iterable[str] = ()) -> None:
        self._pseudonyms = pseudonyms
        self.of: dict[str, str] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Know some more."""
        for name in names:
            self.of[self._pseudonyms.process_name(name)] = name
            self.of[self._pseudonyms.node_name(name)] = name


def _replaced(
    key: Key,
    address: Callable[[Address], Address],
    process: Callable[[str], str],
    node: Callable[[str], str],
) -> Key:
    """A key with other addresses and names in it."""
    match key:
        case FlowKey() | HostPairKey():
            return replace(key, src_ip=address(key.src_ip), dest_ip=address(key.dest_ip))
        case VlanFlowKey():
            flow = replace(key.flow, src_ip=address(key.flow.src_ip), dest_ip=address(key.flow.dest_ip))
            return replace(key, flow=flow)
        case DestinationKey():
            length = key.network.prefixlen
            return DestinationKey(ip_network((address(key.network.network_address), length), strict=False))
        case ProcessKey():
            return replace(key, name=process(key.name))
        case NodeKey():
            return NodeKey(node(key.name))


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep the latest ones; who is forgotten is computed again."""
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    known[key] = value
