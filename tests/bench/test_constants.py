"""Constants: every one has a reason on its page, and the experiment varies what it says."""

from __future__ import annotations

import pytest
from bench.constants import run
from bench.constants.inventory import KINDS, documented, inventory, is_compiled
from bench.constants.worlds import try_all

from sojourn.estimation import learning
from sojourn.estimation.packets import sizes


def by_label(label: str):
    return next(one for one in inventory() if one.label == label)


def test_the_page_gives_a_reason_for_every_constant_and_names_no_other() -> None:
    """docs/maths/constants.md: a constant that is new, changed or gone needs a line there."""
    assert {label: text for label, (text, _) in documented().items()} == {one.label: one.text for one in inventory()}


def test_every_constant_is_of_a_kind() -> None:
    assert {kind for _, kind in documented().values()} <= set(KINDS)


@pytest.mark.parametrize(
    ("label", "variants"),
    [
        ("estimation.posterior.hierarchy.COMPONENTS", ["24", "96"]),
        ("estimation.posterior.hierarchy.ROUNDS", ["1", "3"]),
        ("estimation.posterior.hierarchy.MOSTLY", ["0.4", "0.9"]),
        ("estimation.learning.RATIO", ["1.175", "1.7000000000000002"]),
        ("estimation.joint.linear.REFINEMENTS", ["((0.3, 1.0, 3.0))[1:]", "((0.3, 1.0, 3.0))[:-1]"]),
    ],
)
def test_less_and_more_of_a_constant(label: str, variants: list[str]) -> None:
    assert by_label(label).variants() == variants


def test_what_kernels_freeze_is_known_also_where_it_is_imported() -> None:
    assert is_compiled(by_label("estimation.posterior.components.NEGLIGIBLE"))
    assert is_compiled(by_label("estimation.learning.INTEGERS"))
    assert not is_compiled(by_label("estimation.posterior.hierarchy.COMPONENTS"))


def test_a_variant_changes_all_modules_that_have_the_constant_and_puts_it_back(monkeypatch) -> None:
    found = []
    monkeypatch.setattr(run, "try_all", lambda _: found.append((learning.LEARN_FLOWS, sizes.LEARN_FLOWS)) or {})
    before = learning.LEARN_FLOWS
    for variant in run.variants(["estimation.learning.LEARN_FLOWS"]):
        variant.judged()
    assert found == [(before // 2, before // 2), (2 * before, 2 * before)]
    assert learning.LEARN_FLOWS == sizes.LEARN_FLOWS == before


def test_definitions_are_not_varied_and_numerical_ones_are_varied_together_unless_one_is_named() -> None:
    names = {variant.name for variant in run.variants([])}
    assert "estimation.joint.mixture.LEVEL" not in names
    assert "estimation.posterior.components.PRECISE" not in names
    assert "estimation.posterior.components, numerical of kernels" in names
    one = "estimation.posterior.components.PRECISE"
    assert {variant.name for variant in run.variants([one])} == {one}


def test_the_largest_change_of_an_error_and_of_a_share_counts() -> None:
    default = {"a": {"error": 0.1, "delays": 0.95}, "b": {"error": 0.2, "delays": 0.9}}
    found = {"a": {"error": 0.08, "delays": 0.95}, "b": {"error": 0.21, "delays": 0.93}}
    error, share, where = run.change(found, default)
    assert error == pytest.approx(-0.2)
    assert share == pytest.approx(0.03)
    assert where == "a; delays in b"
    lines = list(run.table({(run.DEFAULT, run.DEFAULT): default, ("x", "less"): found, ("x", "more"): default}))
    assert lines[2] == "| `x` | -20.0 %, +3.0 | +0.0 %, +0.0 | a; delays in b |"
    assert lines[-1].endswith("in all worlds): none.")


def test_a_variant_that_fails_is_noticed() -> None:
    assert run.change({}, {"a": {"error": 0.1}})[2] == "fails"


def test_worlds_of_buckets_have_figures() -> None:
    found = try_all("buckets")
    assert set(found) == {"disks", "messages"}
    assert all(0 < shares["error"] < 0.2 and 0.85 < shares["delays"] <= 1 for shares in found.values())
