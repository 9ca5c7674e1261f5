"""A reader opens a report from the disk, and a run in the apps. `page` also watches for requests and errors."""

import sys
from pathlib import Path

import pytest
from test_runs import make_pictures, make_vectors

from .conftest import free_port, running


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    (root / "fit").mkdir()
    make_vectors(root / "fit" / "spiral")
    make_pictures(root / "fit" / "animations")
    return root


@pytest.fixture(scope="module")
def apps(runs, tmp_path_factory) -> str:
    """The two apps alone, told where the runs are."""
    port = free_port()
    log = tmp_path_factory.mktemp("apps") / "log"
    names = ["apps/flow_explorer.py", "apps/rollout_explorer.py"]
    command = [sys.executable, "-m", "panel", "serve", *names, "--port", str(port), "--plugins", "apps.routes"]
    with running(command, f"http://localhost:{port}/flow_explorer", log, {"PHIBE_RUNS": str(runs)}):
        yield f"http://localhost:{port}"


@pytest.mark.parametrize("width", [360, 1280])
def test_a_report_opens_from_the_disk_at_any_width(runs, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto((runs / "fit" / "spiral" / "report.html").as_uri())
    assert page.locator("h1").inner_text() == "spiral"
    assert page.locator(".verdict h2").inner_text().lower().lstrip("✓!✗ ") in ("good", "usable with care")
    assert page.locator("img.drawn[alt]").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    natural = page.eval_on_selector_all("img", "images => images.map(image => image.complete && image.naturalWidth)")
    assert min(natural) > 100  # every figure could be decoded


def clock(page) -> str:
    return page.evaluate("Bokeh.documents[0].get_model_by_name('run clock')?.text ?? ''")


@pytest.mark.parametrize("address", ["flow_explorer?run=fit%2Fspiral", "rollout_explorer?run=fit%2Fanimations"])
def test_a_run_opens_in_its_app_and_is_scrubbed_in_the_browser(apps, page, address):
    page.goto(f"{apps}/{address}&frame=2")
    page.wait_for_function("() => window.Bokeh?.documents[0]?.get_model_by_name('run clock')?.text.includes('t = ')")
    before = clock(page)
    slider = page.locator(".bk-panel-models-widgets-Player input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("before => Bokeh.documents[0].get_model_by_name('run clock').text != before", arg=before)


def test_the_report_of_a_listed_run_is_served_and_no_other_file(apps, page):
    assert page.request.get(f"{apps}/report/fit/spiral").ok
    for name in ("fit/animations", "../../etc/passwd", "fit/spiral/config.json", "%2e%2e/spiral.npz"):
        assert page.request.get(f"{apps}/report/{name}").status == 404
