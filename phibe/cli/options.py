"""Options of a command, from frozen dataclasses: parsed, explained and printed by jsonargparse."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_type_hints


class Options:
    """The options of `phibe COMMAND`; `--learning-rate` and `--learning_rate` are the same."""

    def __init__(self, command: str, purpose: str, usage: str):
        try:
            from jsonargparse import ArgumentParser
        except ImportError:
            raise ValueError("the command line needs jsonargparse: `pip install jsonargparse`.") from None
        self.parser = ArgumentParser(
            prog=f"phibe {command}", usage=f"phibe {command} {usage}", description=purpose, exit_on_error=False
        )
        self.parser.add_argument("--config", action="config", help="a file of options, as --print-config prints it")

    def add(self, name: str, kind: Any, default: Any = None, *, choices: Iterable[str] = (), help: str = "") -> None:
        """An argument, or with two dashes an option; `choices` are the only values it takes."""
        kind = Literal[tuple(choices)] if choices else kind  # type: ignore[valid-type]
        preset = {"default": default} if name.startswith("--") else {}
        self.parser.add_argument(name, type=kind, help=help, **preset)

    def add_fields(self, config: Any, *, automatic: Iterable[str] = ()) -> None:
        """An option for each field of a dataclass, with the values of `config` as defaults, or None for `automatic`."""
        hints, words = get_type_hints(type(config)), explained(type(config))
        for field in fields(config):
            kind, default, text = hints[field.name], getattr(config, field.name), words.get(field.name, "")
            if field.name in automatic:
                kind, default, text = kind | None, None, f"{text} Chosen by the data if not given."
            self.add(f"--{field.name}", kind, default, help=text)

    def parse(self, arguments: list[str]) -> Any:
        from jsonargparse import ArgumentError

        arguments = [_underscored(argument) for argument in arguments]
        try:
            return self.parser.parse_args(arguments)
        except ArgumentError as error:
            raise ValueError(f"{self.parser.prog.removeprefix('phibe ')}: {self._plain(str(error))}") from None

    def built(self, kind: type, given: Any) -> Any:
        """The dataclass that the options describe, with those inside it."""
        hints = get_type_hints(kind)
        values = {field.name: given[field.name] for field in fields(kind)}
        return kind(**{n: self.built(hints[n], v) if is_dataclass(hints[n]) else v for n, v in values.items()})

    def text(self, given: Any) -> str:
        """The options as a file for `--config`."""
        return self.parser.dump(given)

    def _plain(self, message: str) -> str:
        """The parser's message in one short sentence."""
        message = " ".join(message.split())
        if found := re.fullmatch(r'Parser key "(.+?)": Expected an? (.+?)\. Got value: (.*)', message):
            name, kind, value = found.groups()
            kind = re.sub(r"<class '(.*?)'>|typing\.", r"\1", kind)
            kind = re.sub(r"Literal\[(.*)\]", r"one of \1", kind).replace("'", "")
            return f"--{name} needs {kind}; got {value!r}."
        if found := re.fullmatch(r'Parser key "(.+?)": Does not validate against any of .* Given value: (.*)', message):
            kinds = [kind for kind in re.findall(r"Expected an? <class '(\w+)'>", message) if kind != "NoneType"]
            return f"--{found[1]} needs {' or '.join(kinds) or 'another value'}; got {found[2]!r}."
        if found := re.fullmatch(r"unrecognized arguments: (\S+).*", message):
            known = [option for action in self.parser._actions for option in action.option_strings]
            return f"there is no option {found[1]}{closest(found[1], known)}."
        return message


def _underscored(argument: str) -> str:
    """--learning-rate=1 → --learning_rate=1."""
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else argument


def explained(kind: type) -> dict[str, str]:
    """What the docstring says of each field, under `Args:`."""
    _, _, block = (kind.__doc__ or "").partition("Args:\n")
    return {name: " ".join(words.split()) for name, words in re.findall(r"^ {8}(\w+): (.+?)$", block, re.MULTILINE)}


def closest(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
