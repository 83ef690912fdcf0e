"""Algorithm 1, the worker's side, line by line (see README.md), in small runs on real data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhp.algorithms import Algorithm
from fedhp.engine.accounting import ESTIMATE_STEPS
from fedhp.exchange import NeighborMixing
from fedhp.learn.local import Samples, estimate, sample_variance
from fedhp.learn.params import Replica, layout_of, row_of
from fedhp.learn.task import Classification, initial_model
from fedhp.seeds import Purpose, generator
from fedhp.timing import PROBE_BATCHES
from fedhp.types import Dataset, Plan, Reports, RoundRecord
from paper import reference
from paper.tiny import engine_of, loop_of, tiny


@dataclass
class Round:
    """What could be seen of one round."""

    plan: Plan
    record: RoundRecord
    before: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    trained: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    mixed: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    reports: Reports


@pytest.fixture(scope="module")
def rounds() -> list[Round]:
    """Four rounds of FedHP among five workers, each re-planned from the outside."""
    seen = []
    with engine_of(tiny("fedhp", {"rounds": 4}, deadline="fill")) as engine:
        loop = loop_of(engine)
        assert isinstance(loop.algorithm, Algorithm)
        steps = loop.rounds()
        for round_index in range(1, 5):
            planned = loop._plan().planned  # algorithms are pure: nothing is changed
            assert planned.observation.round_index == round_index
            before = engine.shard.rows.models.double().numpy().copy()
            record = next(steps)
            seen.append(
                Round(
                    plan=planned.plan,
                    record=record,
                    before=before,
                    trained=engine.shard.rows.after.double().numpy().copy(),
                    mixed=engine.shard.rows.models.double().numpy().copy(),
                    reports=loop.planner.last_reports,
                )
            )
    return seen


def test_alg1_line2_workers_follow_the_plan(rounds: list[Round]) -> None:
    for each in rounds:
        assert isinstance(each.plan.exchange, NeighborMixing)
        assert each.plan.local_steps is not None
        assert each.record.local_steps.tolist() == each.plan.local_steps.tolist()
        assert each.record.links.tolist() == each.plan.exchange.topology.links.tolist()
    assert len({tuple(each.record.local_steps.tolist()) for each in rounds}) > 1


def test_alg1_line3_local_updating() -> None:
    """tau_i steps of Eq. (3) on the worker's own minibatches, by plain autograd."""
    experiment = tiny("fedhp", {"rounds": 1})
    with engine_of(experiment) as engine:
        record = next(loop_of(engine).rounds())
        prepared = engine.prepared
        for worker, part in enumerate(prepared.parts):
            module = initial_model(prepared.task, experiment.seed)
            weights = list(module.parameters())
            steps = int(record.local_steps[worker])
            rng = generator(experiment.seed, Purpose.BATCHES, worker, 1)
            picks = part[rng.integers(len(part), size=(steps, 8))]
            losses = []
            for batch in picks:
                outputs = module(engine.shard.rows.samples.inputs[batch])
                loss = functional.cross_entropy(outputs, engine.shard.rows.samples.targets[batch])
                slopes = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for weight, slope in zip(weights, slopes, strict=True):
                        weight.sub_(record.learning_rate * slope)
                losses.append(float(loss.detach()))
            expected, _ = row_of(module, prepared.layout)
            assert torch.allclose(engine.shard.rows.after[worker], expected, rtol=1e-4, atol=1e-5)
            assert record.train_loss[worker] == pytest.approx(np.mean(losses), rel=1e-4)


