"""MPlane's claims on the real maps, and what is said where the maps are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sojourn.core.errors import UsageError
from sojourn.papers import mplane
from sojourn.papers.mplane import DATA_VARIABLE, all_maps, sprint
from sojourn.papers.reproduction import Scale


@pytest.fixture
def maps(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real maps, two random orders instead of twenty."""
    monkeypatch.setenv(DATA_VARIABLE, str(shared_data))
    monkeypatch.setattr(mplane, "_RANDOM_ORDERS", {Scale.SMALL: 2})


@pytest.mark.usefixtures("maps")
def test_sprints_figures_reproduce() -> None:
    claims = {claim.quantity: claim for claim in sprint(Scale.SMALL).claims}
    assert all(claim.reproduced is not False for claim in claims.values())
    hops = claims["probe hop count, 45 upgraded"]
    assert hops.literal is not None
    assert hops.joint is not None
    assert hops.baseline is not None
    assert hops.joint < hops.literal < 10_000 < 20 * hops.literal < hops.baseline


@pytest.mark.usefixtures("maps")
def test_best_is_never_worse_on_any_map_and_two_orders_of_magnitude_are_almost_reached() -> None:
    outcome = all_maps(Scale.SMALL)
    gain = outcome.claims[-1]
    assert "(least 0)" in gain.quantity
    assert gain.joint is not None
    assert gain.joint > 10
    average = outcome.claims[0].literal
    assert average is not None
    assert 1 < average < 2
    assert [len(figure.panels) for figure in outcome.figures] == [6, 6]


def test_missing_maps_are_said_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"set {DATA_VARIABLE} to the folder"):
        sprint(Scale.SMALL)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"there is no 1239\.weights\.intra"):
        sprint(Scale.SMALL)
