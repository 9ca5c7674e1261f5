"""pyproject.toml, constraints.txt, environment.yml and what is installed agree; the package keeps its import order."""

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["build-system"]["requires"]
EXTRAS = PROJECT["optional-dependencies"]
FORBIDDEN = {"lightning", "pytorch-lightning", "torchvision"}

# A file imports only from files to the left of it; a folder counts as one place.
ORDER = [
    *("files", "trajectories", "stores", "tables", "io", "calculus", "systems", "objectives", "integrators", "flow"),
    *("stochastic", "metrics", "ensembles", "bases", "networks", "linear", "training", "theory", "diagnostics"),
    *("evaluation", "fitting", "plots", "report", "widget", "experiments", "cli"),
]


def read_pins(text: str) -> dict[str, Version]:
    """Name -> version of a constraints file; anything but an exact public version is refused."""
    lines = (line.strip() for line in text.splitlines())
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in requirements:
        (specifier,) = requirement.specifier
        if specifier.operator != "==" or requirement.url or Version(specifier.version).local:
            raise ValueError(f"`{requirement}` is not an exact public version")
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements}


def unsatisfied(requirements: list[str], pins: dict[str, Version]) -> list[str]:
    """Requirements whose pin is missing or outside their bounds, or that have no lower bound at all."""
    wrong = []
    for requirement in map(Requirement, requirements):
        pin = pins.get(canonicalize_name(requirement.name))
        bounded = any(specifier.operator == ">=" for specifier in requirement.specifier)
        if pin is None or pin not in requirement.specifier or not bounded:
            wrong.append(str(requirement))
    return wrong


def direct() -> list[str]:
    """Every requirement written in pyproject.toml, the project's own extras left out."""
    written = [*PROJECT["dependencies"], *BUILD, *(name for names in EXTRAS.values() for name in names)]
    return [name for name in written if Requirement(name).name != PROJECT["name"]]


def closure(name: str, extras: frozenset[str], seen: set) -> set[str]:
    """Names of all distributions that the installed `name[extras]` needs, itself included."""
    if (name, extras) not in seen:
        seen.add((name, extras))
        for requirement in map(Requirement, metadata.requires(name) or []):
            wanted = [{"extra": extra} for extra in (*extras, "")]
            if requirement.marker is None or any(map(requirement.marker.evaluate, wanted)):
                closure(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)
    return {name for name, _ in seen}


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    return read_pins((ROOT / "constraints.txt").read_text("utf8"))


def test_every_dependency_has_a_pin_inside_its_bounds(pins):
    assert unsatisfied(direct(), pins) == []
    assert unsatisfied(["torch>=99", "numpy", "no-such-package>=1"], pins) == [
        "torch>=99",
        "numpy",
        "no-such-package>=1",
    ]


def test_torch_is_pinned_and_what_must_not_come_in_does_not(pins):
    assert pins["torch"] == Version("2.13.0")
    assert FORBIDDEN.isdisjoint(pins)
    assert FORBIDDEN.isdisjoint(canonicalize_name(Requirement(name).name) for name in direct())


def test_a_local_or_loose_pin_is_refused():
    for line in ("torch==2.13.0+cpu", "torch>=2", "torch @ file:///tmp/torch.whl"):
        with pytest.raises(ValueError):
            read_pins(line)


def test_what_is_installed_is_what_is_pinned(pins):
    needed = closure(PROJECT["name"], frozenset({"dev"}), set()) - {PROJECT["name"]}
    installed = {name: Version(Version(metadata.version(name)).public) for name in needed}
    assert len(needed) > 100
    assert {name: str(version) for name, version in installed.items() if pins.get(name) != version} == {}


def test_dev_brings_every_other_extra():
    (own,) = [Requirement(name) for name in EXTRAS["dev"] if Requirement(name).name == PROJECT["name"]]
    assert own.extras == set(EXTRAS) - {"dev"}


