"""The command line: `phibe COMMAND …`. An error is one line on stderr and exit code 2, Ctrl-C is exit code 130."""

from __future__ import annotations

import sys
from collections.abc import Callable

from phibe.cli import data, experiments, generation, published, reports
from phibe.cli.options import closest

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "check": data.check,
    "fit": data.train,
    "report": reports.report,
    "generate": generation.generate,
    "fetch": published.download,
    "convert": published.convert,
    "objectives": experiments.list_objectives,
    "list": experiments.list_all,
    "run": experiments.run,
    "artifacts": experiments.artifacts,
    "serve": experiments.serve,
}

HELP = """phibe: probability flows from discretely observed stochastic trajectories

  phibe check DATA            what is in a file of trajectories and what it is good for, or how a run is
  phibe fit DATA              fit a velocity to it; what is not given is chosen, with reasons; a stopped run goes on
  phibe report RUN            what a run is worth: report.html, to open in a browser, and quality.json
  phibe generate RUN          trajectories of a fitted flow, at any times, and their log-density
  phibe fetch URL|kth         a published file, or the KTH videos, with hashes; a download that was cut off goes on
  phibe convert FOLDER        published Navier–Stokes files (PFI) as trajectories, split by path
  phibe objectives            what a velocity can be fitted with, and when to use which
  phibe list                  the experiments of the paper, and what each measures
  phibe run NAME              run one: --preset smoke (seconds), laptop (minutes, some hours), paper (published sizes)
  phibe artifacts             run all of them at laptop scale, some hours, and renew artifacts/
  phibe serve                 the book and the apps on http://localhost:5006

Your own trajectories, from the file to new ones:
  phibe check data.csv
  phibe fit data.csv --out runs/mine
  phibe generate runs/mine --ensemble 1000 --times 0:1:0.1 --out made.csv

A data.csv has columns path, time and those of the state; arrays come as .npz, .npy, .nc or .zarr, with `states`
(path, time, *state) and `times`: `Trajectories(states, times).save("data.npz")`.
`phibe COMMAND --help` explains the options of a command, `--print-config` prints them as a file for `--config`."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `phibe`: run the command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(HELP)
        elif arguments[0] in COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            raise ValueError(
                f"there is no command {arguments[0]!r}{closest(arguments[0], COMMANDS)}. See `phibe --help`."
            )
    except SystemExit as stop:  # after --help and --print_config
        return int(stop.code or 0)
    except (ValueError, OSError, ArithmeticError) as error:
        print(f"phibe: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("phibe: interrupted", file=sys.stderr)
        return 130
    return 0
