"""The tools that build the book: what counts as a change, and what counts as a page that needs the network."""

import importlib.util
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load(path: str):
    """A module that lies outside the package."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


offline, build = load("book/_ext/offline.py"), load("book/build.py")


def test_a_page_that_loads_a_remote_file_is_noticed():
    for page in (
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css2">',
        '<img src="http://example.org/a">',
        '<script>load("https://cdn.example/require.min.js")</script>',
        "<style>@import url(https://cdn.example/a.css)</style>",
        '<script>{"url": "https://cdn.example/theme.css?v=1"}</script>',
    ):
        assert offline.Loads(page).found, page


def test_a_link_or_a_local_file_is_fine():
    for page in (
        '<a href="https://example.org/paper.svg">a link to click</a>',
        '<link rel="canonical" href="https://example.org/book.html">',
        '<script src="../_static/vendor/mathjax/tex-chtml.js"></script>',
        "<p>https://cdn.example/a.js</p>",
        "<script>// see https://example.org/manual.html\n</script>",
    ):
        assert not offline.Loads(page).found, page


def test_cdn_addresses_become_files_beside_the_page(tmp_path):
    page = (
        '["https://cdn.bokeh.org/bokeh/release/bokeh-widgets-3.9.2.min.js",'
        ' "https://cdn.holoviz.org/panel/1.9.4/dist/css/loading.css?v=1.9.4"]'
    )
    local = offline.vendored(page, "../", tmp_path)
    assert '"../_static/vendor/bokeh/bokeh-widgets-3.9.2.min.js"' in local
    assert '"../_static/vendor/panel/css/loading.css?v=1.9.4"' in local
    copied = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert copied == {"bokeh/bokeh-widgets-3.9.2.min.js", "panel/css/loading.css"}
    assert offline.Loads(f"<script>{page}</script>").found
    assert not offline.Loads(f"<script>{local}</script>").found


def test_a_file_that_no_wheel_has_stops_the_build(tmp_path):
    with pytest.raises(FileNotFoundError):
        offline.vendored("https://cdn.holoviz.org/panel/1.9.4/dist/no/such.js", "", tmp_path)


def test_a_changed_added_or_renamed_file_changes_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    source = tmp_path / "phibe" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1", encoding="utf8")
    seen = [build.fingerprint(["phibe"])]
    (tmp_path / "phibe" / "__pycache__").mkdir()
    (tmp_path / "phibe" / "__pycache__" / "a.pyc").write_text("cache", encoding="utf8")
    assert build.fingerprint(["phibe"]) == seen[0]
    source.write_text("x = 2", encoding="utf8")
    seen.append(build.fingerprint(["phibe"]))
    (tmp_path / "phibe" / "b.py").write_text("", encoding="utf8")
    seen.append(build.fingerprint(["phibe"]))
    source.rename(tmp_path / "phibe" / "c.py")
    seen.append(build.fingerprint(["phibe"]))
    assert len(set(seen)) == 4


def test_the_built_book_is_up_to_date(book):
    assert build.matches(ROOT / "_build" / "book.stamp", build.fingerprint(build.MADE_OF))
    assert (book / "index.html").exists()


def test_a_name_in_prose_must_exist():
    names = load("book/_ext/names.py")
    assert all(map(names.exists, ["phibe.linear.affine.fit_affine", "phibe.systems.ou.OU.velocity"]))
    assert not any(map(names.exists, ["phibe.no_such_name", "phibe.OU.no_such_method", "phibe.no.such.module"]))


def test_the_reference_has_an_entry_for_every_public_name():
    import phibe

    api = load("book/_ext/api.py")
    shown = {name for name, _ in api.public(phibe)}
    assert shown == {name for name in phibe.__all__ if callable(getattr(phibe, name))}
    modules = {name for name in phibe.__all__ if inspect.ismodule(getattr(phibe, name))}
    page = (ROOT / "book" / "api.md").read_text("utf8")
    assert all(f"{{api}} phibe.{name}\n" in page for name in modules)
    assert set(phibe.__all__) - shown - modules == {"OBJECTIVES"}  # a dictionary, shown with its objectives
    assert dict(api.methods(phibe.Flow)).keys() >= {"generate", "solution", "log_density"}
    assert api.signature("generate", phibe.Flow.generate).startswith("generate(x0, times, *, method=None")


def test_a_docstring_keeps_its_code_and_its_lines():
    api = load("book/_ext/api.py")
    first, second = api.prose("One `x` of\n    two.\n\n    Args:\n        a: b\n")
    assert [type(node).__name__ for node in first.children] == ["Text", "literal", "Text"]
    assert "    a: b" in second.astext()
