"""What every measurement returns: rows in columns, a summary, and the ways to take them elsewhere.

A result is frozen and holds plain numbers and texts. Rows are columns of one length (name → values), with None where
there is no answer. pyarrow and pandas are imported when they are asked for; without them a `UsageError` names the extra
to install.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sojourn.core.arguments import front_door
from sojourn.core.errors import ParameterError, UsageError

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from numpy.typing import NDArray

Columns: TypeAlias = "Mapping[str, Sequence[object] | NDArray[Any]]"
Advance: TypeAlias = Callable[[str, float], None]  # called as work is done: a step's name and the share done, 0 to 1


def silent(_step: str, _share: float) -> None:
    """An `Advance` that shows nothing."""


class Result(ABC):
    """An answer: rows, what holds for all of them, and a few lines of text that say it.

    ``len()``, iteration and ``result[3]`` go over the rows as dictionaries.
    """

    rows_name: ClassVar[str] = "flows"

    @abstractmethod
    def columns(self) -> Columns:
        """The rows, column by column."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The answer in a few lines for people."""

    def fields(self) -> dict[str, object]:
        """What holds for all rows, by the names of the JSON contract."""
        return {}

    def blocks(self) -> Iterator[Columns]:
        """The rows in blocks, for whatever writes them one after the other; at least one, even without rows."""
        yield self.columns()

    @front_door
    def select(self, sort: str = "", limit: int | None = None) -> Result:
        """The same answer with its rows sorted, the largest first, and at most `limit` of them.

        `sort` is the name of a column; ``mean`` and ``p99`` mean ``mean_ns`` and ``p99_ns``, ``loss`` the share of
        packets that were lost.
        """
        if limit is not None and limit < 0:
            raise ParameterError(f"{limit} rows", where="--limit", action="give 0 or more")
        return self._selected(sort, limit)

    def _selected(self, sort: str, limit: int | None) -> Result:
        """As `select`, for what it found no fault with."""
        order = row_order(self.columns(), sort, limit)
        return self if order is None else _Selection(self, take_rows(self.columns(), order))

    def __len__(self) -> int:
        return len(next(iter(self.columns().values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return rows(self.columns())

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: plain(column)[row] for name, column in self.columns().items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} {self.rows_name}>\n{self.summary}"

    def to_dict(self) -> dict[str, Any]:
        """What `--format json` prints: the fields, and the rows under their name."""
        return {**self.fields(), self.rows_name: list(self)}

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table; needs the ``parquet`` extra."""
        return arrow_table(self.columns())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame; needs the ``pandas`` extra.

        Whole numbers with gaps stay whole numbers (pandas' nullable integers).
        """
        frame: pandas.DataFrame = _extra("pandas", "pandas").DataFrame(dict(self.columns()))
        return frame.convert_dtypes()


@dataclass(frozen=True, repr=False)
class _Selection(Result):
    """Some rows of a result, in another order."""

    whole: Result
    chosen: Columns

    @property
    def rows_name(self) -> str:  # type: ignore[override]
        return self.whole.rows_name

    @property
    def summary(self) -> str:
        return self.whole.summary

    def columns(self) -> Columns:
        return self.chosen

    def fields(self) -> dict[str, object]:
        return self.whole.fields()


def row_order(columns: Columns, sort: str, limit: int | None) -> list[int] | None:
    """The rows by a column, at most `limit`; None where that is all of them in their order.

    Numbers come from the largest down, texts from A to Z, rows without a value last; equals stay in their order. Where
    there is no column at all there is nothing to sort.

    >>> row_order({"node": ["a", "b", "c"], "mean_ns": [2, None, 7]}, "mean", 2)
    [2, 0]
    >>> row_order({}, "mean", 2)
    """
    count = len(next(iter(columns.values()), ()))
    if not sort or not columns:
        return None if limit is None or limit >= count else list(range(limit))
    values = _sort_values(columns, sort)

    def key(row: int) -> tuple[bool, Any]:
        value = values[row]
        return value is None, 0 if value is None else value if isinstance(value, str) else -value

    return sorted(range(count), key=key)[:limit]


def _sort_values(columns: Columns, sort: str) -> Sequence[Any]:
    for name in (sort, f"{sort}_ns", f"{sort}_rtt"):
        if name in columns:
            return plain(columns[name])
    sent = next((columns[name] for name in ("packets", "sent") if name in columns), None)
    if sort == "loss" and "lost" in columns and sent is not None:
        pairs = zip(plain(columns["lost"]), plain(sent), strict=True)
        return [None if lost is None or not packets else lost / packets for lost, packets in pairs]
    known = ", ".join(columns)
    raise UsageError(f"there is no column {sort} to sort by", where="--sort", action=f"choose of {known}")


def take_rows(columns: Columns, chosen: Sequence[int]) -> Columns:
    """Those rows of all columns, in that order."""
    taken: dict[str, Any] = {}
    for name, column in columns.items():
        array: Any = column
        taken[name] = array[list(chosen)] if hasattr(array, "tolist") else [array[row] for row in chosen]
    return taken


def arrow_table(columns: Columns) -> pyarrow.Table:
    """Columns as an Arrow table; one that has nothing but None is a column of texts."""
    arrow = _extra("pyarrow", "parquet")
    arrays = {name: arrow.array(column) for name, column in columns.items()}
    return arrow.table(
        {name: a.cast(arrow.string()) if arrow.types.is_null(a.type) else a for name, a in arrays.items()}
    )


def rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """The rows, one by one, in Python's own numbers."""
    for values in zip(*map(plain, columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


def plain(column: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    """Python's own numbers instead of numpy's."""
    return column.tolist() if hasattr(column, "tolist") else column


def _extra(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(f"this needs the {package} package", action=f"install sojourn[{extra}]") from None
