"""Results leave as dictionaries, Arrow tables and data frames; without the package the extra is named."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from sojourn.core.errors import UsageError
from sojourn.core.results import Columns, Result


@dataclass(frozen=True, repr=False)
class Counted(Result):
    gap: bool = True

    def columns(self) -> Columns:
        return {"name": ["a", "b"], "packets": [3, None if self.gap else 4], "seen": np.array([1, 2])}

    @property
    def summary(self) -> str:
        return "3 packets"

    def fields(self) -> dict[str, object]:
        return {"sent": 3}


def test_rows_are_dictionaries_of_plain_values() -> None:
    result = Counted()
    assert len(result) == 2
    assert result[1] == {"name": "b", "packets": None, "seen": 2}
    assert type(result[0]["seen"]) is int
    assert result.to_dict() == {"sent": 3, "flows": list(result)}
    assert repr(result) == "<Counted: 2 flows>\n3 packets"


def test_whole_numbers_with_gaps_stay_whole_in_arrow_and_pandas() -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    result = Counted()
    assert result.to_arrow().to_pylist() == list(result)
    frame = result.to_pandas()
    assert str(frame["packets"].dtype) == "Int64"
    assert frame["packets"][0] == 3


@pytest.mark.parametrize(("package", "extra"), [("pyarrow", "parquet"), ("pandas", "pandas")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"{package}.*sojourn\[{extra}\]"):
        Counted().to_arrow() if package == "pyarrow" else Counted().to_pandas()
