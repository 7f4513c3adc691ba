"""What every measurement returns: rows in columns, a summary, and the ways to take them elsewhere.

A result is frozen and holds plain numbers and texts. Rows are columns of one length (name → values), with None where
there is no answer. pyarrow and pandas are imported when they are asked for; without them a `UsageError` names the extra
to install.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sojourn.core.errors import UsageError

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from numpy.typing import NDArray

__all__ = ["Columns", "Result", "arrow_table"]

Columns: TypeAlias = "Mapping[str, Sequence[object] | NDArray[Any]]"


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

    def __len__(self) -> int:
        return len(next(iter(self.columns().values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        columns = self.columns()
        for values in zip(*map(_plain, columns.values()), strict=True):
            yield dict(zip(columns, values, strict=True))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: _plain(column)[row] for name, column in self.columns().items()}

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


def arrow_table(columns: Columns) -> pyarrow.Table:
    """Columns as an Arrow table; one that has nothing but None is a column of texts."""
    arrow = _extra("pyarrow", "parquet")
    arrays = {name: arrow.array(column) for name, column in columns.items()}
    return arrow.table(
        {name: a.cast(arrow.string()) if arrow.types.is_null(a.type) else a for name, a in arrays.items()}
    )


def _plain(column: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    """Python's own numbers instead of numpy's."""
    return column.tolist() if hasattr(column, "tolist") else column


def _extra(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(f"this needs the {package} package", action=f"install sojourn[{extra}]") from None
