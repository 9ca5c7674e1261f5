"""Video of real people: the video experiment on clips of one's own, such as those of KTH."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phibe.experiments.report import Report
from phibe.experiments.video import run as video
from phibe.experiments.video.run import Config

CONFIGS = {
    "smoke": replace(video.CONFIGS["smoke"], conditioned=("regression",), augmented=(), every=5, kept=False),
    "laptop": replace(
        video.CONFIGS["laptop"], data="data/kth_clips.npz", validation=0.1, test=0.2, every=5, kept=False
    ),
    "paper": replace(video.CONFIGS["paper"], every=5, kept=False),
}


def run(preset: str = "laptop", *, out: Path | None = None, config: Config | None = None) -> Report:
    """The same as `video`; the clips are not part of the project, the report with a few clip strips is. The smoke
    preset clips figures instead."""
    return video.run(preset, out=out, config=config or CONFIGS[preset], name="video_real")
