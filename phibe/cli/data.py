"""Commands for trajectories of one's own: check, fit, generate."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from phibe.cli.options import Options
from phibe.cli.summaries import describe_data, describe_run
from phibe.diagnosis import diagnose
from phibe.files import read_arrays, replacing
from phibe.integrators import METHODS
from phibe.networks import NETWORKS, build
from phibe.objectives import OBJECTIVES
from phibe.report import write_report
from phibe.training import FitConfig, fit, open_data, open_flow
from phibe.trajectories import Trajectories


def check(arguments: list[str]) -> None:
    options = Options("check", "What is in a file of trajectories, or in the folder of a run.", "DATA|RUN")
    options.add("path", str, help="a .npz or .zarr of trajectories, or a folder that `phibe fit` wrote")
    path = Path(options.parse(arguments).path)
    if path.is_dir() and (path / "config.json").exists():
        return print(describe_run(path))
    data = open_data(path)
    print(describe_data(data, path))
    try:
        print(diagnose(data))
    except ValueError as reason:
        print(f"no diagnosis: {reason}")


def train(arguments: list[str]) -> None:
    options = Options(
        "fit", "Train a velocity network on trajectories, and keep the run in a folder.", "DATA [--option value …]"
    )
    options.add("data", str, help="a .npz or .zarr of trajectories; one larger than memory is a .zarr")
    options.add(
        "--objective",
        str,
        "phibe",
        choices=tuple(OBJECTIVES),
        help="what is minimised; `phibe check` advises on your data",
    )
    options.add("--network", str, "mlp", choices=tuple(NETWORKS), help="what is trained")
    options.add(
        "--network_arguments",
        dict[str, int | float | bool | list[int] | str],
        {},
        help="as in --network_arguments.width 64",
    )
    options.add("--held_out_data", str | None, None, help="trajectories to evaluate on, instead of a share of DATA")
    options.add("--out", str | None, None, help="folder of the run (default: runs/fit/ and the name of DATA)")
    options.add_fields(FitConfig())
    given = options.parse(arguments)
    config = options.built(FitConfig, given)
    data = open_data(given.data)
    held_out = open_data(given.held_out_data) if given.held_out_data else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build(given.network, data.state_shape, **given.network_arguments)
    out = Path(given.out or Path("runs") / "fit" / Path(given.data).stem)
    fit(data, network, given.objective, config=config, out=out, held_out=held_out)
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        with replacing(out / "options.yaml") as partial:
            partial.write_text(options.text(given))
        print(describe_run(out))
        print(f"{out / 'report.html'}: {write_report(out, data, source=given.data).summary()}")


def generate(arguments: list[str]) -> None:
    options = Options("generate", "Trajectories of a fitted flow.", "RUN (--from START | --paths-of DATA) --out FILE")
    options.add("run", str, help="the folder of a run")
    options.add("--from", str | None, None, help="a .npz of starting states (n, *state), alone or named x0")
    options.add("--paths_of", str | None, None, help="trajectories: start where each of them does, at the same times")
    options.add(
        "--times", str | None, None, help="0:1:0.1 (first:last:step) or 0,0.5,2; the first is that of the start"
    )
    options.add("--method", str, "euler", choices=METHODS, help="how to integrate")
    options.add("--substeps", int | None, None, help="steps between two times (default: none longer than the data's)")
    options.add("--extrapolate", bool, False, help="go on beyond the times that the flow was fitted on")
    options.add("--out", str | None, None, help="the .npz or .zarr to write")
    given = options.parse(arguments)
    if bool(given["from"]) == bool(given.paths_of) or not given.out:
        raise ValueError("`phibe generate` needs --out, and one of --from START and --paths-of DATA.")
    flow = open_flow(given.run)
    starts, times = _starts(Path(given["from"])) if given["from"] else _first_states(open_data(given.paths_of))
    times = parse_times(given.times) if given.times else times
    if times is None:
        raise ValueError("`phibe generate` needs --times, e.g. --times 0:1:0.1: the first is that of the start.")
    made = flow.generate(
        starts, times, method=given.method, substeps=given.substeps, extrapolate=given.extrapolate, progress=True
    )
    print(f"{made.save(given.out)}: {made}")


def _starts(path: Path) -> tuple[Tensor, Tensor | None]:
    arrays = read_arrays(path)
    name = "x0" if "x0" in arrays else next(iter(arrays), "x0")
    if "times" in arrays or (len(arrays) != 1 and name != "x0"):
        raise ValueError(
            f"{path} must hold one array x0 of states; it holds {sorted(arrays)}. Trajectories? Use --paths-of."
        )
    return torch.as_tensor(arrays[name]), None


def _first_states(data: Trajectories) -> tuple[Tensor, Tensor | None]:
    return data.states[:, 0].clone(), data.times if data.shared_times else None


def parse_times(text: str) -> Tensor:
    """`first:last:step`, both ends included, or values between commas."""
    try:
        if ":" not in text:
            return torch.tensor([float(part) for part in text.strip("[]() ").split(",")], dtype=torch.float64)
        first, last, step = (float(part) for part in text.split(":"))
        count = round((last - first) / step)
        if count < 1 or abs(first + count * step - last) > 1e-6 * abs(step):
            raise ValueError
        return torch.linspace(first, last, count + 1, dtype=torch.float64)
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"--times must be first:last:step, a whole number of steps, as 0:1:0.1, or values as 0,0.5,2; got {text!r}."
        ) from None
