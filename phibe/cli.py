"""The command line: list experiments, run one, or renew the committed results."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from phibe.experiments import EXPERIMENTS
from phibe.experiments.report import PRESETS, keep


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `phibe`; errors are one line on stderr with exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, OSError) as error:
        print(f"phibe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("phibe: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phibe", description="Probability flows from discretely observed trajectories."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the experiments and what each measures")
    listing.set_defaults(command=_list)
    run = commands.add_parser("run", help="run an experiment and write runs/NAME/PRESET/report.json")
    run.add_argument("experiment", choices=EXPERIMENTS, metavar="NAME", help="one of: " + ", ".join(EXPERIMENTS))
    run.add_argument(
        "--preset",
        choices=PRESETS,
        default=os.environ.get("PHIBE_PRESET", "laptop"),
        help="smoke (seconds), laptop (minutes, the default), paper (the published sizes); also from PHIBE_PRESET",
    )
    run.add_argument("--out", type=Path, help="another folder for the results")
    run.set_defaults(command=_run)
    artifacts = commands.add_parser("artifacts", help="run every experiment at the laptop preset, renew artifacts/")
    artifacts.set_defaults(command=_artifacts)
    return parser


def _list(options: argparse.Namespace) -> None:
    for name, module in EXPERIMENTS.items():
        print(f"{name:12} {(module.__doc__ or '').splitlines()[0]}")


def _run(options: argparse.Namespace) -> None:
    out = options.out or Path("runs") / options.experiment / options.preset
    report = EXPERIMENTS[options.experiment].run(options.preset, out=out)
    print(f"{options.experiment} ({options.preset}) took {report.seconds:g} s: {out / 'report.json'}")


def _artifacts(options: argparse.Namespace) -> None:
    for name, module in EXPERIMENTS.items():
        out = Path("runs") / name / "laptop"
        module.run("laptop", out=out)
        keep(out, name)
