"""Sphinx extension: the built book loads nothing from the network.

What pages would fetch from a CDN (MathJax, Bokeh, Panel) is copied from the installed wheels to `_static/vendor/`
and linked from there; Thebe, which needs a remote kernel, is switched off. The build fails, naming page and address,
if a page would still load a remote file. Each chapter also offers its notebook for download.
"""

import re
import shutil
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import jupytext
from sphinx.errors import ExtensionError

BOKEH = re.compile(r"https://cdn\.bokeh\.org/bokeh/release/(?P<file>(?P<name>bokeh[a-z-]*?)-[\d.]+(?P<end>\.min\.js))")
PANEL = re.compile(r"https://cdn\.holoviz\.org/panel/[^/\s\"']+/dist/(?P<file>[^\s\"'\\?]+)")
REMOTE = re.compile(r"(?:https?:)?//[^\s\"'<>\\)]+\.(?:m?js|css|json|wasm|woff2?|ttf|png|jpe?g|gif|svg|mp4)\b")
MATHJAX = ["tex-chtml.js", "input/tex/extensions", "output/chtml", "a11y", "sre"]
LOADING = {"script", "link", "img", "iframe", "video", "audio", "source", "embed", "object"}


class Loads(HTMLParser):
    """Collects the remote addresses that a page loads by itself; a link that a reader may click is not one."""

    def __init__(self, page: str):
        super().__init__()
        self.found, self.inline = set(), False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.inline, named = tag in {"script", "style"}, dict(attributes)
        if tag in LOADING and named.get("rel") not in {"canonical", "license", "author"}:
            values = (named.get(key) or "" for key in ("src", "href", "data", "poster", "srcset"))
            self.found.update(value for value in values if re.match(r"(https?:)?//", value))

    def handle_data(self, text):
        if self.inline:
            self.found.update(address for address in REMOTE.findall(text) if address.startswith("http"))


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copyfile(source, target)


def package(name: str) -> Path:
    return Path(find_spec(name).origin).parent


def vendored(page: str, up: str, vendor: Path) -> str:
    """The page with its CDN addresses turned into links to files, which are copied to `vendor`."""

    def local(match: re.Match, source: Path, folder: str) -> str:
        copy(source, vendor / folder / match["file"])
        return f"{up}_static/vendor/{folder}/{match['file']}"

    bokeh, panel = package("bokeh") / "server/static/js", package("panel") / "dist"
    page = BOKEH.sub(lambda found: local(found, bokeh / (found["name"] + found["end"]), "bokeh"), page)
    return PANEL.sub(lambda found: local(found, panel / found["file"], "panel"), page)


def finish(app, exception):
    if exception or app.builder.format != "html":
        return
    html, vendor, remote = Path(app.outdir), Path(app.outdir, "_static", "vendor"), []
    for part in MATHJAX:
        copy(package("sphinx-mathjax-offline") / "static/mathjax" / part, vendor / "mathjax" / part)
    for path in sorted(html.rglob("*.html")):
        name = path.relative_to(html)
        page = vendored(path.read_text("utf8"), "../" * (len(name.parts) - 1), vendor)
        path.write_text(page, "utf8")
        remote += [f"{name} loads {address}" for address in sorted(Loads(page).found)]
    if remote:
        raise ExtensionError("the book must work offline, but:\n  " + "\n  ".join(remote))


def offer_notebook(app, pagename, templatename, context, doctree):
    """Puts the chapter's notebook, without outputs, beside its source; the theme then shows a button for it."""
    if app.env.metadata.get(pagename, {}).get("kernelspec"):
        target = Path(app.outdir, "_sources", f"{pagename}.ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        jupytext.write(jupytext.read(app.env.doc2path(pagename)), target)
        context["ipynb_source"] = f"{pagename}.ipynb"


def configure(app, config):
    config.mathjax_path = "vendor/mathjax/tex-chtml.js"
    for event in ("env-before-read-docs", "doctree-resolved"):
        for listener in list(app.events.listeners[event]):
            if listener.handler.__module__ == "sphinx_thebe":
                app.disconnect(listener.id)


def setup(app):
    # Panel brings es-module-shims, which fires DOMContentLoaded again: what other scripts did then would be done twice.
    app.add_js_file(None, body="window.esmsInitOptions = {noLoadEventRetriggers: true}")
    app.connect("config-inited", configure)
    app.connect("html-page-context", offer_notebook)
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
