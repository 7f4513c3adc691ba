"""Estimates of many metrics, step by step of time, as one Parquet file with one schema.

Columns are those of an answer to a question (`Client.query`), with the step that it is of before them; a value, its
interval and what it rests on. Times are integer nanoseconds. What has no answer has its reason instead.

Guarantee: the file is there when it is complete, and what was there before stays until then.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sojourn.core.errors import UsageError

LEVEL = 0.95
_COLUMNS = {
    "start_ns": "int64",
    "end_ns": "int64",
    "metric": "string",
    "node": "string",
    "instance": "string",
    "stat": "string",
    "value": "float64",
    "low": "float64",
    "high": "float64",
    "level": "float64",
    "unit": "string",
    "samples": "int64",
    "method": "string",
    "epochs": "int64",
    "members": "int64",
    "reason": "string",
}
COLUMNS = tuple(_COLUMNS)


def estimate_rows(
    metric: str, span: tuple[int, int], answers: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, object]]:
    """A step's answers as rows."""
    for answer in answers:
        step = {"start_ns": span[0], "end_ns": span[1], "metric": metric, "level": LEVEL}
        yield {name: step[name] if name in step else answer[name] for name in COLUMNS}


def steps_between(from_ns: int, to_ns: int, every_ns: int) -> list[tuple[int, int]]:
    """The steps of a range, at whole multiples of their length; the first and the last may be cut short.

    >>> steps_between(3, 12, 5)
    [(3, 4), (5, 9), (10, 12)]
    """
    starts = [from_ns, *range((from_ns // every_ns + 1) * every_ns, to_ns + 1, every_ns)]
    return [(start, min(after - 1, to_ns)) for start, after in zip(starts, [*starts[1:], to_ns + 1], strict=True)]


class EstimateFile:
    """A Parquet file that rows are added to."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer, self._schema = writer, schema
        self.rows = 0

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write rows; they are on disk when the file is closed."""
        from pyarrow import Table

        if rows:
            self._writer.write_table(Table.from_pylist([dict(row) for row in rows], schema=self._schema))
            self.rows += len(rows)


@contextmanager
def estimate_file(path: Path) -> Iterator[EstimateFile]:
    """A new file, which takes the place of what is at the path when the block has ended well."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError("writing Parquet needs the pyarrow package", action="install sojourn[parquet]") from None
    schema = pyarrow.schema([(column, getattr(pyarrow, kind)()) for column, kind in _COLUMNS.items()])
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}-", suffix=".parquet", dir=path.parent)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            with parquet.ParquetWriter(file, schema) as writer:
                yield EstimateFile(writer, schema)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    """What the user takes from the permissions of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
