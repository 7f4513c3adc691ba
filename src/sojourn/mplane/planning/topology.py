"""A network as shortest-path routing sees it: routers, directed links, exact weights.

Two paths are of equal cost exactly when their weights, added as written, are equal: weights are decimals in a file and
whole numbers inside, multiples of the smallest decimal (``0.1 + 0.2`` is ``0.3``). Weights are above zero,
so that a shortest path never meets a router twice.

A topology takes 28 bytes per link and the routers' names. What a reader hands over is bounded: `MAX_ROUTERS`,
`MAX_LINKS`, `MAX_NAME`, and every error names the file and the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ParameterError, TopologyError, UsageError
from sojourn.core.units import parse_rate

MAX_ROUTERS = 200_000
MAX_LINKS = 2_000_000
MAX_NAME = 200
MAX_RATE = 10**12
# Decimals that a weight may have, and how far sums of weights reach.
MAX_DECIMALS = 9
_MAX_DISTANCE = 2**61
# As many digits as decimal arithmetic keeps exactly.
_MAX_DIGITS = 28
_NS_PER_MS = 1_000_000
_MAX_LATENCY_MS = 1_000_000_000


class Adjacency(NamedTuple):
    """What kernels walk: the links of router ``i`` are ``first[i] … first[i + 1]``, with their targets and weights."""

    first: NDArray[np.int64]
    target: NDArray[np.int32]
    weight: NDArray[np.int64]


@dataclass(frozen=True)
class Topology:
    """Links sorted by the router they leave: those of router ``i`` are ``first[i] … first[i + 1]``.

    Weights are in units of ``1 / weight_unit``; a latency of −1 ns is not known. ``remarks`` is what a user should
    know of how the file was read. ``rates`` has the bits per second of links (router, router) that the file limits.
    """

    names: tuple[str, ...]
    first: NDArray[np.int64]
    target: NDArray[np.int32]
    weight: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    weight_unit: int = 1
    remarks: tuple[str, ...] = ()
    rates: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def links(self) -> int:
        return len(self.target)

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency(self.first, self.target, self.weight)

    @cached_property
    def source(self) -> NDArray[np.int32]:
        """The router that each link leaves."""
        routers = np.arange(len(self.names), dtype=np.int32)
        return np.repeat(routers, np.diff(self.first))

    @cached_property
    def index(self) -> dict[str, int]:
        """Routers' numbers by name."""
        return {name: number for number, name in enumerate(self.names)}

    def router(self, name: str) -> int:
        """The number of the router of that name.

        >>> triangle().router("b")
        1
        """
        try:
            return self.index[name]
        except KeyError:
            near = [other for other in self.names if name and name.lower() in other.lower()][:3]
            action = f"did you mean {' or '.join(near)}?" if near else f"names are such as {self.names[0]}"
            raise UsageError(f"there is no router {name!r}", action=action) from None

    def has_link(self, source: int, target: int) -> bool:
        """Whether a link leads from one router to another."""
        return bool(np.any(self.target[self.first[source] : self.first[source + 1]] == target))

    def has_way_back(self) -> bool:
        """Whether any two routers have a link each way."""
        ends = set(zip(self.source.tolist(), self.target.tolist(), strict=True))
        return any((v, u) in ends for u, v in ends)

    def without(self, links: Sequence[tuple[int, int]]) -> Topology:
        """The topology after links (router, router) have failed; both ways are two links."""
        failed = {(int(u), int(v)) for u, v in links}
        ends = list(zip(self.source.tolist(), self.target.tolist(), strict=True))
        missing = failed.difference(ends)
        if missing:
            u, v = min(missing)
            raise UsageError(f"there is no link from {self.names[u]} to {self.names[v]}")
        stays = np.array([end not in failed for end in ends], dtype=np.bool_)
        degree = np.bincount(self.source[stays], minlength=len(self.names))
        return Topology(
            self.names,
            np.concatenate(([0], np.cumsum(degree))),
            self.target[stays],
            self.weight[stays],
            self.latency_ns[stays],
            self.weight_unit,
            self.remarks,
            {ends: rate for ends, rate in self.rates.items() if ends not in failed},
        )


@dataclass
class _Link:
    weight: Decimal
    latency_ns: int
    line: int
    rate: int = 0


