"""Rows of Parquet, within a memory that does not depend on what the file expands to.

Parquet compresses equal values to next to nothing, and gzip what is left: a few MB may expand to many GB. So a file
from a pipe or of gzip goes to disk up to a limit; the rows and bytes that the file's own description announces are
checked before any is decoded; texts stay in dictionaries, and lists are measured before they become Python objects.
"""

from __future__ import annotations

import gzip
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ExcessError", "ParquetError", "read_parquet_rows"]

BATCH_ROWS = 256
LONGEST_VALUE = 1 << 16  # characters of a text, values of a list
MOST_FILE_BYTES = 1 << 30  # of a file that has to be decompressed first, or comes from a pipe
MOST_GROUP_BYTES = 1 << 30  # of one row group, uncompressed
_PIECE = 1 << 20


class ParquetError(Exception):
    """Why nothing more of a file can be read."""


class ExcessError(Exception):
    """What a file has too much of."""


def read_parquet_rows(
    source: Any, columns: tuple[str, ...], faults: Counter[str], *, most_rows: int
) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """The names of all columns, and the rows of those asked for; `ImportError` without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    try:
        raw = _on_disk(source)
        file = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=_PIECE)
        names = file.schema_arrow.names
        wanted = [name for name in columns if name in names]
        _check_announced(file.metadata, most_rows)
        texts = [f.name for f in file.schema_arrow if f.name in wanted and _is_text(f.type)]
        raw.seek(0)
        file = parquet.ParquetFile(raw, pre_buffer=False, buffer_size=_PIECE, read_dictionary=texts)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _fault(error) from None
    return names, _rows(file, wanted, faults)


def _rows(file: Any, wanted: list[str], faults: Counter[str]) -> Iterator[Mapping[str, Any]]:
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            kept = _without_long_values(batch)
            if len(kept) < len(batch):
                faults[f"row with a value of more than {LONGEST_VALUE:,} characters or numbers"] += len(batch) - len(
                    kept
                )
            yield from kept.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _fault(error) from None


def _fault(error: Exception) -> ParquetError:
    return ParquetError(str(error).splitlines()[0].rstrip("."))


def _on_disk(source: Any) -> Any:
    """The file where it can be read in any order, up to `MOST_FILE_BYTES` where that takes a copy."""
    if source.seekable() and not isinstance(source, gzip.GzipFile):
        return source
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - Arrow reads it for as long as rows are asked for
    while piece := source.read(_PIECE):
        if copy.tell() + len(piece) > MOST_FILE_BYTES:
            raise ExcessError(f"more than {MOST_FILE_BYTES >> 20} MiB of Parquet, once decompressed")
        copy.write(piece)
    copy.seek(0)
    return copy


def _check_announced(metadata: Any, most_rows: int) -> None:
    """Refuse what the file itself says would take too much.

    Row groups are asked as a whole: of a damaged file, pyarrow's description of a column ends the process.
    """
    if metadata.num_rows > most_rows:
        raise ExcessError(f"{metadata.num_rows:,} rows, more than {most_rows:,}")
    if any(metadata.row_group(i).total_byte_size > MOST_GROUP_BYTES for i in range(metadata.num_row_groups)):
        raise ExcessError(f"a row group of more than {MOST_GROUP_BYTES >> 20} MiB")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _without_long_values(batch: Any) -> Any:
    """The rows whose texts and lists are no longer than a line of text may be."""
    from pyarrow import compute, types

    for column in batch.columns:
        if types.is_dictionary(column.type):
            length = compute.take(compute.binary_length(column.dictionary), column.indices)
        elif types.is_list(column.type) or types.is_large_list(column.type):
            length = compute.list_value_length(column)
        else:
            continue
        if (compute.max(length).as_py() or 0) > LONGEST_VALUE:
            is_short = compute.fill_null(compute.less_equal(length, LONGEST_VALUE), True)
            return _without_long_values(batch.filter(is_short))
    return batch
