"""Trials count what they say, results can be resumed and compared, and summaries name what fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.auto import run as command
from bench.auto.summary import Place, Pooled, Summary, changes
from bench.auto.trial import AUTO, CLASSES, GRAND, PEERS, SKETCHES, Drawn, Figures, Task, Trial, class_rows, run
from bench.auto.worlds import World

SMALL = World(name="small", flows=80, packets=12_000, sizes="geometric", means="x10", lost=0.01)
MEMORY = 20_000


@pytest.fixture(scope="module")
def trial() -> Trial:
    return run(Task(SMALL, 1, [MEMORY]))[0]


def test_a_trial_has_auto_and_all_peers_in_the_same_memory(trial: Trial) -> None:
    assert set(trial["methods"]) == {AUTO, *PEERS}
    assert sum(trial["plan"].values()) <= MEMORY
    drawn = Drawn.of(SMALL, 1)
    for sketch in SKETCHES.values():
        plan = drawn.plan(sketch, MEMORY, 1)
        assert 0.9 * MEMORY <= plan.memory_bits / 8 <= MEMORY
        assert "segment" in plan.parts


def test_an_unanswered_flow_counts_with_the_grand_means_error(trial: Trial) -> None:
    drawn = Drawn.of(SMALL, 1)
    truth = drawn.traffic.truth
    large = (truth.sent >= 100) & (truth.received > 0)
    grand = drawn.traffic.delay_ns[drawn.traffic.delivered].mean()
    expected = np.median(np.abs(grand / truth.mean_ns[large] - 1))
    assert trial["methods"][GRAND]["error"] == pytest.approx(expected)
    assert trial["large"] == large.sum()
    assert drawn.error(np.where(large, np.nan, 0.0)) == pytest.approx(expected)
    assert drawn.error(truth.mean_ns) == 1e-4


def test_classes_hold_every_flow_that_arrived_once() -> None:
    traffic = replace(SMALL, sizes="zipf", packets=30_000).draw(2)
    rows = dict(class_rows(traffic))
    assert np.array_equal(sum(mask.astype(int) for mask in rows.values()), (traffic.truth.received > 0).astype(int))
    least = list(CLASSES.values())
    for name, mask in rows.items():
        assert traffic.truth.sent[mask].min() >= CLASSES[name]
        above = [size for size in least if size > CLASSES[name]]
        assert not above or traffic.truth.sent[mask].max() < above[0]


def test_a_class_counts_intervals_with_and_without_a_width(trial: Trial) -> None:
    total = Pooled()
    for figures in trial["methods"][AUTO]["classes"].values():
        assert figures["held"] <= figures["wide"]
        assert figures["wrong"] <= figures["sharp"]
        assert figures["lost_exact"] <= figures["lost_known"] <= figures["flows"]
        total.add(figures)
    assert total.counts["flows"] == 80
    assert total.counts["held"] > 0.8 * total.counts["wide"]


def made_up(world: str, memory: int, *, auto: float, best: float = 0.1, held: int = 950, seed: int = 0) -> Trial:
    counted = dict.fromkeys(("packets_known", "packets_exact", "lost_known", "lost_exact"), 1000.0)
    cell: dict[str, float] = {
        "flows": 1000,
        "wide": 1000,
        "held": held,
        "sharp": 0,
        "wrong": 0,
        "width": 0.2,
        **counted,
    }

    def figures(error: float, classes: dict[str, dict[str, float]]) -> Figures:
        return Figures(error=error, answered=1.0, seconds=0.1, classes=classes)

    methods = {peer: figures(2 * best, {}) for peer in PEERS}
    methods["sample"] = figures(best, {})
    methods[AUTO] = figures(auto, {"100–999": cell})
    return Trial(world=world, seed=seed, memory=memory, large=1000, plan={"flows": memory}, methods=methods)


def test_a_summary_compares_means_over_seeds_with_the_best_peer() -> None:
    found = Summary([made_up("a", 1000, auto=0.1), made_up("a", 1000, auto=0.3, seed=1)])
    assert found.ratio(Place("a", 1000)) == pytest.approx(2.0)
    assert any("> 1.5 in 1," in line for line in found.lines())


@pytest.mark.parametrize(("held", "fails", "wide"), [(860, True, False), (880, False, False), (990, False, True)])
def test_coverage_fails_only_where_it_is_significantly_low(held: int, fails: bool, wide: bool) -> None:
    (cell,) = Summary([made_up("a", 1000, auto=0.1, held=held)]).coverage().values()
    assert (cell.is_judged, cell.fails, cell.is_wide) == (True, fails, wide)


def test_an_error_that_rises_with_memory_is_named() -> None:
    trials = [made_up("falls", size, auto=error) for size, error in ((1000, 0.2), (2000, 0.1))]
    trials += [made_up("rises", size, auto=error) for size, error in ((1000, 0.1), (2000, 0.12))]
    lines = "\n".join(Summary(trials).lines())
    assert "10.00 % with 1000 B, 12.00 % with 1.95 KiB: rises" in lines
    assert "1 times" in lines


def test_totals_name_no_world() -> None:
    trials = [made_up("secret", size, auto=error, held=800) for size, error in ((1000, 0.1), (2000, 0.4))]
    assert "secret" not in "\n".join(Summary(trials).lines(worst=0))
    assert "secret" not in "\n".join(changes(trials, trials, worst=0))


def test_changes_are_told_of_the_trials_that_both_files_have() -> None:
    before = [made_up("a", 1000, auto=0.2), made_up("b", 1000, auto=0.1), made_up("c", 1000, auto=0.1)]
    after = [made_up("a", 1000, auto=0.1), made_up("b", 1000, auto=0.2, held=800)]
    lines = "\n".join(changes(before, after))
    assert "2 runs of both files" in lines
    assert "1 better and 1 worse" in lines
    assert "better: 20.00 % → 10.00 %" in lines
    assert "new 1" in lines
    assert changes(before, [made_up("d", 1000, auto=0.1)]) == ["no trial is in both files"]


def arguments(results: Path, *more: str) -> list[str]:
    asked = ["--world", "few alike flows", "--memory", "32KB", "--workers", "1", "--results", str(results)]
    return [*asked, "--salts", "1", *more]


def test_results_are_resumed_and_peers_taken_from_an_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Any] = []

    def counting(task: Task, names: Any = tuple(SKETCHES)) -> list[Trial]:
        ran.append(tuple(names))
        return run(task, names)

    monkeypatch.setattr(command, "run", counting)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    command.main(arguments(first))
    command.main(arguments(first))
    assert ran == [tuple(SKETCHES)]
    command.main(arguments(second, "--peers", str(first), "--against", str(first)))
    assert ran[1:] == [(AUTO,)]
    one, two = (json.loads(path.read_text()) for path in (first, second))
    assert one["methods"]["LDS joint"] == two["methods"]["LDS joint"]
    assert one["methods"][AUTO]["error"] == two["methods"][AUTO]["error"]
    assert "0 better and 0 worse" in capsys.readouterr().out


def test_a_file_that_is_no_results_is_refused_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"world": \n')
    with pytest.raises(SystemExit, match="line 1 is no JSON"):
        command.main(arguments(broken))
