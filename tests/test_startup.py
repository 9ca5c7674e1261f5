"""What each start of the package imports, and that the names read without torch are those of the registries."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import phibe
from phibe import io, objectives
from phibe.cli import find_command, main
from phibe.cli.data import AUTOMATIC
from phibe.experiments import EXPERIMENTS, PRESETS, description, experiment
from phibe.integrators import METHODS
from phibe.networks import NETWORKS
from phibe.objectives import OBJECTIVES
from phibe.training.config import CLOSED, METHOD_NAMES, MISSING, MODELS, OBJECTIVE_NAMES, FitConfig
from phibe.training.devices import PRECISIONS

HEAVY = {"torch", "numpy", "scipy", "pandas", "xarray", "holoviews", "panel", "bokeh", "tqdm", "matplotlib"}
COMMANDS = (
    *("check", "fit", "report", "evaluate", "generate", "fetch", "convert", "objectives", "list", "run", "findings"),
    *("artifacts", "serve"),
)
USAGE_ERRORS = (
    ["fitt"],
    ["fit"],
    ["fit", "a.csv", "--stepz", "3"],
    ["fit", "a.csv", "--steps", "many"],
    ["fit", "a.csv", "--objective", "fibe"],
    ["generate", "run", "--out", "a.npz"],
    ["convert", "none"],
    ["run"],
    ["run", "ou_theroy"],
    ["run", "ou", "--preset", "huge"],
)
FIT = """
import torch
from phibe import Trajectories
from phibe.linear.affine import fit_affine
x = torch.randn(50, 6, 2, dtype=torch.float64).cumsum(1)
fit_affine(Trajectories(x, torch.linspace(0, 1, 6, dtype=torch.float64)))
"""


def imported(code: str) -> set[str]:
    """The heavy packages in memory after a fresh process has run that code."""
    shown = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, encoding="utf8", check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])} & HEAVY


def after(*calls: list[str]) -> set[str]:
    """The same, after these calls of the command line."""
    return imported(f"from phibe.cli import main\nfor call in {list(calls)!r}: main(call)")


def test_help_and_lists_import_nothing_heavy():
    assert after([], ["--help"], ["list"], ["run", "--help"], *([name, "--help"] for name in COMMANDS)) == set()
    assert all(callable(find_command(name)) for name in COMMANDS)


def test_usage_errors_import_nothing_heavy(capsys):
    assert after(*USAGE_ERRORS) == set()
    for call in USAGE_ERRORS:
        assert main(call) == 2


def test_the_package_alone_imports_nothing_heavy():
    assert imported("import phibe; dir(phibe); phibe.FitConfig()") == set()
    parents = "import phibe.training, phibe.experiments, phibe.systems"
    assert imported(parents) == set()


def test_an_affine_fit_imports_torch_and_little_else():
    assert imported(FIT) <= {"torch", "numpy", "tqdm"}


def test_what_is_imported_is_seen():
    assert imported("import phibe; phibe.OU.nonreversible().stationary()") >= {"torch", "scipy"}


# -- names that are read without torch ---------------------------------------------------------------------------------


def test_the_names_of_a_fit_are_those_of_the_registries():
    where = "phibe/training/config.py names what the command line offers without importing torch: list it there too"
    assert tuple(OBJECTIVES) == OBJECTIVE_NAMES, where
    assert METHODS == METHOD_NAMES, where
    assert io.MISSING == MISSING, where
    assert {*MODELS} == {"auto", *CLOSED, *NETWORKS}, where
    for precision in PRECISIONS:
        assert FitConfig(precision=precision).precision == precision


def test_every_experiment_is_found_under_its_name_with_every_preset():
    for name in EXPERIMENTS:
        assert (experiment(name).name, tuple(experiment(name).presets)) == (name, PRESETS)
        assert 10 < len(description(name)) <= 100, name


def test_the_lazy_names_are_those_that_editors_see():
    tree = ast.parse(Path(phibe.__file__).read_text("utf8"))
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = [(node.module, alias.asname) for node in typed.body for alias in node.names]
    assert seen == [(home, name) for home, names in phibe._HOMES.items() for name in names]
    assert [name for _, name in seen] == phibe.__all__
    assert {*phibe.__all__} <= {*dir(phibe)}
    assert all(getattr(phibe, name).__name__ == name for name in ("fit", "OU", "diagnose", "phibe"))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        phibe.fitt


def test_the_public_names_are_few_and_each_has_an_example():
    assert len(phibe.__all__) <= 25
    documented = {name: getattr(phibe, name) for name in phibe.__all__} | {
        "OBJECTIVES": objectives
    }  # a dict has no text
    assert [name for name, thing in documented.items() if not re.search(rf"\b{name}\b", _examples(thing))] == []


def _examples(thing: object) -> str:
    """The lines of the examples in a docstring."""
    return "\n".join(line for line in inspect.getdoc(thing).splitlines() if line.startswith((">>>", "...")))


def test_the_defaults_of_the_command_are_those_of_the_package(capsys):
    assert main(["fit", "a.csv", "--print-config"]) == 0
    printed = json.loads(capsys.readouterr().out)
    own = {field.name: field.default for field in fields(FitConfig)}
    assert {name for name in own if printed[name] != own[name]} == {*AUTOMATIC}


def test_a_reader_that_has_seen_enough_is_no_error():
    """`phibe list | head -0`: the other end of the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "phibe", "list"], stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
