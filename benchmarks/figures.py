"""Frames a second of the figures generator on one thread, and how its films compare with real ones. Prints JSON.

`python benchmarks/figures.py [clips.npz]`: with a file of real clips (64 × 64, one array a clip, names as in KTH) the
same statistics of those stand beside them. Each is the median over clips."""

import json
import sys
import time

import numpy as np
import torch

from phibe.experiments.video.clips import Clips, read_clips
from phibe.experiments.video.drawing import ACTIONS
from phibe.experiments.video.figures import Figures, frame_times

FRAMES = {"walking": 100, "jogging": 56, "running": 41, "boxing": 92, "handwaving": 148, "handclapping": 108}
"""Frames of the median real clip."""
MOVING = 0.08
"""A pixel that differs by more than this from its median over the clip is called moving."""


def statistics(film: np.ndarray) -> dict[str, float]:
    """Of one clip (time, 64, 64): greys, motion, what persistence errs by (MSE in 1e-2), noise, period, speed."""
    still = np.median(film, 0)
    moving = np.abs(film - still) > MOVING
    quiet = ~(moving[1:] | moving[:-1])
    persistence = {
        f"persistence after {k}": 100 * float(((film[k:] - film[:-k]) ** 2).mean()) if len(film) > k else np.nan
        for k in (1, 5, 10, 30)
    }
    return {
        "mean": float(film.mean()),
        "contrast of the background": float(still.std()),
        "share of moving pixels": float(moving.mean()),
        "their contrast": float(np.abs(film - still)[moving].mean()) if moving.sum() > 20 else np.nan,
        **persistence,
        "noise": float(np.diff(film, axis=0)[quiet].std() / np.sqrt(2)),
        **gait(moving),
    }


def gait(moving: np.ndarray) -> dict[str, float]:
    """Height, pixels a frame, and frames from step to step, of who walks through the picture."""
    rows, columns = moving.any(2), moving.any(1)
    whole = (moving.sum((1, 2)) > 80) & ~columns[:, [0, 1, -2, -1]].any(1)
    if whole.sum() < 20:
        return {"height": np.nan, "speed": np.nan, "step": np.nan}
    when = np.flatnonzero(whole)
    ends = [np.flatnonzero(line)[[0, -1]] for line in columns[whole]]
    high = [np.flatnonzero(line)[[0, -1]] for line in rows[whole]]
    middle, breadth = np.mean(ends, 1), np.ptp(ends, 1)
    return {
        "height": float(np.median(np.ptp(high, 1))),
        "speed": abs(float(np.polyfit(when, middle, 1)[0])),
        "step": step(np.interp(np.arange(when[0], when[-1] + 1), when, breadth)),
    }


def step(breadth: np.ndarray) -> float:
    """The first lag at which the breadth of a silhouette is like itself again."""
    breadth = breadth - breadth.mean()
    lags = range(5, min(30, 2 * len(breadth) // 3)) if breadth.std() > 0.5 else range(0)
    with np.errstate(invalid="ignore"):  # of a silhouette that keeps its breadth there is none
        likeness = [float(np.corrcoef(breadth[k:], breadth[:-k])[0, 1]) for k in lags]
    peaks = [
        k for k, a, b, c in zip(lags[1:], likeness, likeness[1:], likeness[2:], strict=False) if a < b >= c and b > 0.3
    ]
    return float(peaks[0]) if peaks else np.nan


def table(clips: Clips, most: int) -> dict[str, float]:
    rows = [statistics(clips.frames(i)[:, 0].numpy()) for i in range(min(len(clips), most))]
    medians = {name: [row[name] for row in rows if not np.isnan(row[name])] for name in rows[0]}
    return {name: round(float(np.median(values)), 4) if values else None for name, values in medians.items()}


def speed(paths: int = 100) -> dict[str, float]:
    """Frames a second of processor time: what is drawn, and with the casting of the players."""
    start = time.process_time()
    scenes = Figures().stage(paths=paths, seed=0)
    staged = time.process_time()
    scenes.render()
    done = time.process_time()
    frames = scenes.phase.numel()
    return {"render": round(frames / (done - staged)), "stage and render": round(frames / (done - start))}


def main() -> None:
    torch.set_num_threads(1)
    report: dict = {"frames a second": speed()}
    real = read_clips(sys.argv[1]) if len(sys.argv) > 1 else None
    for action in ACTIONS:
        made = Figures(actions=(action,)).stage(paths=60, times=frame_times(FRAMES[action]), seed=1)
        report[action] = {"figures": table(made.clips(), 60)}
        if real is not None:
            report[action]["real"] = table(shuffled(real.where(actions=[action])), 60)
    print(json.dumps(report, indent=2))


def shuffled(clips: Clips) -> Clips:
    return clips[np.random.default_rng(0).permutation(len(clips))]


if __name__ == "__main__":
    main()
