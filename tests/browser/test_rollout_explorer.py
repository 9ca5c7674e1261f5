"""A reader opens the rollout explorer, scrubs it, changes a setting and shares it. `page` also watches for errors."""

import re

import pytest
from playwright.sync_api import expect

STILL = "frame=30"  # a link to a frame does not start to play


def open_app(page, served: str, query: str = STILL) -> None:
    page.goto(f"{served}/rollout_explorer?{query}")
    page.get_by_text("This path is off by").wait_for()
    page.wait_for_function("() => Bokeh.documents[0].get_model_by_name('clock')?.text.includes('after the start')")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")


def clock(page) -> str:
    return page.evaluate("Bokeh.documents[0].get_model_by_name('clock').text")


def pictures(page) -> list[str]:
    """The pixels of both screens: of each figure the first canvas, on which it draws."""
    screens = [page.locator(".bk-Figure").nth(i).locator("canvas").first for i in range(2)]
    return [screen.evaluate("one => one.toDataURL()") for screen in screens]


def slider(page):
    return page.locator(".bk-panel-models-widgets-Player input[type=range]")


def wait_for_new(page, before) -> list[str]:
    for _ in range(200):
        now = pictures(page)
        if all(new != old for new, old in zip(now, before, strict=True)):
            return now
        page.wait_for_timeout(50)
    pytest.fail("the pictures stayed the same", pytrace=False)


def test_scrubbing_redraws_truth_and_prediction_without_asking_the_server(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    assert "1.00 s" in clock(page)
    before = pictures(page)
    page.wait_for_timeout(500)
    sent.clear()
    slider(page).focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    wait_for_new(page, before)
    assert "1.20 s" in clock(page)
    assert sent == []


def test_the_first_view_plays(served, page):
    open_app(page, served, "")
    wait_for_new(page, pictures(page))


def test_another_setting_is_computed_and_named_in_the_address(served, page):
    open_app(page, served)
    words = page.get_by_text("This path is off by").inner_text()
    page.get_by_role("button", name="states", exact=True).click()
    expect(page.get_by_text("This path is off by")).not_to_have_text(words)
    expect(page).to_have_url(re.compile("source=states"))
    page.locator("select").filter(has_text="regression").select_option("phibe")
    page.locator("select").filter(has_text="leapfrog").select_option("euler")
    page.get_by_text("pumps energy").wait_for()
    expect(page.locator(".pn-loading")).to_have_count(0)
    expect(page).to_have_url(re.compile("integrator=euler"))
    assert slider(page).input_value() == "30"


def test_the_address_restores_a_setting_and_junk_gives_the_default(served, page):
    open_app(page, served, "source=states&path=5&objective=regression&integrator=euler&frame=61")
    chosen = page.locator("select").evaluate_all("all => all.map(one => one.value)")
    assert {"regression", "euler"} <= set(chosen)
    assert slider(page).input_value() == "61"
    open_app(page, served, f"{STILL}&path=1e999&source=%3Cscript%3E&objective=[1]&start=nowhere")
    expect(page.get_by_text("two pictures")).to_be_visible()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_at_any_width(served, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    open_app(page, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in (page.locator(".bk-Figure canvas").first, slider(page)):
        box = part.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_the_chapters_are_linked(served, page):
    open_app(page, served)
    links = page.locator("a[href*='/book/notebooks/']").evaluate_all("all => all.map(one => one.href)")
    assert len(links) == 2
    assert all(page.request.get(link).ok for link in links)
