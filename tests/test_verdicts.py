"""Verdicts of the video experiment: who is better, in what, and until when."""

import numpy as np

from phibe.experiments.report import Report
from phibe.experiments.video import run as video


def method(mse, frechet, psnr, ssim):
    scores = {"mse": mse / 100, "psnr_published": psnr, "ssim": ssim}
    return {"standard": scores, "adjusted": None, "frechet": {"standard": {"value": frechet}}}


def test_a_flow_is_better_only_in_the_measures_in_which_it_beats_both():
    methods = {
        "pfi": method(0.6637, 280.1, 21.78, 0.7254),
        "mcvd": method(0.8550, 307.3, 20.68, 0.6986),
        "phibe conditioned, euler": method(0.4405, 290.0, 23.56, 0.7254),
        "regression augmented, rk4": method(0.5, 227.5, 23.0, 0.7663),
        "persistence": method(0.1, 1.0, 30.0, 0.9),
    }
    report = Report("video", "smoke", {}, {"methods": methods}, 0.0, "cpu", {})
    assert video.flows(report) == ["phibe conditioned, euler", "regression augmented, rk4"]
    assert video.best(report) == "phibe conditioned, euler"
    assert video.nearest(report) == "regression augmented, rk4"
    assert video.by_euler(video.nearest(report)) == "regression augmented, euler"
    assert video.better(report, video.best(report)) == ["MSE", "PSNR"]  # as like as PFI, and no more
    assert video.better(report, "regression augmented, rk4") == ["MSE", "Fréchet", "PSNR", "SSIM"]
    assert video.cells(methods["mcvd"]) == ["0.8550", "307.3", "20.68", "0.6986", "–", "–", "–", "–"]


def test_when_a_method_falls_behind():
    still = [1.0, 2.0, 3.0, 4.0]
    assert video.falls_behind([2.0, 1.0, 2.0, 5.0], still) == 4  # behind at once does not count
    assert video.falls_behind([2.0, 1.0, 2.0, 3.0], still) is None
    assert video.falls_behind([2.0, 3.0, 4.0, 5.0], still) == 1


def test_drift_is_a_mean_over_the_frames_in_which_there_is_a_figure():
    entry = {"motion": {"drift": [1.0, None, 3.0, 8.0]}}
    assert video.drift(entry) == 4.0
    assert video.drift(entry, last=2) == 5.5
    assert np.isnan(video.drift({"motion": {"drift": [None, None]}}))
