"""Verdicts of the video experiment: who is better, in what, and until when."""

import numpy as np

from phibe.experiments.report import Report
from phibe.experiments.video import methods


def method(mse, frechet, psnr, ssim):
    scores = {"mse": mse / 100, "psnr_published": psnr, "ssim": ssim}
    return {"standard": scores, "adjusted": None, "frechet": {"standard": {"value": frechet}}}


def test_a_flow_is_better_only_in_the_measures_in_which_it_beats_both():
    measured = {
        "pfi": method(0.6637, 280.1, 21.78, 0.7254),
        "mcvd": method(0.8550, 307.3, 20.68, 0.6986),
        "phibe conditioned, euler": method(0.4405, 290.0, 23.56, 0.7254),
        "regression augmented, rk4": method(0.5, 227.5, 23.0, 0.7663),
        "persistence": method(0.1, 1.0, 30.0, 0.9),
    }
    report = Report("video", "smoke", {}, {"methods": measured}, 0.0, "cpu", {})
    assert methods.flows(report) == ["phibe conditioned, euler", "regression augmented, rk4"]
    assert methods.best(report) == "phibe conditioned, euler"
    assert methods.nearest(report) == "regression augmented, rk4"
    assert methods.by_euler(methods.nearest(report)) == "regression augmented, euler"
    assert methods.better(report, methods.best(report)) == ["MSE", "PSNR"]  # as like as PFI, and no more
    assert methods.better(report, "regression augmented, rk4") == ["MSE", "Fréchet", "PSNR", "SSIM"]
    assert methods.cells(measured["mcvd"]) == ["0.8550", "307.3", "20.68", "0.6986", "–", "–", "–", "–"]


def test_when_a_method_falls_behind():
    still = [1.0, 2.0, 3.0, 4.0]
    assert methods.falls_behind([2.0, 1.0, 2.0, 5.0], still) == 4  # behind at once does not count
    assert methods.falls_behind([2.0, 1.0, 2.0, 3.0], still) is None
    assert methods.falls_behind([2.0, 3.0, 4.0, 5.0], still) == 1


def test_drift_is_a_mean_over_the_frames_in_which_there_is_a_figure():
    entry = {"motion": {"drift": [1.0, None, 3.0, 8.0]}}
    assert methods.drift(entry) == 4.0
    assert methods.drift(entry, last=2) == 5.5
    assert np.isnan(methods.drift({"motion": {"drift": [None, None]}}))
