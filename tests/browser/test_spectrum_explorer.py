"""A reader opens the spectrum explorer, scrubs it, draws again and shares it. `page` also watches for errors."""

import re
import sys

import pytest
from playwright.sync_api import expect

from browser.conftest import free_port, running

STILL = "interval=0.5&integrator=euler&frame=20"  # cheap, and a link to a frame does not start to play
PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))"


def open_app(page, served: str, query: str = STILL, shown: str = "symmetric, euler") -> None:
    page.goto(f"{served}/spectrum_explorer?{query}")
    wait_for_rollout(page, shown)
    page.wait_for_function("() => Bokeh.documents[0].get_model_by_name('now')?.text.includes('At lead')")
    page.evaluate(PAINTED)


def wait_for_rollout(page, shown: str) -> None:
    """Until its name is on the screen and no bar is."""
    page.locator("b", has_text=re.compile(f"^{re.escape(shown)}$")).wait_for()
    expect(page.locator("progress")).to_have_count(0)
    page.evaluate(PAINTED)


def now(page) -> str:
    return " ".join(page.evaluate("Bokeh.documents[0].get_model_by_name('now').text").split())


def pictures(page) -> list[str]:
    """The pixels of truth, rollout and difference: of each figure the first canvas, on which it draws."""
    screens = [page.locator(".bk-Figure").nth(i).locator("canvas").first for i in range(3)]
    return [screen.evaluate("one => one.toDataURL()") for screen in screens]


def field(page, name: str) -> list[int]:
    """The levels of a field that is drawn, whatever the size of its picture."""
    return page.evaluate(f"Array.from(Bokeh.documents[0].get_model_by_name('{name} picture').data.image[0])")


def wait_for_new(page, before: str, which: int) -> None:
    for _ in range(400):
        if pictures(page)[which] != before:
            return
        page.wait_for_timeout(50)
    pytest.fail("the picture stayed the same", pytrace=False)


def slider(page):
    return page.locator(".bk-panel-models-widgets-Player input[type=range]")


def band(page) -> list[float]:
    return page.evaluate("(({left, right}) => [left, right])(Bokeh.documents[0].get_model_by_name('band'))")


def test_scrubbing_redraws_all_three_without_asking_the_server(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    assert "At lead 2.0" in now(page)
    before = pictures(page)
    page.wait_for_timeout(500)
    sent.clear()
    slider(page).focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    for which in range(3):
        wait_for_new(page, before[which], which)
    assert "At lead 3.0" in now(page)
    assert sent == []


def test_the_first_view_plays(served, page):
    open_app(page, served, "", "symmetric, rk4")
    wait_for_new(page, pictures(page)[0], 0)


def test_another_method_is_computed_and_named_in_the_address(served, page):
    open_app(page, served)
    before, truth = pictures(page), field(page, "truth")
    page.locator("select").filter(has_text="mcvd").select_option("regression")
    wait_for_rollout(page, "regression, euler")
    expect(page).to_have_url(re.compile("method=regression"))
    wait_for_new(page, before[1], 1)
    assert field(page, "truth") == truth
    assert slider(page).input_value() == "20"
    page.locator("select").filter(has_text="mcvd").select_option("persistence")
    page.get_by_text("The persistence forecast needs no integrator").wait_for()
    expect(page.locator("select").filter(has_text="euler")).to_be_disabled()
    expect(page.get_by_role("button", name="New draw")).to_be_disabled()


def test_a_new_draw_shows_its_progress_and_changes_the_picture_alone(served, page):
    open_app(page, served)
    method = page.locator("select").filter(has_text="mcvd")
    stirred = next(name for name in method.locator("option").all_inner_texts() if name.startswith("sde"))
    method.select_option(stirred)
    page.get_by_role("button", name="0.1", exact=True).click()  # more frames, and time to see the bar
    wait_for_rollout(page, f"{stirred}, rk4")
    page.get_by_text(re.compile("interval 0.1, .*draw 1")).wait_for()
    before, truth = pictures(page), field(page, "truth")
    page.get_by_role("button", name="New draw").click()
    page.locator("progress").wait_for()
    assert "At lead" in now(page)
    reached = page.locator("progress").get_attribute("value")
    expect(page.locator(f"progress[value='{reached}']")).to_have_count(0)  # it moves
    page.get_by_text("draw 2").wait_for()
    expect(page).to_have_url(re.compile("draw=2"))
    wait_for_new(page, before[1], 1)
    assert field(page, "truth") == truth


def test_the_chosen_shells_are_shaded_and_measured_at_once(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    words, shaded = now(page), band(page)
    handle = page.locator(".noUi-handle-lower")
    page.wait_for_timeout(500)
    sent.clear()
    handle.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "words => !Bokeh.documents[0].get_model_by_name('now').text.includes(words)", arg="shells 1 to"
    )
    assert band(page)[0] > shaded[0] and band(page)[1] == shaded[1]
    assert now(page) != words
    low = round(band(page)[0] + 0.5)
    assert f"over the shells {low} to" in now(page)
    assert sent == []


def test_the_address_restores_a_setting_and_junk_gives_the_default(served, page):
    query = "clip=2&method=regression&low=5&high=9&frame=35&interval=0.5&integrator=euler"
    open_app(page, served, query, "regression, euler")
    assert "At lead 3.5" in now(page) and "over the shells 5 to 9" in now(page)
    assert band(page) == [4.5, 9.5]
    assert slider(page).input_value() == "35"
    page.get_by_text("test clip 2").wait_for()
    junk = "&clip=../..&method=%3Cscript%3E&draw=1e999&low=[1]&high=nowhere"
    open_app(page, served, STILL + junk)
    page.get_by_text("test clip 1").wait_for()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_at_any_width(served, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    open_app(page, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    parts = [page.locator(".bk-Figure").nth(i) for i in range(6)]
    for part in (*parts, slider(page), page.get_by_text("At lead 2.0")):
        box = part.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] > 20
    squares = [part.bounding_box() for part in parts[:3]]
    assert len({round(box["y"]) for box in squares}) == 1
    assert all(abs(box["width"] - box["height"]) < 3 for box in squares)


def test_the_chapter_is_linked(served, book, page):
    open_app(page, served)
    links = page.locator("a[href*='/book/notebooks/']").evaluate_all("all => all.map(one => one.href)")
    assert len(links) == 1 and links[0].endswith("09_turbulence.html")
    if (book / "notebooks" / "09_turbulence.html").exists():
        assert page.request.get(links[0]).ok


def test_without_a_run_the_page_says_which_command_makes_one(page, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "panel", "serve", "apps/spectrum_explorer.py", "--port", str(port)]
    address = f"http://localhost:{port}/spectrum_explorer"
    with running(command, address, tmp_path / "log", {"PHIBE_ARTIFACTS": str(tmp_path)}):
        page.goto(address)
        page.get_by_text("phibe run navier_stokes").wait_for()
