"""The kernel peer: it approaches exact velocities as data grows, keeps paths apart, and says what it cannot do."""

import builtins

import pytest
import torch
from problems import normal

from phibe import OU, Trajectories
from phibe.experiments.baselines.kernel import fit_kernel
from phibe.metrics import velocity_error
from phibe.systems.sde import rotating_well


def stationary(A, S):
    marginal = OU(A, S).stationary()
    return OU(A, S, m0=marginal.mean, C0=marginal.covariance)


TURNING = stationary([[-1.0, -1.5], [1.5, -1.0]], torch.eye(2))


def fit_error(system, data, **options):
    """‖v̂ − v‖ over the stationary distribution, and ‖v‖, the error of a field that is zero (persistence)."""
    marginal = system.stationary() if isinstance(system, OU) else system.stationary
    x = marginal.sample(4000, generator=torch.Generator().manual_seed(7))
    truth = lambda z, t: system.velocity(z, 0.0)  # noqa: E731
    fitted = velocity_error(fit_kernel(data, **options).velocity, truth, x, 0.0).value
    return fitted, velocity_error(lambda z, t: 0 * z, truth, x, 0.0).value


def observe(system, transitions, step, seed=1):
    times = torch.arange(transitions // 100 + 1, dtype=torch.float64) * step
    return system.simulate(paths=100, times=times, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "step", "bounds"),
    [(TURNING, 0.02, (0.4, 0.2)), (rotating_well(), 0.01, (1.6, 1.05))],
    ids=["ou", "well"],
)
def test_more_data_brings_the_field_closer_to_the_exact_one(system, step, bounds):
    (few, size), (many, _) = (fit_error(system, observe(system, n, step)) for n in (20_000, 200_000))
    assert many < 0.8 * few
    assert few < bounds[0] < size
    assert many < bounds[1]


def test_in_detailed_balance_drift_and_score_cancel():
    line = stationary([[-1.0]], [[1.0]])
    data = observe(line, 100_000, 0.05)
    error, size = fit_error(line, data)
    assert size < 1e-12
    assert error < 0.1 < float(data.states.std())  # the drift alone is −x


def test_no_increment_is_counted_from_one_path_to_the_next():
    """Pairs of observations, each a path of its own, which would be nonsense as one series."""
    data = TURNING.simulate(paths=40_000, times=[0.0, 0.05], seed=2)
    joined = Trajectories(data.states.reshape(1, -1, 2), torch.arange(80_000, dtype=torch.float64) * 0.05)
    assert fit_error(TURNING, data, bandwidth=0.3)[0] < 0.4
    assert fit_error(TURNING, joined, bandwidth=0.3)[0] > 2.0


def test_ragged_paths_are_read_to_their_ends_only():
    data = TURNING.simulate(paths=4000, times=torch.arange(11) * 0.05, seed=2)
    lengths = torch.randint(2, 12, (4000,), generator=torch.Generator().manual_seed(0))
    states = data.states.clone()
    states[torch.arange(11) >= lengths[:, None]] = float("nan")
    assert fit_error(TURNING, Trajectories(states, data.times, lengths), bandwidth=0.3)[0] < 0.4


def test_what_the_kernels_cannot_do_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"one or two coordinates.*got \(3,\)"):
        fit_kernel(Trajectories(normal(2, 5, 3), torch.arange(5)))
    with pytest.raises(ValueError, match="equal time steps; they go from 1 to 2"):
        fit_kernel(Trajectories(normal(2, 3, 1), [0.0, 1.0, 3.0]))
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "kramersmoyal":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="needs the package kramersmoyal: pip install kramersmoyal"):
        fit_kernel(observe(TURNING, 200, 0.1))
