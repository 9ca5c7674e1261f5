"""The command for what a run is worth: report."""

from __future__ import annotations

from pathlib import Path

from phibe.cli.options import Options
from phibe.io import open_data
from phibe.report.write import write_report


def report(arguments: list[str]) -> None:
    options = Options("report", "Write a run's quality.json and report.html.", "RUN [--data FILE] [--calibrate BOOL]")
    options.add("run", str, help="the folder of a run")
    options.add(
        "--data", str | None, None, help="what it was fitted to, if the run does not know or the file has moved"
    )
    options.add("--calibrate", bool | None, None, help="fit every other observation to check the times in between")
    given = options.parse(arguments)
    data = open_data(given.data) if given.data else None
    quality = write_report(given.run, data, source=given.data, calibrate=given.calibrate)
    print(f"{Path(given.run) / 'report.html'}: {quality.summary()}")
