"""The command line: `phibe COMMAND …`. An error is one line on stderr and exit code 2, Ctrl-C is exit code 130.

Help and usage errors answer at once: torch, scipy, pandas and HoloViews are imported inside the commands, after their
options have been read.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from phibe.training.config import closest

HELP = """phibe: probability flows from discretely observed stochastic trajectories

  phibe check DATA            what is in a file of trajectories and what it is good for, or how a run is
  phibe fit DATA              fit a velocity to it; what is not given is chosen, with reasons; a stopped run goes on
  phibe report RUN            what a run is worth: report.html, to open in a browser, and quality.json
  phibe evaluate RUN DATA     what a flow is worth on other data, such as new paths: verdict, findings, distances
  phibe evaluate pendulum RUN.csv …   recorded double pendulums, forecast by the flow that comes with the project
  phibe generate RUN          trajectories of a fitted flow, at any times, and their log-density
  phibe fetch URL|kth         a published file, or the KTH videos, with hashes; a download that was cut off goes on
  phibe convert FOLDER        published Navier–Stokes files (PFI) as trajectories, split by path
  phibe objectives            what a velocity can be fitted with, and when to use which
  phibe list                  the experiments of the paper, and what each measures
  phibe run NAME              run one: --preset smoke (seconds), laptop (minutes, some hours), paper (published sizes);
                              --plan says what that needs and runs nothing
  phibe findings              the claims of the paper with numbers, intervals and verdicts, from the reports
  phibe artifacts             run all of them at laptop scale, some hours, and renew artifacts/
  phibe serve                 the book and the apps on http://localhost:5006

Your own trajectories, from the file to new ones:
  phibe check data.csv
  phibe fit data.csv --out runs/mine
  phibe generate runs/mine --ensemble 1000 --times 0:1:0.1 --out generated.csv