@dataclass
class Quadratic:
    """Half the mean squared error of a linear model: smoothness and variance are known."""

    inputs: Tensor
    metric_name = "minus the loss"

    def data(self) -> Dataset:
        """The inputs, with targets from -1 to 1."""
        inputs = self.inputs.numpy()
        targets = torch.linspace(-1, 1, len(inputs)).numpy()
        return Dataset("quadratic", inputs, targets, inputs, targets, classes=None)

    def model(self) -> nn.Module:
        """y = w x without a bias."""
        return nn.Linear(4, 1, bias=False)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1/2 mean (y - t)^2."""
        return 0.5 * (outputs.squeeze(1) - targets).pow(2).mean()

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """Higher is better."""
        return -float(self.loss(outputs, targets))


def quadratic_estimate(
    inputs: Tensor, before: Tensor, after: Tensor, probe: Tensor
) -> tuple[float, float, float]:
    task = Quadratic(inputs)
    data, module = task.data(), task.model()
    layout = layout_of(module, batch_norm="mixed")
    counters = torch.zeros(0, dtype=torch.int64)
    found = estimate(
        Replica(module, layout),
        task,
        Samples(torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_targets)),
        before=(before, counters),
        after=(after, counters),
        probe=probe,
        stop=lambda: False,
    )
    return found.smoothness, found.gradient_variance, found.start_loss


def test_alg1_line4_smoothness() -> None:
    """Inputs with covariance c I: the gradient is c-Lipschitz and exactly that, everywhere."""
    c = 2.25
    inputs = torch.eye(4).repeat(8, 1) * np.sqrt(4 * c)
    probe = torch.arange(32).reshape(PROBE_BATCHES, 4)
    before = torch.tensor([0.3, -1.0, 0.5, 2.0])
    for after in (torch.zeros(4), before + 0.01, before * 3):
        found, _, _ = quadratic_estimate(inputs, before, after, probe)
        assert found == pytest.approx(c, rel=1e-4)


def test_alg1_line4_eq13_smoothness_never_exceeds_the_lipschitz_constant() -> None:
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 4, generator=rng)
    probe = torch.arange(32).reshape(PROBE_BATCHES, 4)
    hessian = (inputs.T @ inputs / 32).double()
    values, vectors = torch.linalg.eigh(hessian)
    before = torch.randn(4, generator=rng)
    for k in range(4):
        after = before + vectors[:, k].float()
        found, _, _ = quadratic_estimate(inputs, before, after, probe)
        assert found == pytest.approx(float(values[k]), rel=1e-4)  # along an eigenvector
    for _ in range(20):
        found, _, _ = quadratic_estimate(inputs, before, torch.randn(4, generator=rng), probe)
        assert values[0] * 0.999 <= found <= values[-1] * 1.001


def test_alg1_line4_a_worker_that_did_not_move() -> None:
    """||dx|| = 0: the quotient is kept finite by max(||dx||, 1e-8)."""
    inputs = torch.eye(4).repeat(8, 1)
    here = torch.ones(4)
    probe = torch.arange(32).reshape(PROBE_BATCHES, 4)
    assert quadratic_estimate(inputs, here, here.clone(), probe)[0] == 0.0


def test_alg1_line5_gradient_variance() -> None:
    """Unbiased sample variance of three minibatch gradients at x before the steps."""
    rng = torch.Generator().manual_seed(2)
    inputs = torch.randn(64, 4, generator=rng)
    targets = torch.linspace(-1, 1, 64)
    probe = torch.randint(64, (PROBE_BATCHES, 6), generator=rng)
    before, after = torch.randn(4, generator=rng), torch.randn(4, generator=rng)
    _, found, start_loss = quadratic_estimate(inputs, before, after, probe)
    gradients = []
    for batch in probe[:3]:
        x, t = inputs[batch].double().numpy(), targets[batch].double().numpy()
        gradients.append(((x @ before.double().numpy() - t)[:, None] * x).mean(axis=0).tolist())
    assert found == pytest.approx(reference.sample_variance(gradients), rel=1e-5)
    assert found == pytest.approx(np.var(np.array(gradients), axis=0, ddof=1).sum(), rel=1e-5)
    whole = probe.reshape(-1)
    residual = inputs[whole] @ before - targets[whole]
    assert start_loss == pytest.approx(float(0.5 * residual.pow(2).mean()), rel=1e-5)


def test_alg1_line5_variance_is_unbiased() -> None:
    """The mean over many draws is the variance of the distribution, E||g - E g||^2."""
    rng = np.random.default_rng(3)
    draws = rng.normal(0, [1.0, 2.0, 0.5], size=(20_000, 3, 3))
    found = np.mean([sample_variance(torch.from_numpy(each)) for each in draws[:4000]])
    assert found == pytest.approx(1 + 4 + 0.25, rel=0.03)


def test_alg1_lines4_5_estimating_leaves_the_models_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    before, after = (row.clone(), counters.clone()), (row + 0.1, counters.clone())
    copies = [tensor.clone() for tensor in (*before, *after)]
    empty = np.zeros((1, 4), dtype=np.float32)
    labels = np.zeros(1, dtype=np.int64)
    found = estimate(
        Replica(module, layout),
        Classification(Dataset("d", empty, labels, empty, labels, 3), lambda: module),
        Samples(
            torch.randn(20, 4, generator=torch.Generator().manual_seed(4)), torch.arange(20) % 3
        ),
        before=before,
        after=after,
        probe=torch.arange(16).reshape(PROBE_BATCHES, 2),
        stop=lambda: False,
    )
    assert np.isfinite([found.smoothness, found.gradient_variance, found.start_loss]).all()
    assert all(torch.equal(a, b) for a, b in zip((*before, *after), copies, strict=True))


def test_alg1_lines4_5_every_second_round(rounds: list[Round]) -> None:
    for each in rounds:
        measured = each.record.round_index % 2 == 1
        assert (each.plan.estimate is not None) == measured
        for values in (each.record.smoothness, each.record.gradient_variance):
            assert np.isfinite(values).all() if measured else np.isnan(values).all()


def test_alg1_lines6_7_a_model_travels_each_way(rounds: list[Round]) -> None:
    for each in rounds:
        assert each.record.link_bytes.tolist() == [2 * 12_000_000 // 8] * len(each.record.links)


def test_alg1_line8_aggregation(rounds: list[Round]) -> None:
    for each in rounds:
        links = [(int(a), int(b)) for a, b in each.record.links]
        expected = reference.mix(each.trained.tolist(), links)
        np.testing.assert_allclose(each.mixed, expected, rtol=1e-4, atol=1e-5)


def test_alg1_line9_times_are_recorded() -> None:
    """Sum of the step times, mean step time, link times, Eq. (10) and (11), in a run."""
    experiment = tiny("fedhp", {"world": {"bandwidth": {"sharing": True, "latency": 0.1}}})
    with engine_of(experiment) as engine:
        loop, world = loop_of(engine), engine.prepared.world
        started = 0.0
        for record in loop.rounds():
            links = [(int(a), int(b)) for a, b in record.links]
            bandwidth = world.bandwidth.at(started)
            wires = reference.Wires(
                12e6, dict(enumerate(bandwidth.tolist())), sharing=True, latency=0.1
            )
            times = []
            for worker in range(5):
                took = world.devices.step_times(
                    worker, record.round_index, int(record.local_steps[worker])
                ).tolist()
                times.append(reference.worker_time(took, wires.slowest(worker, links)))
                assert record.step_time[worker] == pytest.approx(sum(took) / len(took))
            np.testing.assert_allclose(record.timing.worker_time, times, rtol=1e-12)
            expected = [wires.time(link, links) for link in links]
            np.testing.assert_allclose(record.link_time, expected, rtol=1e-12)
            assert record.timing.round_time == pytest.approx(reference.round_time(times))
            waiting = reference.mean_waiting_time(times)
            assert record.timing.mean_waiting_time == pytest.approx(waiting, abs=1e-12)
            started += reference.round_time(times)
            assert record.clock == pytest.approx(started, rel=1e-12)


def test_alg1_line9_estimators_are_charged_only_on_request() -> None:
    records = {}
    for charge in (False, True):
        experiment = tiny("fedhp", {"rounds": 2, "world": {"charge_estimators": charge}})
        with engine_of(experiment) as engine:
            records[charge] = list(loop_of(engine).rounds())
    free, charged = records[False][0], records[True][0]
    assert free.local_steps.tolist() == charged.local_steps.tolist()
    extra = charged.timing.compute_time - free.timing.compute_time
    np.testing.assert_allclose(extra, ESTIMATE_STEPS * free.step_time)


def test_alg1_line10_distances_are_measured_before_mixing(rounds: list[Round]) -> None:
    for each in rounds:
        models = each.trained.tolist()
        expected = [reference.distance(models, int(a), int(b)) for a, b in each.record.links]
        np.testing.assert_allclose(each.record.link_distance, expected, rtol=1e-6)
        np.testing.assert_allclose(each.reports.distance, expected, rtol=1e-6)


def test_alg1_line11_the_report(rounds: list[Round]) -> None:
    """mu_i, D_ij, L_i, sigma_i, and what the paper forgets: update norm and start loss."""
    for each in rounds:
        record, reports = each.record, each.reports
        assert reports.round_index == record.round_index
        assert reports.links.tolist() == record.links.tolist()
        np.testing.assert_array_equal(reports.step_time, record.step_time)
        np.testing.assert_array_equal(reports.smoothness, record.smoothness)
        np.testing.assert_array_equal(reports.gradient_variance, record.gradient_variance)
        norms = [
            reference.norm((after - before).tolist())
            for after, before in zip(each.trained, each.before, strict=True)
        ]
        np.testing.assert_allclose(reports.update_norm, norms, rtol=1e-5)
        assert np.isfinite(reports.start_loss).all() == (record.round_index == 1)


def test_alg1_line11_eq2_start_loss_is_that_of_the_common_model(rounds: list[Round]) -> None:
    """f_i(x^1) on 8 x 32 (here 8 x 8) own samples; all start not far above log(10)."""
    first = rounds[0].reports.start_loss
    assert first.min() > np.log(10) - 0.3
    assert first.max() < np.log(10) + 1
