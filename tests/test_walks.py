"""How many files a reader passes on the way through the package."""

import sys
from pathlib import Path

import torch

import phibe

ROOT = Path(phibe.__file__).parent


def passed(call):
    """The files of the package that are entered by calls; `call` is made twice, so that no import is counted."""
    call()
    files = set()

    def look(frame, event, _):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT):
            files.add(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


def test_training_a_network_passes_few_files():
    data = phibe.OU.reversible().simulate(paths=20, times=torch.linspace(0, 1, 6), seed=0)
    files = passed(lambda: phibe.fit(data, "mlp", "symmetric", steps=2, batch=8, progress=False))
    assert {"fitting.py", "objectives.py", "training/loop.py", "networks/mlp.py"} <= files
    assert len(files) <= 14, sorted(files)
