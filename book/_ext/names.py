"""Sphinx extension: a name in prose, such as {func}`phibe.linear.affine.fit_affine`, must exist in the package.

One that has an entry in the reference leads there, another that exists becomes plain code; one that does not exist
stays unresolved, and the strict build fails on it.
"""

from pkgutil import resolve_name

from docutils import nodes


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
    if node.get("refdomain") != "py" or name.partition(".")[0] != "phibe" or not exists(name):
        return None
    page = getattr(env, "phibe_api", {}).get(name)
    if page is None:
        return content
    address = app.builder.get_relative_uri(node["refdoc"], page)
    return nodes.reference("", "", content, internal=True, refuri=f"{address}#{name}")


def setup(app):
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
