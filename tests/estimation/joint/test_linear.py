"""The joint delay solvers: messages agree with the dense solution, trials know the truth, posteriors are quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from sojourn.estimation.joint import calibration
from sojourn.estimation.joint import mixture as delay_prior
from sojourn.estimation.joint.calibration import calibrated_precision, draw_cells, draw_excess, error_ratios
from sojourn.estimation.joint.dense import DETERMINED, DenseCells
from sojourn.estimation.joint.incidence import Incidence, lds_incidence
from sojourn.estimation.joint.linear import (
    DENSE_FLOWS,
    TRIAL,
    DelayCells,
    DelayMessages,
    DelayProblem,
    HeldOut,
    _add_held_out,
)
from sojourn.estimation.joint.messages import add_up, hold, mixture_prior, new_graph, normal_prior, sweep
from sojourn.estimation.joint.mixture import Mixture, learn_mixture, posterior
from sojourn.sketches.lds import LdsParameters

FLOWS = 400


def small_problem(spread: int, columns: int, seed: int = 3):
    random = np.random.default_rng(seed)
    flow_id = random.integers(0, 2**64, FLOWS, dtype=np.uint64)
    incidence = lds_incidence(LdsParameters(rows=4, columns=columns, spread=spread), flow_id)
    size = np.ceil(random.pareto(1.2, FLOWS) * 5) + 1
    variance = 4.0 + 9.0 / size
    kappa = np.full((FLOWS, 4), 9.0)
    noise = np.full(incidence.cells, 1e-3)
    weight = incidence.share * size[:, None]
    truth = draw_excess(variance, seed)
    observed = draw_cells(incidence, weight, truth, kappa, size, noise, seed + 1)
    return incidence, weight, size, variance, kappa, noise, truth, observed


def passed(incidence: Incidence, weight, size, variance, kappa, noise, observed, passes: int = 300, prior=None):
    given = {"kappa": kappa, "whole": size, "mean": np.zeros(FLOWS), "variance": variance}
    graph = new_graph(incidence, weight, observed, noise, **given)
    for _ in range(passes):
        change = sweep(graph, prior or normal_prior(variance), 0.5, 0.0)
        add_up(graph)
    return graph, change


def with_spare_edges(incidence: Incidence, weight):
    """The same flows with a second edge in each group, to no cell."""
    cell, twice = np.full((FLOWS, 8), -1), np.zeros((FLOWS, 8))
    cell[:, ::2], twice[:, ::2] = incidence.cell, weight
    return Incidence(cell, np.where(cell < 0, 0.0, 1.0), 4, incidence.cells), twice


def test_groups_of_one_cell_are_heard_as_groups_of_several_are() -> None:
    """With cells that take all packets of a flow, half of them, or none."""
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(1, 50)
    weight = weight * np.array([1.0, 1.0, 0.5, 0.5])
    incidence.cell[::7, 1] = -1
    one = np.array([1.0]), np.array([-1.0]), np.array([3.0])
    prior = mixture_prior(*one, scatter=variance, doubt=np.full(FLOWS, 0.01))
    single, change = passed(incidence, weight, size, variance, kappa, noise, observed, 5, prior)
    longer, spare = with_spare_edges(incidence, weight)
    grouped, same_change = passed(longer, spare, size, variance, kappa, noise, observed, 5, prior)
    near = {"rel": 1e-6, "abs": 1e-9}
    assert change == pytest.approx(same_change, **near)
    assert grouped.part_mean[:, ::2] == pytest.approx(single.part_mean, **near)
    for name in ("cell_mean", "cell_variance", "precision", "value"):
        assert getattr(grouped, name) == pytest.approx(getattr(single, name), **near)


def test_quiet_flows_are_not_visited() -> None:
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(1, 50)
    graph, _ = passed(incidence, weight, size, variance, kappa, noise, observed, 3)
    graph.change[:100] = -1.0
    before = graph.part_mean.copy()
    change = sweep(graph, normal_prior(variance), 0.5, 0.0)
    assert change > 0
    assert np.array_equal(graph.part_mean[:100], before[:100])
    assert not np.any(np.all(graph.part_mean[100:] == before[100:], axis=1))


@pytest.mark.parametrize(("spread", "columns"), [(1, 50), (3, 100)])
def test_a_mixture_of_one_normal_is_the_normal_prior(spread: int, columns: int) -> None:
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(spread, columns)
    one = np.array([1.0]), np.array([0.0]), np.array([4.0])
    prior = mixture_prior(*one, scatter=variance - 4.0, doubt=np.zeros(FLOWS))
    mixed, change = passed(incidence, weight, size, variance, kappa, noise, observed, 300, prior)
    normal, _ = passed(incidence, weight, size, variance, kappa, noise, observed)
    assert change < 1e-3
    means = [m.precision * m.value / (1 / variance + m.precision) for m in (mixed, normal)]
    assert means[0] == pytest.approx(means[1], abs=0.02)
    assert mixed.precision == pytest.approx(normal.precision, rel=0.05)


def textbook(incidence, weight, size, variance, kappa, noise, observed):
    """Posterior mean and variance by conditioning one big normal vector, with explicit loops."""
    cells = incidence.cells
    covariance = np.diag(noise.copy())
    cross = np.zeros((FLOWS, cells))
    starts = incidence.starts
    for f in range(FLOWS):
        whole = np.zeros(cells)
        for g in range(incidence.groups):
            own = np.zeros(cells)
            for e in range(starts[g], starts[g + 1]):
                own[incidence.cell[f, e]] += weight[f, e]
            covariance += kappa[f, g] * (np.diag(own) - np.outer(own, own) / size[f])
            whole += own
        covariance += variance[f] * np.outer(whole, whole)
        cross[f] = variance[f] * whole
    gain = np.linalg.solve(covariance, cross.T).T
    return gain @ observed, variance - np.einsum("fc,fc->f", gain, cross)


@pytest.mark.parametrize(("spread", "columns"), [(1, 12), (2, 20), (1, 50), (3, 100)])
def test_dense_solution_is_the_textbook_one(spread: int, columns: int) -> None:
    problem = small_problem(spread, columns)
    incidence, weight, size, variance, kappa, noise, _, observed = problem
    heard = np.ones(incidence.cells, np.bool_)
    said = DenseCells(incidence, weight, heard).posterior(observed, variance, kappa, size, noise)
    mean, left = textbook(incidence, weight, size, variance, kappa, noise, observed)
    assert 1 / (1 / variance + said.precision) == pytest.approx(left, rel=1e-5)
    assert said.precision * said.value / (1 / variance + said.precision) == pytest.approx(mean, rel=1e-4, abs=1e-4)
    assert said.scale == pytest.approx(1, abs=0.2)


def test_settled_messages_have_the_exact_means_and_near_variances() -> None:
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(1, 50)
    messages, _ = passed(incidence, weight, size, variance, kappa, noise, observed)
    mean, left = textbook(incidence, weight, size, variance, kappa, noise, observed)
    predicted = 1 / (1 / variance + messages.precision)
    assert predicted * messages.precision * messages.value == pytest.approx(mean, abs=1e-3)
    assert np.median(predicted / left) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("boast", [0.5, 1.0, 2.0])
def test_trials_repair_messages_that_are_too_sure_or_too_modest(boast: float) -> None:
    random = np.random.default_rng(4)
    variance = random.gamma(2, 2, 20_000)
    true_precision = random.gamma(0.5, 2, 20_000) + 1e-6
    means = []
    for _ in range(2):
        truth = random.standard_normal(20_000) * np.sqrt(variance)
        value = truth + random.standard_normal(20_000) / np.sqrt(true_precision)
        means.append((truth, value))
    claimed = boast * true_precision
    ratios = error_ratios(*means[0], claimed, variance)
    truth, value = means[1]
    moved, precision = calibrated_precision(value, claimed, variance, ratios)
    left = 1 / (1 / variance + precision)
    squares = (left * precision * moved - truth) ** 2 / left
    for claim in (claimed < 0.5, claimed >= 0.5):
        assert np.mean(squares[claim]) == pytest.approx(1, abs=0.15)


def test_messages_that_tell_nearly_nothing_are_not_blown_up() -> None:
    """They would be that under a wider prior, which another source may call for."""
    value, precision, variance = np.full(3, 5.0), np.array([1e-6, 1e-3, 1e-1]), np.ones(3)
    moved, repaired = calibrated_precision(value, precision, variance, np.full(8, 1.1))
    assert np.all(np.abs(moved) <= 2.001 * value)
    assert np.all(repaired < precision)
    assert np.all(repaired >= 0.4 * precision)


def test_drawn_cells_have_the_model_s_covariance() -> None:
    """A flow alone in the k cells of a row: parts add up to size × excess, whatever the split."""
    incidence = Incidence(np.array([[0, 1, 2]]), np.full((1, 3), 1 / 3), 1, 3)
    weight = np.full((1, 3), 4.0)
    parts = []
    for seed in range(300):
        truth = draw_excess(np.array([2.0]), seed)
        observed = draw_cells(incidence, weight, truth, np.array([[5.0]]), np.array([12.0]), np.zeros(3), seed + 1000)
        assert observed.sum() == pytest.approx(12 * truth[0])
        parts.append(observed - 4 * truth[0])
    assert np.var(parts) == pytest.approx(5 * 4 * (1 - 4 / 12), rel=0.15)


def test_cells_vary_as_the_graph_says_before_any_flow_is_visited() -> None:
    """Quiet flows are not visited again, so that what varies at first is what their neighbours go on hearing."""
    incidence, weight, size, variance, kappa, noise, _, _ = small_problem(4, 50)
    given = {"kappa": kappa, "whole": size, "mean": np.zeros(FLOWS), "variance": variance}
    graph = new_graph(incidence, weight, np.zeros(incidence.cells), noise, **given)
    squares = np.zeros(incidence.cells)
    draws = 200
    for seed in range(draws):
        excess = draw_excess(variance, seed)
        squares += draw_cells(incidence, weight, excess, kappa, size, noise, seed + draws) ** 2 / draws
    ratio = squares / (graph.cell_variance + noise)
    assert np.median(ratio) == pytest.approx(1, abs=0.05)


def test_messages_of_alike_flows_claim_what_settled_ones_do() -> None:
    """Where only packets vary, parts hardly move and passes end at once; a flow's packets are spread over its cells."""
    flows = 2 * DENSE_FLOWS
    random = np.random.default_rng(5)
    size = np.ceil(random.pareto(1.2, flows) * 5) + 1
    flow_id = random.integers(0, 2**64, flows, dtype=np.uint64)
    incidence = lds_incidence(LdsParameters(rows=1, columns=flows // 5, spread=8), flow_id)
    packets = incidence.share * size[:, None]
    none, count = np.zeros_like(packets), incidence.sums(packets, np.ones(flows))
    given = size, np.zeros(flows), np.zeros(incidence.cells), count, np.zeros(incidence.cells)
    problem = DelayProblem(DelayCells(incidence, packets, none, *given))
    variance, kappa, noise = problem._variances(0.0, 9.0)
    drawn = draw_cells(incidence, packets, draw_excess(variance, 1), kappa, problem.whole, noise, 2)
    claimed = problem._pass((drawn, np.zeros(0)), variance, kappa, noise, TRIAL).precision
    problem.begin_anew()
    settled = problem._graph(drawn, variance, kappa, noise)
    for _ in range(60):
        sweep(settled, normal_prior(variance), 0.5, 0.0)
        add_up(settled)
    assert np.quantile(claimed / settled.precision, [0.05, 0.5, 0.95]) == pytest.approx(1, abs=0.02)


def messages_of(value, precision, between, within, scatter) -> DelayMessages:
    return DelayMessages(np.array(value), np.array(precision), 0.0, between, within, np.array(scatter))


def test_cells_are_drawn_alike_in_one_block_and_in_many(monkeypatch) -> None:
    incidence, weight, size, _, kappa, noise, truth, _ = small_problem(3, 50)
    whole = draw_cells(incidence, weight, truth, kappa, size, noise, 1)
    monkeypatch.setattr(calibration, "BLOCK_FLOWS", 7)
    assert draw_cells(incidence, weight, truth, kappa, size, noise, 1) == pytest.approx(whole)


def test_posterior_quantiles_are_those_of_the_mixture() -> None:
    centre = np.linspace(-10, 10, 41)
    weight = np.where(np.abs(centre) > 7, 1.0, 0.01)
    mixture = Mixture(weight / weight.sum(), centre, 0.4)
    said = messages_of([1.0, -9.0, 3.0], [0.05, 4.0, 0.3], 50.0, 1.0, [0.5, 0.01, 0.2])
    median, low, high = posterior(said, mixture)
    grid = np.linspace(-15, 15, 60_001)
    for i in range(3):
        width = np.hypot(0.4, np.sqrt(said.scatter[i]))
        prior = norm.pdf(grid[:, None], centre, width) @ mixture.weight
        density = prior * norm.pdf(grid, said.value[i], said.precision[i] ** -0.5)
        below = np.cumsum(density) / density.sum()
        at = np.searchsorted(grid, [low[i], median[i], high[i]])
        assert below[at[1]] == pytest.approx(0.5, abs=0.01)
        assert below[at[2]] - below[at[0]] == pytest.approx(0.95, abs=0.01)
        equal_tails = np.diff(grid[np.searchsorted(below, [0.025, 0.975])])[0]
        assert high[i] - low[i] <= equal_tails + 0.1


def test_two_groups_of_flows_are_learned_as_two_peaks() -> None:
    random = np.random.default_rng(8)
    truth = np.where(random.uniform(size=3000) < 0.3, 8.0, -3.0)
    precision = random.gamma(1, 2, 3000) + 0.05
    value = truth + random.standard_normal(3000) / np.sqrt(precision)
    said = DelayMessages(value, precision, 0.0, 25.0, 0.0, np.full(3000, 1e-4))
    said, mixture = learn_mixture(said)
    assert mixture.weight[np.abs(mixture.centre - 2.5) < 3].sum() < 0.02
    assert mixture.weight[mixture.centre > 5].sum() == pytest.approx(0.3, abs=0.04)
    median, low, high = posterior(said, mixture)
    assert np.mean(np.abs(median - truth) < 0.5) > 0.95
    assert np.mean((low <= truth) & (truth <= high)) > 0.93
    assert len(mixture.centre) == delay_prior.COMPONENTS


def test_the_scale_is_that_of_cells_which_others_leave_open() -> None:
    """Two cells of one flow determine each other, a third is open: passes that end short of the first two say nothing
    of variances."""
    packets = np.array([[100.0, 100.0], [100.0, 0.0]])
    incidence = Incidence(np.array([[0, 1], [2, -1]]), np.array([[1.0, 1.0], [1.0, 0.0]]), 2, 3)
    size, count = np.full(2, 100.0), np.full(3, 100.0)
    none = np.zeros_like(packets)
    problem = DelayProblem(DelayCells(incidence, packets, none, size, np.zeros(2), np.zeros(3), count, np.zeros(3)))
    variance, kappa, noise = problem._variances(4.0, 9.0)
    graph = problem._graph(np.array([200.0, 201.0, 300.0]), variance, kappa, noise)
    alone = graph.cell_variance + noise
    for _ in range(10):
        sweep(graph, normal_prior(variance), 1.0, 0.0)
        add_up(graph)
    held_out = problem.held_out(graph, alone)
    assert held_out.scale == pytest.approx(300.0**2 / alone[2])
    assert held_out.score > np.log(1e3)


def test_held_out_predictions_add_up_as_their_definition_says() -> None:
    """Beside what numpy makes of the same columns, with cells that tell nothing and cells that others determine."""
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(1, 50)
    graph, _ = passed(incidence, weight, size, variance, kappa, noise, observed, 20)
    telling = np.arange(incidence.cells) % 5 > 0
    alone = np.where(np.arange(incidence.cells) % 3, graph.cell_variance, 1e9 * graph.cell_variance)
    found = HeldOut(*_add_held_out(graph, alone, telling))
    spread = graph.cell_variance + graph.noise
    square, is_open = graph.residual() ** 2 / spread, telling & (spread > DETERMINED * alone)
    assert found.scale == pytest.approx(square[is_open].mean())
    score = np.log(spread[telling]).mean() + np.log(square[telling].mean())
    assert found.score == pytest.approx(score)
    assert 0 < found.open_number < found.number < incidence.cells


def test_groups_of_unequal_lengths_are_heard_as_equal_ones_with_spare_edges_are() -> None:
    incidence, weight, size, variance, kappa, noise, _, observed = small_problem(1, 50)
    unequal = Incidence(incidence.cell, incidence.share, 3, incidence.cells, lengths=(1, 2, 1))
    spare = np.array([0, -1, 1, 2, 3, -1])
    cell, own = np.where(spare < 0, -1, incidence.cell[:, spare]), np.where(spare < 0, 0.0, weight[:, spare])
    padded = Incidence(cell, np.where(cell < 0, 0.0, 1.0), 3, incidence.cells)
    weight, own, kappa = weight / 2, own / 2, kappa[:, :3]
    short, change = passed(unequal, weight, size, variance, kappa, noise, observed, 5)
    long, same_change = passed(padded, own, size, variance, kappa, noise, observed, 5)
    assert unequal.by_group(weight) == pytest.approx(padded.by_group(own))
    assert change == pytest.approx(same_change, rel=1e-6)
    for name in ("cell_mean", "cell_variance", "precision", "value"):
        assert getattr(short, name) == pytest.approx(getattr(long, name), rel=1e-6, abs=1e-9)


def test_flows_that_are_held_keep_their_values_and_others_are_closer() -> None:
    """The means of three flows of four are known; the equations of the others have fewer unknowns."""
    incidence, weight, size, variance, kappa, noise, truth, observed = small_problem(1, 50)
    held = np.flatnonzero(np.arange(FLOWS) % 4)
    graphs = []
    for known in (held[:0], held):
        prior = normal_prior(variance)
        given = {"kappa": kappa, "whole": size, "mean": np.zeros(FLOWS), "variance": variance}
        graph = new_graph(incidence, weight, observed, noise, **given)
        hold(graph, prior, known, truth[known])
        for _ in range(100):
            sweep(graph, prior, 0.5, 0.0)
        graphs.append(graph)
    alone, beside = (m.precision * m.value / (1 / variance + m.precision) for m in graphs)
    assert np.array_equal(graphs[1].value[held], truth[held])
    rest = np.arange(FLOWS) % 4 == 0
    assert np.mean((beside - truth)[rest] ** 2) < 0.5 * np.mean((alone - truth)[rest] ** 2)