@dataclass
class TopologyBuilder:
    """Collects what a reader finds in the file `where`, and makes errors that name the line."""

    where: str
    remarks: list[str] = field(default_factory=list)
    _routers: dict[str, int] = field(default_factory=dict)
    _links: dict[tuple[int, int], _Link] = field(default_factory=dict)

    def error(self, what: str, line: int = 0, action: str = "") -> TopologyError:
        """An error in a line, to be raised."""
        return TopologyError(what, where=f"{self.where}:{line}" if line else self.where, action=action)

    def add_router(self, name: str, line: int) -> int:
        """The number of a router, new or known."""
        known = self._routers.get(name)
        if known is not None:
            return known
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise self.error(f"a router's name has 1 to {MAX_NAME} printable characters, this is {name[:40]!r}", line)
        if len(self._routers) >= MAX_ROUTERS:
            raise self.error(f"more than {MAX_ROUTERS} routers", line, "plan on a part of the network")
        self._routers[name] = len(self._routers)
        return self._routers[name]

    def add_link(
        self, source: str, target: str, weight: str, *, latency_ms: str = "", line: int, is_parallel: bool = False
    ) -> bool:
        """One directed link; weight and latency are texts as in the file.

        With `is_parallel` of several links between the same routers the lightest is kept, without an error; False is
        returned then.
        """
        ends = self.add_router(source, line), self.add_router(target, line)
        if ends[0] == ends[1]:
            raise self.error(f"a link from {source} to itself", line, "remove it")
        link = _Link(self._weight(weight, line), self.latency_ns(latency_ms, line), line)
        if ends in self._links and is_parallel:
            self._links[ends] = min(self._links[ends], link, key=lambda either: either.weight)
            return False
        if ends in self._links:
            before = self._links[ends].line
            raise self.error(
                f"the link from {source} to {target} is in line {before} already", line, "keep one of them"
            )
        if len(self._links) >= MAX_LINKS:
            raise self.error(f"more than {MAX_LINKS} links", line, "plan on a part of the network")
        self._links[ends] = link
        return True

    def set_rate(self, source: str, target: str, rate: str, line: int) -> None:
        """Limit a link that was added to so many bits per second, a text such as ``10M``."""
        try:
            value = parse_rate(rate) if len(rate) <= MAX_NAME else 0
        except ParameterError as error:
            raise self.error(error.what, line, error.action) from None
        if not 0 < value <= MAX_RATE:
            raise self.error(f"a rate is above 0 and at most {MAX_RATE} bit/s, this is {rate.strip()[:40]}", line)
        self._links[self._routers[source], self._routers[target]].rate = value

    def set_latency(self, source: str, target: str, latency_ms: str, line: int) -> bool:
        """Give a link its latency; False where there is no such link."""
        ends = self._routers.get(source, -1), self._routers.get(target, -1)
        if ends not in self._links:
            return False
        self._links[ends].latency_ns = self.latency_ns(latency_ms, line)
        return True

    def add_missing_directions(self) -> int:
        """Let links that are listed one way only lead both ways; how many were added."""
        one_way = [((v, u), link) for (u, v), link in self._links.items() if (v, u) not in self._links]
        self._links.update(one_way)
        return len(one_way)

    def latency_ns(self, text: str, line: int) -> int:
        """Milliseconds as written, in ns; −1 for none."""
        if not text.strip():
            return -1
        value = self._decimal(text, "latency", line)
        if not 0 <= value <= _MAX_LATENCY_MS:
            raise self.error(f"a latency is 0 ms to {_MAX_LATENCY_MS} ms, this is {text.strip()}", line)
        return int(value * _NS_PER_MS)

    def finish(self, *, needs_links: bool = True) -> Topology:
        """The topology of all that was added."""
        if not self._links and needs_links:
            raise self.error("no links", action="give a file with at least one link")
        ordered = sorted(self._links.items())
        unit, weights = self._whole_weights([link for _, link in ordered])
        degree = np.bincount(np.array([u for (u, _), _ in ordered], dtype=np.int64), minlength=len(self._routers))
        return Topology(
            names=tuple(self._routers),
            first=np.concatenate(([0], np.cumsum(degree))),
            target=np.array([v for (_, v), _ in ordered], dtype=np.int32),
            weight=weights,
            latency_ns=np.array([link.latency_ns for _, link in ordered], dtype=np.int64),
            weight_unit=unit,
            remarks=tuple(self.remarks),
            rates={ends: link.rate for ends, link in ordered if link.rate},
        )

    def _weight(self, text: str, line: int) -> Decimal:
        if not text.strip():
            raise self.error("the link has no weight", line, "give every link a weight above 0")
        value = self._decimal(text, "weight", line)
        if value <= 0:
            raise self.error(f"a weight is above 0, this is {text.strip()}", line, "give every link a weight above 0")
        if value >= _MAX_DISTANCE or len(value.as_tuple().digits) > _MAX_DIGITS or _decimals(value) > MAX_DECIMALS:
            raise self.error(
                f"a weight of {text.strip()[:40]}", line, f"use at most {MAX_DECIMALS} decimals, below 2^61"
            )
        return value

    def _decimal(self, text: str, what: str, line: int) -> Decimal:
        try:
            value = Decimal(text.strip()) if len(text) <= MAX_NAME else None
        except InvalidOperation:
            value = None
        if value is None or not value.is_finite():
            raise self.error(f"the {what} {text.strip()[:40]!r} is not a number", line)
        return value

    def _whole_weights(self, links: Sequence[_Link]) -> tuple[int, NDArray[np.int64]]:
        """The unit that makes all weights whole, and the weights in it; sums along any path fit 61 bits."""
        if not links:
            return 1, np.empty(0, dtype=np.int64)
        decimals = max(_decimals(link.weight) for link in links)
        unit = 10**decimals
        heaviest = max(links, key=lambda link: link.weight)
        if heaviest.weight * unit * len(self._routers) >= _MAX_DISTANCE:
            action = "use fewer decimals or smaller weights"
            raise self.error(f"paths of weight {heaviest.weight} links do not fit 61 bits", heaviest.line, action)
        return unit, np.array([int(link.weight * unit) for link in links], dtype=np.int64)


def _decimals(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def triangle() -> Topology:
    """Three routers a, b, c in a ring of equal weights, for examples."""
    builder = TopologyBuilder("triangle")
    for source, target in ("ab", "bc", "ca"):
        builder.add_link(source, target, "1", line=1)
    builder.add_missing_directions()
    return builder.finish()
