"""Experiments: the smoke presets run every step; the committed results hold what the book says of them."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace

import pytest
import torch
from safetensors.torch import load_file

from phibe import OU, Flow
from phibe.experiments import EXPERIMENTS, experiment, ou, ou_mlp
from phibe.experiments.report import (
    ARTIFACTS,
    Experiment,
    Measured,
    Report,
    committed,
    committed_weights,
    findings,
    keep,
)
from phibe.experiments.theory_samples import Statement
from phibe.experiments.video.features import embedded
from phibe.linear.affine import AffineField
from phibe.metrics import velocity_error
from phibe.theory import flow_map, pushforward


@pytest.fixture(scope="module", params=EXPERIMENTS)
def smoke(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    return out, experiment(request.param).run("smoke", out=out)


@pytest.mark.slow
def test_a_report_is_what_was_written(smoke):
    out, report = smoke
    assert json_round_trip(Report.open(out)) == json_round_trip(report)
    assert findings([Report.open(out)]) == findings([report])
    assert json.loads((out / "config.json").read_text("utf8")) == json_round_trip(report).config


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(smoke, tmp_path):
    _, report = smoke
    again = experiment(report.experiment).run("smoke", out=tmp_path)
    assert untimed(again.results) == untimed(report.results)


def test_another_seed_gives_other_numbers(tmp_path):
    config = ou.AFFINE_OU.presets["smoke"]
    one, two = (
        ou.AFFINE_OU.run("smoke", out=tmp_path, config=replace(config, seeds=seeds)) for seeds in ((0, 1), (2, 3))
    )
    assert one["nonreversible"]["covariance_error"] != two["nonreversible"]["covariance_error"]


@dataclass(frozen=True)
class Draws:
    """So many `draws` of a normal number."""

    draws: int = 10
    seed: int = 0


def test_a_new_experiment_is_a_configuration_and_what_measures_with_it(tmp_path):
    def measure(config, fits):
        x = torch.randn(config.draws, generator=torch.Generator().manual_seed(config.seed))
        return Measured({"mean": float(x.mean()), "fits": str(fits)}, {"x": x})

    toy = Experiment("toy", {"smoke": Draws(), "laptop": Draws(1000)}, measure)
    report = toy.run("smoke", out=tmp_path, config=Draws(20, seed=3))
    x = load_file(tmp_path / "weights.safetensors")["x"]
    assert len(x) == 20 == report.config["draws"]
    assert Report.open(tmp_path)["mean"] == float(x.mean()) != toy.run("smoke", out=tmp_path)["mean"]
    assert report["fits"] == str(tmp_path / "fits")
    assert report.command == "phibe run toy --preset smoke --draws 20 --seed 3"
    with pytest.raises(ValueError, match="one of smoke, laptop; got 'paper'"):
        toy.run("paper", out=tmp_path)
    with pytest.raises(ValueError, match="one of ou_theory, .* got 'toy'"):
        experiment("toy")


def test_opening_a_folder_without_a_report_says_so(tmp_path):
    with pytest.raises(ValueError, match="no report"):
        Report.open(tmp_path)
    (tmp_path / "report.json").write_text("{}", encoding="utf8")
    with pytest.raises(ValueError, match="not a report"):
        Report.open(tmp_path)


@pytest.mark.slow
def test_kept_results_are_in_the_manifest(smoke, tmp_path, monkeypatch):
    out, report = smoke
    monkeypatch.setattr("phibe.experiments.report.ARTIFACTS", tmp_path)
    keep(out, report.experiment)
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf8"))
    assert f"{report.experiment}/report.json" in manifest


def test_the_committed_files_are_those_of_the_manifest():
    manifest = json.loads((ARTIFACTS / "manifest.json").read_text("utf8"))
    found = {str(p.relative_to(ARTIFACTS)) for p in ARTIFACTS.glob("*/*")}
    assert found == set(manifest)
    for name, digest in manifest.items():
        assert hashlib.sha256((ARTIFACTS / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("name", [folder.name for folder in ARTIFACTS.iterdir() if folder.is_dir()])
def test_the_committed_report_is_of_the_current_laptop_preset(name):
    report = committed(name)
    assert report.preset == "laptop"
    assert report.config == json.loads(json.dumps(asdict(experiment(name).presets["laptop"])))


def test_the_published_circulation_is_reproduced_from_graded_times():
    report = committed("affine_ou")
    assert abs(report["nonreversible"]["period"] / (2 * math.pi * math.sqrt(11)) - 1) < 0.01
    assert report["nonreversible"]["covariance_error"] < 0.03
    assert report["nonreversible"]["uniform"]["covariance_error"][2] > 1.0  # a uniform step of 0.01 does not do it


def test_the_committed_weights_give_the_committed_numbers():
    """Stored as means over neighbouring times and integrated by RK4, they reach the same covariance at t = 15."""
    weights = committed_weights("affine_ou")
    process = OU.nonreversible()
    parts = (weights[f"nonreversible.{part}"].double() for part in ("times", "matrices", "offsets"))
    field = AffineField(*parts)
    ticks = torch.cat([torch.zeros(1, dtype=torch.float64), field.times[field.times < 15], torch.tensor([15.0])])
    marginal = pushforward(process.marginal(0.0), *flow_map(Flow(field).velocity, ticks, 2, method="rk4"))
    B = process.stationary().covariance
    reported = torch.tensor(committed("affine_ou")["nonreversible"]["covariance"][-1], dtype=torch.float64)
    assert ou.relative(marginal.covariance[-1], reported) < 0.01
    assert ou.relative(marginal.covariance[len(ticks) // 20], B) > 0.1  # early on it is another distribution


def test_every_statement_of_the_paper_has_a_bound_that_holds_and_an_order_that_is_met():
    rows = [Statement(**row) for row in committed("ou_theory")["statements"]]
    assert len({row.where for row in rows}) >= 8
    for row in rows:
        assert row.ratio == pytest.approx(row.truth / row.bound)
        assert row.low <= row.value <= row.high
        if row.claimed == "below":
            assert 0 < row.high < 1, row
        elif row.stated:
            assert row.verdict == "reproduced", row


def test_no_moment_condition_holds_for_the_basis_that_has_the_field_of_an_ou_process():
    """Cubic features have sixth powers of a Gaussian in H_Ξ: K_G grows with the draws."""
    rows = [Statement(**row) for row in committed("ou_theory")["statements"]]
    growth = {row.system: row for row in rows if row.statement == "K_G is finite"}
    cubic = growth.pop("stationary OU, cubic")
    assert cubic.low > 1.25 > max(row.high for row in growth.values())


def test_the_mlp_converges_in_times_at_the_published_rate_and_in_paths_until_the_optimiser_limits_it():
    report = committed("ou")
    for key in ("by_times", "by_paths"):
        low, high = report[key]["interval"]
        assert low < report[key]["slope"] < high < 0
        assert len(report[key]["errors"][0]) == 5
    assert report["by_times"]["slope"] == pytest.approx(-1.0, abs=0.1)
    assert report["velocity_error"][0] < 0.05 * report["velocity_size"]


def test_where_data_are_few_the_empirical_objective_of_phibe_is_no_guide():
    """It is not bounded below: clipping and early stopping help there, and do not suffice; else they are not needed."""
    many, few = committed("ou")["unguarded"].values()
    guarded, not_guarded = few.values()
    assert max(map(max, many.values())) * 5 < min(guarded) < max(guarded) < min(not_guarded)


@pytest.mark.parametrize("name", ["affine_ou", "ou", "pendulum_states", "pendulum_images", "pendulum_real"])
def test_a_report_keeps_its_columns_apart_and_says_what_was_assumed(name):
    report = committed(name)
    assert report.protocol
    assert {claim.column for claim in report.claims} >= {"text", "best flow", "controls"}
    for claim in report.claims:
        assert claim.low <= claim.value <= claim.high
        assert bool(claim.verdict) == (claim.column != "controls")
        assert ("phibe" in claim.method) or claim.column not in ("text", "code")
        assert "regression" not in claim.method or claim.column == "controls"


def test_the_committed_mlp_is_the_one_of_the_report():
    report, reversible = committed("ou"), OU.reversible()
    flow = ou_mlp.restored(committed_weights("ou"), ou_mlp.MLP_OU.presets["laptop"])
    x = reversible.marginal(0.5).sample(4000, generator=torch.Generator().manual_seed(0))
    error = velocity_error(flow.velocity, reversible.velocity, x, 0.5).value
    assert error == pytest.approx(report["error_in_time"][report["times"].index(0.5)], rel=0.1)


def test_central_differences_train_better_networks_from_the_same_data():
    networks = committed("estimators")["networks"]
    assert networks["times"] == [21, 81, 321]
    phibe, symmetric = (torch.tensor(networks[name]["errors"]) for name in ("phibe", "symmetric"))
    assert bool((symmetric[0] < 0.1 * phibe[0]).all())
    assert bool((symmetric[2] <= phibe[2]).all())


def test_the_symmetric_flow_of_the_double_well_has_its_marginals():
    well = committed("nonlinear")["well"]
    ratios = {n: torch.tensor(well[n]["distances"]) / torch.tensor(well["floor"]) for n in ("symmetric", "phibe")}
    assert float(ratios["symmetric"].max()) < 2
    assert float(ratios["phibe"].max()) > float(ratios["symmetric"].max())


def untimed(results):
    """The same results without what a clock measured."""
    if not isinstance(results, dict):
        return results
    return {name: untimed(part) for name, part in results.items() if not name.endswith(("seconds", "milliseconds"))}


def json_round_trip(report: Report) -> Report:
    return Report(**json.loads(json.dumps(asdict(report))))


def test_the_figure_frechet_distance_ranks_every_corruption():
    report = committed("figure_features")
    assert embedded().identity == report["features"]
    for name, (mild, middle, severe) in report["distances"].items():
        assert report["floor"] < mild < middle < severe, name
        assert severe > 3 * report["floor"], name
    assert report["accuracy"] > 3 / 6 and report["speed_correlation"] > 0.8
