"""Sphinx extension: `{api} phibe.flow` shows what a module offers, with signatures and docstrings.

Docstrings here are plain text with formulas in Unicode, not reStructuredText: paragraphs stay paragraphs, indented
parts keep their lines, and what stands between backticks is code. Nothing in them can break a strict build.
"""

import inspect
import re
from importlib import import_module

from docutils import nodes
from docutils.parsers.rst import Directive


def public(module) -> list[tuple[str, object]]:
    """Classes, functions and callable objects that the module defines or, with `__all__`, offers; in its order."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = [(name, getattr(module, name)) for name in names]
    own = module.__name__.partition(".")[0]
    return [(name, thing) for name, thing in found if callable(thing) and _home(thing).startswith(own)
            and (hasattr(module, "__all__") or _home(thing) == module.__name__)]  # fmt: skip


def _home(thing) -> str:
    return getattr(thing, "__module__", None) or ""


def methods(kind) -> list[tuple[str, object]]:
    """Public methods, static ones and properties that a class defines itself."""
    if not inspect.isclass(kind):
        return []
    members = [(name, member) for name, member in vars(kind).items() if not name.startswith("_")]
    unwrapped = [(name, getattr(member, "__func__", member)) for name, member in members]
    return [(n, m) for n, m in unwrapped if inspect.isfunction(m) or isinstance(m, property)]


def signature(name: str, thing) -> str:
    """As one would call it, without annotations: types are in the docstring's words."""
    if isinstance(thing, property):
        return name
    try:
        parts = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return name
    plain = [part.replace(annotation=inspect.Parameter.empty) for part in parts if part.name != "self"]
    text = str(inspect.Signature(plain))
    return f"{name}{re.sub(r'<(?:function|class|factory|object)[^>]*>', '…', text)}"


def prose(text: str) -> list[nodes.Node]:
    """A docstring as nodes."""
    found = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text or "").strip()):
        lines = block.splitlines()
        if any(line.startswith("    ") for line in lines):
            found.append(nodes.literal_block(block, block, language="none"))
        elif block:
            found.append(_paragraph(" ".join(line.strip() for line in lines)))
    return found


def _paragraph(text: str) -> nodes.paragraph:
    node = nodes.paragraph()
    for i, part in enumerate(text.split("`")):
        if part:
            node += nodes.literal(part, part) if i % 2 else nodes.Text(part)
    return node


class Api(Directive):
    """A section for each name of a module."""

    required_arguments = 1

    def run(self):
        module = import_module(self.arguments[0])
        found = [nodes.target("", "", ids=[module.__name__]), *prose(module.__doc__)]
        for name, thing in public(module):
            found.append(self._entry(f"{module.__name__}.{name}", name, thing))
        return found

    def _entry(self, full: str, name: str, thing) -> nodes.Node:
        box = nodes.container(classes=["api"])
        box += self._head(full, signature(name, thing))
        box += prose(thing.__doc__)
        for inner, member in methods(thing):
            part = nodes.container(classes=["api"])
            part += self._head(f"{full}.{inner}", signature(inner, member))
            part += prose(member.__doc__)
            box += part
        return box

    def _head(self, full: str, text: str) -> nodes.Node:
        """The signature; its id is the full name, where links lead."""
        env = self.state.document.settings.env
        env.phibe_api = getattr(env, "phibe_api", {}) | {full: env.docname}
        return nodes.paragraph(
            "", "", nodes.strong("", "", nodes.literal(text, text)), ids=[full], classes=["api-head"]
        )


def setup(app):
    app.add_directive("api", Api)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