A data.csv has columns path, time and those of the state; arrays come as .npz, .npy, .nc or .zarr, with `states`
(path, time, *state) and `times`: `phibe.save_data(phibe.Trajectories(states, times), "data.npz")`.
`phibe COMMAND --help` explains the options of a command, `--print-config` prints them as a file for `--config`."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `phibe`: run the command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no ² shows ? in its place
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(HELP)
        else:
            find_command(arguments[0])(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `phibe findings | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:  # after --help and --print-config
        return int(stop.code or 0)
    except (ValueError, OSError, ArithmeticError) as error:
        print(f"phibe: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("phibe: interrupted", file=sys.stderr)
        return 130
    return 0


def find_command(name: str) -> Callable[[list[str]], None]:
    """The command of that name, which takes the arguments after it."""
    from phibe.cli import data, experiments

    commands = {
        "check": data.check,
        "fit": data.fit,
        "report": data.report,
        "evaluate": data.evaluate,
        "generate": data.generate,
        "fetch": data.fetch,
        "convert": data.convert,
        "objectives": experiments.list_objectives,
        "list": experiments.list_all,
        "run": experiments.run,
        "findings": experiments.findings,
        "artifacts": experiments.artifacts,
        "serve": experiments.serve_all,
    }
    if name not in commands:
        raise ValueError(f"there is no command {name!r}{closest(name, commands)}. See `phibe --help`.")
    return commands[name]


# -- the options of a command ------------------------------------------------------------------------------------------


class Options:
    """The options of `phibe COMMAND`: from the line, else from the file `--config`, else their defaults.

    `--learning-rate` and `--learning_rate` are the same. The fields of a dataclass inside another are options with a
    dot, `--training.steps`, and objects inside the object of the file.
    """

    def __init__(self, command: str, purpose: str, usage: str):
        self.command = command
        self.kinds: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.required: list[str] = []
        self.parser = _Parser(
            prog=f"phibe {command}", usage=f"phibe {command} {usage}", description=purpose, allow_abbrev=False
        )
        self.parser.add_argument("--config", metavar="FILE", help="a file of options, as --print-config prints it")
        self.parser.add_argument("--print-config", action="store_true", help="print all options as JSON, and stop")

    def add(self, name: str, kind: Any, default: Any = None, *, choices: Iterable[str] = (), help: str = "") -> None:
        """A required argument, of several words if it is a tuple, or with two dashes an option; `choices` are the only
        values it takes."""
        kind = Literal[tuple(choices)] if choices else kind  # type: ignore[valid-type]
        key = name.lstrip("-").replace("-", "_")
        self.kinds[key], self.defaults[key] = kind, default
        more: dict[str, Any] = {"metavar": key.upper()}
        if not name.startswith("--"):
            self.required.append(key)
            more["nargs"] = "*" if get_origin(kind) is tuple else "?"  # for it may be in the file
        elif kind is bool or bool in get_args(kind):
            more = {"metavar": "true|false", "nargs": "?", "const": "true", "dest": key}
        else:
            more = {"metavar": _sort(kind), "dest": key} | ({"nargs": "+"} if _is_dict(kind) else {})
        shown = "" if default in (None, {}, ()) else f" (default: {_text(default)})"
        text = (help + shown).replace("%", "%%")
        self.parser.add_argument(_dashed(name), default=argparse.SUPPRESS, help=text, **more)

    def add_fields(self, config: Any, *, automatic: Iterable[str] = (), within: str = "") -> None:
        """An option for each field of a dataclass, with the values of `config` as defaults, or None for `automatic`."""
        hints, texts = get_type_hints(type(config)), explained(type(config))
        for field in fields(config):
            kind, default, text = hints[field.name], getattr(config, field.name), texts.get(field.name, "")
            if is_dataclass(default):
                self.add_fields(default, within=f"{within}{field.name}.")
                continue
            if field.name in automatic:
                kind, default, text = kind | None, None, f"{text} Chosen by the data if not given."
            self.add(f"--{within}{field.name}", kind, default, help=text)

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """The values by name; `training.steps` is a name."""
        try:
            given = vars(self.parser.parse_intermixed_args([_dashed(argument) for argument in arguments]))
            file, shown = given.pop("config"), given.pop("print_config")
            values = self.defaults | (self._from_file(Path(file)) if file else {})
            values |= {name: self._value(name, text) for name, text in given.items() if text is not None}
            if shown:
                print(self.text(values))
                raise SystemExit(0)
            if missing := [name for name in self.required if values[name] is None]:
                raise ValueError(f"the following arguments are required: {', '.join(missing)}")
        except ValueError as error:
            raise ValueError(f"{self.command}: {error}") from None
        return values

    def text(self, values: dict[str, Any]) -> str:
        """The options as a file for `--config`."""
        return json.dumps(_nested(values), indent=2, ensure_ascii=False)

    def built(self, config: Any, values: dict[str, Any], within: str = "") -> Any:
        """A record like `config`, with those inside it, of these values."""
        found = {}
        for field in fields(config):
            inner, name = getattr(config, field.name), f"{within}{field.name}"
            found[field.name] = self.built(inner, values, f"{name}.") if is_dataclass(inner) else values[name]
        return type(config)(**found)

    def _from_file(self, path: Path) -> dict[str, Any]:
        try:
            read = json.loads(path.read_text("utf8"))
        except FileNotFoundError:
            raise ValueError(f"there is no file {path}.") from None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON ({error}); `--print-config` prints what is wanted.") from None
        if not isinstance(read, dict):
            raise ValueError(f"{path} must hold an object of options, as `--print-config` prints it.")
        flat = self._flat(read)
        if unknown := [name for name in flat if name not in self.kinds]:
            raise ValueError(f"{path}: there is no option {unknown[0]}{closest(unknown[0], self.kinds)}.")
        return {name: self._value(name, value) for name, value in flat.items()}

    def _flat(self, values: dict[str, Any], within: str = "") -> dict[str, Any]:
        """{"training": {"steps": 1}} → {"training.steps": 1}; an option that takes a dict keeps it."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            full = within + name.replace("-", "_")
            nested = isinstance(value, dict) and full not in self.kinds
            found |= self._flat(value, f"{full}.") if nested else {full: value}
        return found

    def _value(self, name: str, given: Any) -> Any:
        """What was given as the kind that the option takes; entries of a dict are added to those of the default."""
        kind = self.kinds[name]
        try:
            value = convert(given, kind)
        except ValueError:
            shown = " ".join(given) if isinstance(given, list) and _is_dict(kind) else given
            label = name if name in self.required else _dashed(f"--{name}")
            raise ValueError(f"{label} needs {_wanted(kind)}; got {shown!r}.") from None
        return (self.defaults[name] or {}) | value if _is_dict(kind) else value


class _Parser(argparse.ArgumentParser):
    """Errors are ValueErrors; a value may begin with a minus and a digit, as -1:0:0.1 does."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self._negative_number_matcher = re.compile(r"^-\.?\d")

    def error(self, message: str) -> NoReturn:
        if found := re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL):
            name = found[1].partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            ends = {option.rpartition(".")[2].lstrip("-"): option for option in reversed(known)}
            found_by = ends | {option.lstrip("-"): option for option in known}
            near = difflib.get_close_matches(name.lstrip("-"), found_by, n=1)
            raise ValueError(f"there is no option {name}{f' (did you mean {found_by[near[0]]}?)' if near else ''}.")
        if found := re.fullmatch(r"argument (\S+): expected .*", message):
            raise ValueError(f"{found[1]} needs a value.")
        raise ValueError(message)


def explained(kind: type) -> dict[str, str]:
    """What the docstring says of each field, under `Args:`."""
    _, _, block = (kind.__doc__ or "").partition("Args:\n")
    return {name: " ".join(text.split()) for name, text in re.findall(r"^ {8}(\w+): (.+?)$", block, re.MULTILINE)}


# -- values ------------------------------------------------------------------------------------------------------------


def convert(given: Any, kind: Any) -> Any:
    """A value of that kind from a word of the line or a value of the file; a ValueError if it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        none = given is None or (isinstance(given, str) and given.lower() in ("none", "null"))
        return None if none else convert(given, next(part for part in inner if part is not NoneType))
    if origin is Literal:
        return _demanded(given, given in inner)
    if origin is tuple:
        parts = _parts(given)
        kinds = [inner[0]] * len(parts) if inner[1:] == (...,) else list(inner)
        return tuple(convert(part, one) for part, one in zip(parts, kinds, strict=True))
    if origin is dict:
        return {name: _free(value) if inner[1] is Any else convert(value, inner[1]) for name, value in _pairs(given)}
    if kind is bool:
        truth = {"true": True, "yes": True, "false": False, "no": False}
        return truth[_demanded(str(given).lower(), str(given).lower() in truth)]
    if kind is str:
        return _demanded(given, isinstance(given, str))
    _demanded(given, isinstance(given, str | int | float) and not isinstance(given, bool))
    return (
        _demanded(given, given == int(given)) and int(given)
        if kind is int and isinstance(given, float)
        else kind(given)
    )


def _demanded(value: Any, fulfilled: bool) -> Any:
    if not fulfilled:
        raise ValueError
    return value


def _parts(given: Any) -> list[Any]:
    """The parts of `1,2`, of `[1,2]`, or of what JSON says."""
    if not isinstance(given, str):
        return _demanded(given, isinstance(given, list))
    try:
        return _demanded(read := json.loads(given), isinstance(read, list))
    except ValueError:
        return [part.strip() for part in given.strip("[]() ").split(",") if part.strip()]


def _pairs(given: Any) -> list[tuple[str, Any]]:
    """Names and values of `width=64 depth=3`, or of an object of JSON."""
    if isinstance(given, dict):
        return list(given.items())
    if isinstance(given, list) and len(given) == 1 and str(given[0]).startswith("{"):
        return list(json.loads(given[0]).items())
    pairs = [str(part).partition("=") for part in _demanded(given, isinstance(given, list))]
    _demanded(pairs, all(name and equals for name, equals, _ in pairs))
    return [(name, value) for name, _, value in pairs]


def _free(given: Any) -> Any:
    """A number, true, false, null or a list where the word is one, else the word."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _is_dict(kind: Any) -> bool:
    return get_origin(kind) is dict


def _sort(kind: Any) -> str:
    """A kind in the help: INT, a|b, INT,…"""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin in (Union, UnionType):
        return _sort(next(part for part in inner if part is not NoneType))
    if origin is tuple:
        return f"{_sort(inner[0])},…" if inner[1:] == (...,) else ",".join(map(_sort, inner))
    return "NAME=VALUE" if origin is dict else {str: "TEXT"}.get(kind, kind.__name__.upper())


def _wanted(kind: Any) -> str:
    """A kind in an error: int, one of a, b, values as 1,2."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, UnionType):
        return _wanted(next(part for part in inner if part is not NoneType))
    if origin is tuple and inner[1:] == (...,):
        return f"values between commas, each {_wanted(inner[0])}"
    if origin is tuple:
        return f"values between commas: {', '.join(map(_wanted, inner))}"
    return "pairs as name=value" if origin is dict else {bool: "true or false"}.get(kind, kind.__name__)


def _dashed(argument: str) -> str:
    """--learning_rate=1 → --learning-rate=1."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | tuple | dict) else str(value)


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """{"training.steps": 1} → {"training": {"steps": 1}}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *folders, last = name.split(".")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return found
