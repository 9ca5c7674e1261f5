"""Sphinx extension: a name in prose, such as {func}`phibe.fit_affine`, must exist in the package.

The book has no API pages to link to, so a name that exists becomes plain code; one that does not stays unresolved, and
the strict build fails on it.
"""

from pkgutil import resolve_name


def exists(name: str) -> bool:
    """Whether a dotted name leads to an object of the package; a field that only has an annotation counts."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        owner, _, field = name.rpartition(".")
        return "." in owner and exists(owner) and field in getattr(resolve_name(owner), "__annotations__", {})
    return True


def resolve(app, env, node, content):
    name = node.get("reftarget", "")
    if node.get("refdomain") == "py" and name.partition(".")[0] == "phibe" and exists(name):
        return content
    return None


def setup(app):
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
