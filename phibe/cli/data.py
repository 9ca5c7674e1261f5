"""Commands for trajectories of one's own: check and fit."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from phibe.cli.options import Options
from phibe.cli.summaries import describe_data, describe_run
from phibe.diagnostics import diagnose
from phibe.files import replacing, write_json
from phibe.fitting import CLASSES, carry_out, make_plan, window_length
from phibe.io import CHOICES, Layout, open_data, read_data, windowed
from phibe.objectives import OBJECTIVES
from phibe.report.write import write_report
from phibe.training.config import FitConfig
from phibe.trajectories import Trajectories

AUTOMATIC = ("steps", "batch", "ema", "held_out", "patience")
KINDS = "a .csv, .npz, .npy, .nc or .zarr of trajectories"


def add_reading(options: Options) -> None:
    """The options of `open_data`: how to read a file."""
    options.add("--missing", str, "error", choices=CHOICES, help="what to do with missing values: drop the transitions")
    options.add("--path_column", str | None, None, help="column of a table that numbers or names the paths")
    options.add("--time_column", str | None, None, help="column of times")
    options.add("--columns", str | None, None, help="columns of the state, as x,y (default: all others)")
    options.add("--time_step", float | None, None, help="time between observations, for arrays that come without times")
    options.add("--windows", int | None, None, help="cut long paths into pieces of so many observations")


def layout(given: Any) -> dict[str, Any]:
    """What of these options was given, for `open_data`; plain JSON."""
    found = {name: given[name] for name in ("missing", *Layout._fields)}
    found["columns"] = [name.strip() for name in given.columns.split(",")] if given.columns else None
    return {name: value for name, value in found.items() if value not in (None, "error")}


def opened(path: str, how: dict[str, Any]) -> tuple[Trajectories, str]:
    """The data, and a sentence on its missing values."""
    if "missing" not in how:
        return open_data(path, **how), ""
    rest = {name: value for name, value in how.items() if name != "missing"}
    return read_data(path, Layout(**rest), missing=how["missing"])


def check(arguments: list[str]) -> None:
    options = Options("check", "What is in a file of trajectories, or in the folder of a run.", "DATA|RUN")
    options.add("path", str, help=f"{KINDS}, or a folder that `phibe fit` wrote")
    add_reading(options)
    given = options.parse(arguments)
    path = Path(given.path)
    if path.is_dir() and (path / "config.json").exists():
        return print(describe_run(path))
    data, note = opened(given.path, layout(given))
    print(describe_data(data, path) + (f"\n  missing    {note}" if note else ""))
    try:
        print(diagnose(data))
    except ValueError as reason:
        print(f"no diagnosis: {reason}")


def train(arguments: list[str]) -> None:
    options = Options("fit", "Fit a velocity to trajectories, and keep the run in a folder.", "DATA [--option value …]")
    options.add("data", str, help=f"{KINDS}; one larger than memory is a .zarr")
    add_reading(options)
    options.add("--objective", str, "auto", choices=("auto", *OBJECTIVES), help="what is minimised; auto asks the data")
    options.add(
        "--network", str, "auto", choices=CLASSES, help="what is fitted; affine and basis are solved in closed form"
    )
    options.add(
        "--network_arguments",
        dict[str, int | float | bool | list[int] | str],
        {},
        help="as in --network_arguments.width 64",
    )
    options.add("--held_out_data", str | None, None, help="trajectories to evaluate on, instead of a share of DATA")
    options.add("--out", str | None, None, help="folder of the run (default: runs/fit/ and the name of DATA)")
    options.add_fields(FitConfig(), automatic=AUTOMATIC)
    given = options.parse(arguments)
    settings = {field.name: given[field.name] for field in fields(FitConfig) if given[field.name] is not None}
    how = layout(given)
    data, note = opened(given.data, how)
    held_out = open_data(given.held_out_data, **how) if given.held_out_data else None
    cut = None if "windows" in how else window_length(data)
    if cut:
        how["windows"], data = cut.observations, windowed(data, cut.observations)
    plan = make_plan(data, given.network, given.objective, settings=settings, time=False if "windows" in how else None)
    plan = replace(plan, choices=(*((cut.choice,) if cut else ()), *plan.choices))
    main = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    if main:
        print("\n".join([note, *plan.lines()] if note else plan.lines()), flush=True)
    out = Path(given.out or Path("runs") / "fit" / Path(given.data).stem)
    carry_out(plan, data, out=out, arguments=dict(given.network_arguments), held_out=held_out)
    if main:
        write_json(out / "choices.json", [choice._asdict() for choice in plan.choices])
        with replacing(out / "options.yaml") as partial:
            partial.write_text(options.text(given))
        print(describe_run(out))
        print(f"{out / 'report.html'}: {write_report(out, data, source=given.data, **how).summary()}")
