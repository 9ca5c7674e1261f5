"""Verdicts of the video experiment: who is better, in what, and until when."""

import numpy as np

from phibe.experiments import video_verdicts as verdicts
from phibe.experiments.report import Report


def method(mse, frechet, psnr, ssim, evaluations=1):
    scores = {"mse": mse / 100, "psnr_published": psnr, "ssim": ssim}
    found = {"standard": scores, "adjusted": None, "frechet": {"standard": {"value": frechet}}}
    return found | {"evaluations": evaluations}


def test_a_flow_is_better_only_in_the_measures_in_which_it_beats_both():
    methods = {
        "pfi": method(0.6637, 280.1, 21.78, 0.7254),
        "mcvd": method(0.8550, 307.3, 20.68, 0.6986),
        "phibe conditioned, euler": method(0.4405, 290.0, 23.56, 0.7254),
        "regression augmented, rk4": method(0.5, 227.5, 23.0, 0.7663),
        "persistence": method(0.1, 1.0, 30.0, 0.9),
    }
    report = Report("video", "smoke", {}, {"methods": methods}, 0.0, "cpu", {})
    assert verdicts.flows(report) == ["phibe conditioned, euler", "regression augmented, rk4"]
    assert verdicts.best(report) == "phibe conditioned, euler"
    assert verdicts.nearest(report) == "regression augmented, rk4"
    assert verdicts.better(report, verdicts.best(report)) == ["MSE", "PSNR"]  # as like as PFI, and no more
    assert verdicts.better(report, "regression augmented, rk4") == ["MSE", "Fréchet", "PSNR", "SSIM"]
    assert verdicts.cells(methods["mcvd"]) == ["0.8550", "307.3", "20.68", "0.6986", "–", "–", "–", "–"]


def test_when_a_method_falls_behind():
    still = [1.0, 2.0, 3.0, 4.0]
    assert verdicts.falls_behind([2.0, 1.0, 2.0, 5.0], still) == 4  # behind at once does not count
    assert verdicts.falls_behind([2.0, 1.0, 2.0, 3.0], still) is None
    assert verdicts.falls_behind([2.0, 3.0, 4.0, 5.0], still) == 1


def test_drift_is_a_mean_over_the_frames_in_which_there_is_a_figure():
    entry = {"motion": {"drift": [1.0, None, 3.0, 8.0]}}
    assert verdicts.drift(entry) == 4.0
    assert verdicts.drift(entry, last=2) == 5.5
    assert np.isnan(verdicts.drift({"motion": {"drift": [None, None]}}))


def test_of_flows_that_are_equally_good_the_cheapest_is_the_best():
    methods = {
        "regression conditioned, rk4": method(0.564, 1.0, 1.0, 1.0, evaluations=4),
        "regression conditioned, euler": method(0.567, 1.0, 1.0, 1.0),
        "symmetric conditioned, euler": method(0.572, 1.0, 1.0, 1.0),
    }
    report = Report("video", "smoke", {}, {"methods": methods}, 0.0, "cpu", {})
    assert verdicts.best(report) == "regression conditioned, euler"
    methods["symmetric conditioned, euler"]["standard"]["mse"] = 0.5 / 100
    assert verdicts.best(report) == "symmetric conditioned, euler"
