"""A measured double pendulum: the state experiment on sixteen recorded runs, with friction.

The files are not part of the project; the report is, and a flow that forecasts any run that was recorded in the same
way. Read next: `phibe/experiments/turbulence/run.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from phibe.experiments import plan
from phibe.experiments.downloads import sha256_of
from phibe.experiments.pendulum.acrobot import Acrobot
from phibe.experiments.pendulum.images import AIM
from phibe.experiments.pendulum.measured import RATE, file_of, open_run, ragged, write_markers
from phibe.experiments.pendulum.states import CANDIDATES, INPUTS, SMOKE_FLOWS, FlowConfig
from phibe.experiments.pendulum.stretches import (
    TRIVIAL,
    Mean,
    Scores,
    Stretches,
    averaged,
    by_flow,
    joined,
    mean_of,
    means_at,
    measured,
    score,
)
from phibe.experiments.report import (
    Choice,
    Claim,
    Experiment,
    Measured,
    MissingData,
    Protocol,
    committed,
    committed_weights,
    in_half,
    verdict,
)
from phibe.experiments.training import fit_one, network_of, run_all, seeded
from phibe.flow import Flow
from phibe.networks.mlp import ResidualMLP
from phibe.networks.network import Normalised
from phibe.training.config import FitConfig
from phibe.training.runs import Fitted
from phibe.trajectories import Trajectories

SIMULATED = "simulated"
WHERE = "beyond the paper: a measured pendulum"
AFTER = 0.25
"""Seconds after which a forecast is asked whether it follows the truth, by the same limit as for images."""


@dataclass(frozen=True)
class Config(FlowConfig):
    """`folder` holds the runs 0.csv.gz, 1.csv.gz, …, or is 'simulated' for a few of the Acrobot; every `stride`-th
    row is an observation. The flows behind *text* and *best flow* are trained with each of `seeds`, the latter also
    without each of `folds` groups of runs; `workers` at a time. Forecasts last `horizon` s, and `decay` s for the loss
    of speed."""

    folder: str = "data/ibm_double_pendulum"
    train: tuple[int, ...] = tuple(range(12))
    validation: tuple[int, ...] = (12, 13)
    test: tuple[int, ...] = (14, 15)
    folds: int = 4
    stride: int = 4
    integrators: tuple[str, ...] = ("euler", "rk4", "leapfrog", "filtered")
    width: int = 128
    epochs: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)
    horizon: float = 1.0
    decay: float = 10.0
    workers: int = 2

    @property
    def runs(self) -> tuple[int, ...]:
        return (*self.train, *self.validation, *self.test)


PRESETS = {
    "smoke": Config(
        folder=SIMULATED,
        train=(0, 1),
        validation=(2,),
        test=(3,),
        folds=2,
        seeds=(0, 1),
        workers=1,
        horizon=0.2,
        decay=0.5,
        **SMOKE_FLOWS | {"integrators": ("euler",), "training": FitConfig(batch=64, evaluate_every=5)},
    ),
    "laptop": Config(),
    "paper": Config(width=256, epochs=50),
}
PROTOCOL = (
    Protocol(
        "data",
        "1,000 simulated paths, 8 s at 30 frames a second, 80/20 by path",
        "",
        "recorded runs with friction, 45 s at 100 observations a second: twelve to train, two to choose, two to test",
    ),
    Protocol(
        "states",
        "angles and angular velocities",
        "",
        "from marker positions, smoothed over 27.5 ms: the start of any forecast knows 12.5 ms of what follows",
    ),
    Protocol(
        "network",
        "residual MLP, width 256, two blocks, state and time",
        "SiLU",
        "width 128; sines and cosines, as these pendulums turn over by the dozen; no time, as forecasts start anywhere",
    ),
    Protocol(
        "training",
        "Adam, rate 1e-3, 50 epochs",
        "batches of 512, gradients clipped at 1, the weights of the best validation objective",
        "5 epochs, the rate falls as a cosine; three seeds of text and best flow, one of the control",
    ),
    Protocol(
        "generation",
        "forward Euler, one step a frame",
        "velocities bounded by 150 rad/s",
        "best flow: objective and integrator by validation",
    ),
    Protocol(
        "leaving runs out",
        "",
        "",
        "each run is forecast by a flow of ten others, with two more for the best weights; one seed; objective and "
        "integrator are those chosen above, by two of these runs",
    ),
    Protocol("authors' code", "", "", "has no such experiment: not run"),
)


# -- the run of the experiment -----------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A training: objective and seed, and the fold of the runs that it leaves out, if it is not the test runs."""

    objective: str
    seed: int = 0
    fold: int | None = None

    def split(self, config: Config) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Runs to train on, to find the best weights on, and to forecast."""
        if self.fold is None:
            return config.train, config.validation, config.test
        left_out, few = config.runs[self.fold :: config.folds], len(config.validation)
        others = [number for number in config.runs if number not in left_out]
        return others[few:], others[:few], left_out


def measure(config: Config, fits: Path) -> Measured:
    """Read, train, choose on the validation runs, forecast the test runs, and every run by flows of others."""
    folder = _folder(config, fits)
    pieces = {number: open_run(file_of(folder, number)) for number in config.runs}
    runs = {number: _stretches(pieces[number], config) for number in config.runs}
    flows = _learn_all([Fit(objective) for objective in config.objectives], pieces, config=config, fits=fits)
    choice = _choose(flows, [runs[number] for number in config.validation], config)
    columns = {"text": "phibe, euler", "best flow": choice.chosen, "controls": "regression, euler"}
    best = _parts(choice.chosen)[0]
    more = [Fit(objective, seed) for objective in dict.fromkeys(("phibe", best)) for seed in config.seeds[1:]]
    more += [Fit(best, 0, fold) for fold in range(config.folds)]
    flows |= _learn_all(more, pieces, config=config, fits=fits)

    test = [runs[number] for number in config.test]
    scores = {name: score(forecast, test) for name, forecast in TRIVIAL.items()}
    for name in columns.values():
        objective, method = _parts(name)
        seeds = [flow for fit, flow in flows.items() if fit.objective == objective and fit.fold is None]
        scores[name] = averaged([score(by_flow(flow, method), test) for flow in seeds])
    left_out = _leave_out(flows, choice.chosen, runs, config)
    claims = _claims(columns, scores, test, config)
    claims += _claims({"best flow": choice.chosen}, left_out, [*runs.values()], config, ", leaving runs out")
    train = torch.cat([piece for number in config.train for piece in pieces[number]])
    results = {
        "train_seconds": len(train) / RATE,
        "speed": train[:, 2:].std(0).tolist(),
        "times": _times(test[0].short, config),
        "decay_times": _times(test[0].long, config),
        "measured_speed": measured(test).summary()["speed"],
        "methods": {name: some.summary() for name, some in scores.items()},
        "left_out": {name: some.summary() for name, some in left_out.items()},
        "minus_regression": means_at(scores[choice.chosen].minus(scores["regression, euler"]), test[0].step),
    }
    weights = in_half("best", network_of(flows[Fit(best)]).state_dict())
    files = [file_of(folder, number) for number in config.runs]
    calls = {"euler": 1.0, "rk4": 4.0, "leapfrog": 1.0, "filtered": 1.0}
    return Measured(results, weights, claims, [choice], {file.name: sha256_of(file) for file in files}, calls)


def _parts(name: str) -> tuple[str, str]:
    """Objective and integrator."""
    objective, _, method = name.partition(", ")
    return objective, method


def _choose(flows: dict[Fit, Flow], runs: Sequence[Stretches], config: Config) -> Choice:
    """Objective and integrator of the best flow, by the mean pose error over the horizon."""
    scores = {
        f"{fit.objective}, {method}": score(by_flow(flow, method), runs, slowing=False)
        for fit, flow in flows.items()
        if fit.objective in CANDIDATES
        for method in config.integrators
    }
    errors = {name: float(torch.cat([*some.errors])[:, 1:].mean()) for name, some in scores.items()}
    return Choice("objective and integrator of the best flow", f"degrees, mean over {config.horizon:g} s", errors)


def _leave_out(flows: dict[Fit, Flow], chosen: str, runs: dict[int, Stretches], config: Config) -> dict[str, Scores]:
    """Forecasts of each run by a flow that has not seen it, beside trivial ones; the runs in their order."""
    objective, method = _parts(chosen)
    by_run: dict[int, Scores] = {}
    for fit in (Fit(objective, 0, fold) for fold in range(config.folds)):
        numbers = fit.split(config)[2]
        by_run |= zip(numbers, score(by_flow(flows[fit], method), [runs[n] for n in numbers]).parts(), strict=True)
    trivial = {name: score(forecast, [*runs.values()]) for name, forecast in TRIVIAL.items()}
    return {chosen: joined([by_run[number] for number in runs]), **trivial}


# -- data and fits -----------------------------------------------------------------------------------------------------


def _folder(config: Config, fits: Path) -> Path:
    """The folder of the runs; without them an error that says where they come from."""
    if config.folder == SIMULATED:
        return _simulated(fits.parent / "markers", config)
    folder = Path(config.folder)
    if missing := [str(number) for number in config.runs if not file_of(folder, number).exists()]:
        raise MissingData(
            f"This experiment needs the runs {min(config.runs)}.csv to {max(config.runs)}.csv (or .csv.gz) of IBM's "
            f'data set "Double Pendulum Chaotic" (CDLA-Permissive-1.0) in the folder {config.folder!r}; '
            f"{', '.join(missing)} are not there. Fetch them and pass `--folder`; `--preset smoke` runs on simulated "
            "ones."
        )
    return folder


def _simulated(folder: Path, config: Config) -> Path:
    """Files of the same form, of the noisy Acrobot at 400 rows a second."""
    times = torch.arange(600, dtype=torch.float64) / RATE
    data = Acrobot().simulate(paths=len(config.runs), times=times, substeps=1, seed=config.seed)
    for number, path in zip(config.runs, data.states, strict=True):
        write_markers(folder / f"{number}.csv", path)
    return folder


def _stretches(pieces: Sequence[Tensor], config: Config) -> Stretches:
    return Stretches(pieces, stride=config.stride, horizon=config.horizon, decay=config.decay)


def _learn_all(todo: Sequence[Fit], pieces: dict[int, list[Tensor]], *, config: Config, fits: Path) -> dict[Fit, Flow]:
    """All of these flows, `workers` at a time."""
    learn_one = partial(learn, pieces, config=config, fits=fits)
    jobs = [partial(learn_one, fit) for fit in todo]
    run_all(jobs, workers=config.workers, accelerator=config.training.accelerator)
    return {fit: learn_one(fit) for fit in todo}


def learn(pieces: dict[int, list[Tensor]], fit: Fit, *, config: Config, fits: Path) -> Flow:
    """A residual MLP that sees sines and cosines and no time; read from its folder if that is there."""
    train, validation, _ = (
        _observed([piece for number in numbers for piece in pieces[number]], config.stride)
        for numbers in fit.split(config)
    )
    network = _network(config.width, config.blocks, seed=fit.seed)
    steps = math.ceil(config.epochs * int(_lengths(train).sum()) / config.training.batch)
    return fit_one(
        train,
        Normalised.fit(network, train).keep(slice(0, 2)),
        fit.objective,
        config=replace(config.training, steps=steps, seed=fit.seed),
        out=fits / "-".join(str(part) for part in fit if part is not None),
        held_out=validation,
    )


def _observed(pieces: Sequence[Tensor], stride: int) -> Trajectories:
    """Every row starts a transition of `stride` rows: the pieces observed from the first row, from the second, …"""
    return ragged([piece[offset:].float() for piece in pieces for offset in range(stride)]).coarsen(stride)


def _lengths(runs: Trajectories) -> Tensor:
    assert runs.lengths is not None
    return runs.lengths


def _network(width: int, blocks: int, *, seed: int = 0) -> ResidualMLP:
    with seeded(seed):
        return ResidualMLP((4,), width=width, blocks=blocks, **INPUTS["circles"])


def committed_flow() -> Flow:
    """The best flow of the laptop run, which comes with the project, with its integrator."""
    report = committed("pendulum_real")
    velocity = Normalised(_network(report.config["width"], report.config["blocks"]), (4,))
    velocity.load_state_dict(committed_weights("pendulum_real", "best"))
    return Flow(Fitted(velocity), None, report.config["stride"] / RATE, method=_parts(report.choices[0].chosen)[1])


# -- measures ----------------------------------------------------------------------------------------------------------


def _times(stretches: Tensor, config: Config) -> list[float]:
    return [k * config.stride / RATE for k in range(stretches.shape[1])]


def _claims(
    columns: dict[str, str], scores: dict[str, Scores], runs: Sequence[Stretches], config: Config, how: str = ""
) -> list[Claim]:
    """Of each method on the runs: does it follow, does it know more than a constant velocity, does it lose speed?"""
    after, end = min(AFTER, config.horizon), config.horizon
    truth = measured(runs).late()
    typical, claims = float(torch.cat(truth).mean()), []
    for column, name in [*columns.items(), *(("controls", name) for name in TRIVIAL)]:
        about = "a forecast follows the truth", f"pose error after {after:g} s, degrees{how}"
        claims.append(_claim(column, name, about, scores[name].after(after), "below", AIM))
        if name != "constant velocity":
            gaps = [gap[:, -1] for gap in scores[name].minus(scores["constant velocity"])]
            about = about[0], f"pose error after {end:g} s minus that of constant velocity, degrees{how}"
            claims.append(_claim(column, name, about, gaps, "below"))
        if name not in TRIVIAL:
            late = [(own - true) / typical for own, true in zip(scores[name].late(), truth, strict=True)]
            about = (
                "friction is learnt",
                f"end speed in the last of {config.decay:g} s over the measured one, minus 1{how}",
            )
            claims.append(_claim(column, name, about, late, "near", tolerance=0.1))
    return claims


def _claim(
    column: str,
    method: str,
    about: tuple[str, str],
    values: Sequence[Tensor],
    claimed: Literal["below", "near"],
    reference: float = 0.0,
    *,
    tolerance: float = 0.0,
) -> Claim:
    """As `judged`, of stretches grouped by run."""
    value, low, high = mean_of(values)
    said = "" if column == "controls" else verdict((low, high), claimed, reference, tolerance=tolerance)
    return Claim(WHERE, about[0], column, method, about[1], value, low, high, said)


# -- runs that nobody here has seen ------------------------------------------------------------------------------------


def evaluate_files(files: Sequence[str | Path]) -> dict[str, Any]:
    """What the committed flow is worth on recorded runs, files of marker positions: pose errors beside those of trivial
    forecasts, and the speed that is left; means with 95 % intervals over the stretches, grouped by file."""
    report = committed("pendulum_real")
    config = Config(**{name: report.config[name] for name in ("stride", "horizon", "decay")})
    runs = [_enough(file, config) for file in files]
    name, flow = report.choices[0].chosen, committed_flow()
    forecasts = {name: by_flow(flow, flow.method), **TRIVIAL}
    scores = {method: score(forecast, runs) for method, forecast in forecasts.items()}
    known = [digest for name, digest in report.data.items() if int(name.split(".")[0]) in report.config["train"]]
    return {
        "files": [str(file) for file in files],
        "trained_on": [str(file) for file in files if sha256_of(Path(file)) in known],
        "stretches": sum(len(run.short) for run in runs),
        "flow": name,
        "degrees": {method: means_at(some.errors, some.step) for method, some in scores.items()},
        "speed": _slowing(runs, scores[name], config) if any(len(run.long) for run in runs) else None,
    }


def _enough(file: str | Path, config: Config) -> Stretches:
    run = _stretches(open_run(file), config)
    if len(run.short) < 2:
        raise ValueError(
            f"{file} is too short: needs two stretches of {config.horizon:g} s without a gap, at {RATE:g} rows a "
            f"second; has {len(run.short)}."
        )
    return run


def _slowing(runs: Sequence[Stretches], scores: Scores, config: Config) -> dict[str, Any]:
    """Speeds of the lower end in the first and the last second of the long stretches, measured and by the flow."""
    truth = measured(runs)
    first = replace(truth, speeds=[speed[:, : round(1 / truth.step)] for speed in truth.speeds])
    ends = {"first": first, "last": truth, "last_by_flow": scores}
    means = {name: mean_of(some.late()) for name, some in ends.items()}
    return {"seconds": config.decay, "stretches": sum(map(len, truth.speeds)), **means}


def evaluation_text(found: dict[str, Any]) -> str:
    """The same as a table."""
    rows = list(found["degrees"].items())
    count = f"{len(found['files'])} runs, " if len(found["files"]) > 1 else ""
    lines = [
        f"{count}{found['stretches']} stretches; pose error in degrees after so many seconds, 95 % intervals:",
        f"{'':18}" + "".join(f"{lead + ' s':>22}" for lead in rows[0][1]),
        *(f"{method:18}" + "".join(f"{_shown(mean):>22}" for mean in by_lead.values()) for method, by_lead in rows),
    ]
    if found["trained_on"]:
        lines.append(f"The flow was trained on {', '.join(found['trained_on'])}.")
    if speed := found["speed"]:
        lines += [
            f"speed of the lower end in lengths of the first link a second, {speed['stretches']} stretches of "
            f"{speed['seconds']:g} s:",
            f"measured, first second {_shown(speed['first'])}; last second {_shown(speed['last'])}, "
            f"by the flow {_shown(speed['last_by_flow'])}",
        ]
    return "\n".join(lines)


def _shown(mean: Mean) -> str:
    return f"{mean.value:.1f} [{mean.low:.1f}, {mean.high:.1f}]"


def plan_real(config: Config) -> plan.Needs:
    """Steps by the published length of the training runs, which the committed report knows."""
    simulated, runs = config.folder == SIMULATED, len(config.runs)
    known = committed("pendulum_real")
    rows = 600 if simulated else known["train_seconds"] * RATE / len(known.config["train"])
    found = sum(file.stat().st_size for file in Path(config.folder).glob("*.csv*")) / 2**20
    source = "simulated here" if simulated else 'IBM, "Double Pendulum Chaotic" (CDLA-Permissive-1.0)'
    data = [plan.Data(f"{runs} runs of marker positions", found, source, "" if simulated else config.folder)]
    size = {"width": config.width, "blocks": config.blocks, **INPUTS["circles"]}
    many = len(config.seeds)
    count = {"phibe": many, "symmetric": many + config.folds}
    return plan.Needs(
        data,
        [
            plan.training(
                f"{objective}, residual MLP {config.width} × {config.blocks}",
                partial(plan.velocity, "residual", (4,), objective, **size),
                (4,),
                config.training,
                steps=math.ceil(config.epochs * rows * len(config.train) / config.training.batch),
                count=count.get(objective, 1),
            )
            for objective in config.objectives
        ],
    )


PENDULUM_REAL = Experiment("pendulum_real", PRESETS, measure, plan_real, PROTOCOL)
