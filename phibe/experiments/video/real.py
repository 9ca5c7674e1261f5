"""Video of real people: the video experiment on clips of one's own, such as those of KTH.

The clips are not part of the project, the report with a few film strips is. The smoke preset uses drawn figures.
"""

from __future__ import annotations

from dataclasses import replace

from phibe.experiments.report import Experiment
from phibe.experiments.video import run as video

CONFIGS = {
    "smoke": replace(video.CONFIGS["smoke"], conditioned=("regression",), augmented=(), every=5, kept=False),
    "laptop": replace(
        video.CONFIGS["laptop"], data="data/kth_clips.npz", validation=0.1, test=0.2, every=5, kept=False
    ),
    "paper": replace(video.CONFIGS["paper"], every=5, kept=False),
}

VIDEO_REAL = Experiment("video_real", CONFIGS, video.measure, video.plan_video)
