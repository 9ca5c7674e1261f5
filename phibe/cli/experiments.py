"""Commands for what the project itself shows: list, objectives, run, findings, artifacts, serve."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phibe.cli import Options
from phibe.cli.serving import serve
from phibe.experiments import EXPERIMENTS, PRESETS, description, experiment
from phibe.training.config import closest

if TYPE_CHECKING:
    from phibe.experiments.report import Experiment


def list_all(arguments: list[str]) -> None:
    Options("list", "The experiments of the paper, and what each measures.", "").parse(arguments)
    for name in EXPERIMENTS:
        print(f"{name:16} {description(name)}")


def list_objectives(arguments: list[str]) -> None:
    Options("objectives", "What a velocity can be fitted with, and when to use which.", "").parse(arguments)

    from phibe.objectives import describe_objectives

    print(describe_objectives())


def run(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: phibe run NAME [--preset P] [--field value …]; `phibe run NAME --help` explains the fields of:\n")
        return list_all([])
    if not arguments or arguments[0] not in EXPERIMENTS:
        name = arguments[0] if arguments else ""
        raise ValueError(f"run: needs one of {', '.join(EXPERIMENTS)}; got {name!r}{closest(name, EXPERIMENTS)}.")
    name, preset = arguments[0], _preset(arguments)
    options = _options(name, preset)
    given = options.parse(arguments[1:])
    if given["preset"] != preset:  # it came from the file of --config
        options = _options(name, given["preset"])
        given = options.parse(arguments[1:])
    module = experiment(name)
    config = options.built(module.presets[given["preset"]], given)
    if given["plan"]:
        return print(_plan(module, given["preset"], config))
    out = Path(given["out"] or Path("runs") / name / given["preset"])
    report = module.run(given["preset"], out=out, config=config)
    print(f"{name} ({given['preset']}) took {report.seconds:g} s: {out / 'report.json'}")


def _plan(module: Experiment, preset: str, config: Any) -> str:
    """What the experiment needs, without running it."""
    from phibe.experiments.plan import plan

    if module.plan is None:
        raise ValueError(f"run: {module.name} does not say what it needs; it has no plan.")
    return plan(module.name, preset, module.plan(config))


def _options(name: str, preset: str) -> Options:
    """Preset, folder, and the fields of the experiment's configuration with the values of the preset."""
    options = Options(f"run {name}", description(name), "[--preset P] [--plan] [--field value …]")
    sizes = "smoke (seconds), laptop (minutes) or paper (the published sizes, for a GPU)"
    options.add("--preset", str, preset, choices=PRESETS, help=sizes)
    options.add("--out", str | None, None, help="folder of the results (default: runs/, the name and the preset)")
    needs = "print the data, memory, operations and hours that it needs, and run nothing"
    options.add("--plan", bool, False, help=needs)
    options.add_fields(experiment(name).presets[preset])
    return options


def _preset(arguments: list[str]) -> str:
    """What --preset asks for, else PHIBE_PRESET, else laptop: the sizes of the paper are never the default."""
    asked = [argument.partition("=")[2] for argument in arguments if argument.startswith("--preset=")]
    asked += [value for name, value in pairwise(arguments) if name == "--preset"]
    preset = asked[-1] if asked else os.environ.get("PHIBE_PRESET", "laptop")
    if preset not in PRESETS:
        raise ValueError(f"the preset must be one of {', '.join(PRESETS)}; got {preset!r}.")
    return preset


def findings(arguments: list[str]) -> None:
    about = "The claims of the paper, and what each method says of them: a number, its 95 % interval, a verdict."
    options = Options("findings", about, "[--json]")
    options.add("--json", bool, False, help="print JSON")
    as_json = options.parse(arguments)["json"]

    from phibe.experiments.report import COLUMNS, findings, findings_text, reports

    rows = findings(reports())
    if as_json:
        cells = [{name: [c._asdict() for c in claims] for name, claims in row.cells.items()} for row in rows]
        found = [row._asdict() | {"cells": cell} for row, cell in zip(rows, cells, strict=True)]
        return print(json.dumps(found, indent=2, ensure_ascii=False))
    print("\n".join(f"{name:10} {meaning}" for name, meaning in COLUMNS.items()), findings_text(rows), sep="\n\n")


def artifacts(arguments: list[str]) -> None:
    about = "Run every experiment at laptop scale, which takes some hours, and renew artifacts/."
    Options("artifacts", about, "").parse(arguments)

    from phibe.experiments.report import MissingData, keep

    for name in EXPERIMENTS:
        out = Path("runs") / name / "laptop"
        try:
            experiment(name).run("laptop", out=out)
        except MissingData as missing:
            print(f"{name} stays as it is. {missing}")
        else:
            keep(out, name)


def serve_all(arguments: list[str]) -> None:
    options = Options("serve", "Serve the book and the apps on this machine; a stale book is built.", "[--port N]")
    options.add("--port", int, 5006, help="of http://localhost")
    serve(options.parse(arguments)["port"])