def test_the_conda_environment_installs_this_project_under_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf8"))
    (python,) = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    (through_pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert Version(python.partition("=")[2]) in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert environment["name"] == PROJECT["name"]
    assert through_pip == ["--constraint constraints.txt", "--editable .[dev]"]


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert citation["version"] == PROJECT["version"] == metadata.version(PROJECT["name"])
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text("utf8")


def imports(path: Path, package: str = "phibe") -> set[str]:
    """Full names of all modules that a file imports, at the top or inside a function; relative ones are made full."""
    here = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level + 1]] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names} if origin == package else {origin}
    return found


def out_of_order(module: str, imported: set[str]) -> set[str]:
    """Modules of the package that `module` must not import: those to the right of it, or unknown to the order."""
    own = {name.split(".")[1] for name in imported if name.startswith("phibe.")} - {module}
    allowed = ORDER[: ORDER.index(module)] if module in ORDER else ORDER  # __init__ and __main__ see everything
    return own - set(allowed)


FILES = sorted((ROOT / "phibe").rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "phibe").with_suffix("").parts[0]


RUN = (
    "train",
    "data",
    "video",
    "apps",
    "report",
    "peers",
)  # extras of phibe and apps; book and dev are tools


def declared() -> set[str]:
    """Distributions that the core and its extras ask for."""
    written = [*PROJECT["dependencies"], *(name for extra in RUN for name in EXTRAS.get(extra, ()))]
    return {canonicalize_name(Requirement(name).name) for name in written}


def imported() -> set[str]:
    """Distributions that phibe/ and apps/ import, or name as an engine; not the project itself."""
    homes = metadata.packages_distributions()
    files = [*FILES, *(ROOT / "apps").glob("*.py")]
    names = {name.split(".")[0] for path in files for name in imports(path)}
    engines = {name for path in files for name in re.findall(r'engine = "\w+" .* else "(\w+)"', path.read_text("utf8"))}
    found = {canonicalize_name(home) for name in names | engines for home in homes.get(name, ())}
    return found - {PROJECT["name"]}


def test_every_dependency_is_imported_and_every_import_is_declared():
    assert declared() - imported() == set()
    assert imported() - declared() == set()


def test_a_file_imports_only_from_files_above_it():
    wrong = {path.relative_to(ROOT).as_posix(): out_of_order(module_of(path), imports(path)) for path in FILES}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_the_core_stays_small_enough_to_take_in():
    core = [path for path in FILES if module_of(path) not in ("experiments", "cli")]
    assert len(core) <= 44
    assert [path.name for path in core if path.read_text("utf8").count("\n") > 450 and path.name != "plots.py"] == []


def test_an_import_from_below_is_noticed():
    assert out_of_order("theory", {"phibe.trajectories", "phibe.fitting", "torch"}) == {"fitting"}
    assert out_of_order("linear", {"phibe.utils"}) == {"utils"}
    assert out_of_order("plots", {"phibe.metrics"}) == set()


def test_the_package_has_no_module_outside_the_order():
    assert {module_of(path) for path in FILES} - {"__init__", "__main__"} <= set(ORDER)


def test_only_plots_knows_holoviews_and_nothing_knows_panel():
    """Libraries of figures and pages: HoloViews and Bokeh in one file, Panel and param in none."""
    top = {path.name: {name.split(".")[0] for name in imports(path)} for path in FILES}
    assert {name for name, seen in top.items() if seen & {"holoviews", "bokeh"}} == {"plots.py"}
    assert {name for name, seen in top.items() if seen & {"panel", "param"}} == set()


def test_imports_are_read_from_every_form(tmp_path, monkeypatch):
    lines = [
        "import panel as pn",
        "from phibe import plots",
        "from . import flow",
        "from .systems.ou import OU",
        "def f():",
        "    import holoviews.core",
    ]
    (tmp_path / "phibe").mkdir()
    (tmp_path / "phibe" / "some.py").write_text("\n".join(lines), encoding="utf8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    found = imports(tmp_path / "phibe" / "some.py")
    assert found == {"panel", "phibe.plots", "phibe.flow", "phibe.systems.ou", "holoviews.core"}


def test_no_file_of_the_package_says_where_it_was_made():
    for path in [ROOT / "constraints.txt", ROOT / "environment.yml", ROOT / "pyproject.toml"]:
        assert "://" not in path.read_text("utf8")
