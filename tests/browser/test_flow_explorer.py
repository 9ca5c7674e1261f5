"""A reader opens the flow explorer, moves its time, changes a setting and shares it. `page` also watches for errors."""

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

STILL = "frame=30"  # a link to a frame does not start to play
CLOCKS = "['clock', 'well clock', 'pendulum clock'].map(name => Bokeh.documents[0].get_model_by_name(name).text)"


def open_app(page, served: str, query: str = STILL) -> None:
    page.goto(f"{served}/flow_explorer?{query}")
    page.get_by_text("velocity error").first.wait_for()
    plane(page).wait_for()
    page.wait_for_function(f"() => ({CLOCKS}).some(text => text.startsWith('t = '))")  # drawn
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")


def plane(page):
    return page.locator(".bk-Figure canvas:visible").first


def picture(page) -> str:
    """The pixels of the phase plane, or of the density."""
    return plane(page).evaluate("canvas => canvas.toDataURL()")


def clock(page) -> str:
    """The title of the phase plane: the time, and what the arrows are."""
    return page.evaluate("Bokeh.documents[0].get_model_by_name('clock').text")


def slider(page):
    return page.locator(".bk-panel-models-widgets-Player input[type=range]")


def button(page, name: str):
    return page.locator(f".bk-panel-models-widgets-Player button.{name}")


def wait_for_new(page, before: str) -> str:
    for _ in range(200):
        if (now := picture(page)) != before:
            return now
        page.wait_for_timeout(50)
    pytest.fail("the picture stayed the same", pytrace=False)


def wait_until_still(page) -> str:
    before = picture(page)
    for _ in range(200):
        page.wait_for_timeout(200)
        if (now := picture(page)) == before:
            return now
        before = now
    pytest.fail("the picture never came to rest", pytrace=False)


def wait_until_silent(page, sent: list[str]) -> str:
    """The picture, once figures that were laid out anew have told the server their sizes."""
    while sent:
        sent.clear()
        page.wait_for_timeout(500)
    return wait_until_still(page)


def drag(page, before: str) -> None:
    """Pull the slider from a quarter to the right; every pull must change the picture."""
    box = slider(page).bounding_box()
    x, y = box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(10):
        page.mouse.move(x + i * box["width"] / 20, y)
        before = wait_for_new(page, before) if i else before
    page.mouse.up()
    assert int(slider(page).input_value()) > 60


def test_the_first_view_is_fitted_and_moves_until_paused(served, page):
    open_app(page, served, "")
    wait_for_new(page, picture(page))
    button(page, "pause").click()
    rest, frame = wait_until_still(page), int(slider(page).input_value())
    assert frame > 0
    button(page, "play").click()
    wait_for_new(page, rest)
    expect(page.get_by_text("probability circulates")).to_be_visible()
    page.wait_for_function("([el, k]) => Number(el.value) > k", arg=[slider(page).element_handle(), frame])


def test_who_prefers_no_motion_gets_a_still(served, page):
    page.emulate_media(reduced_motion="reduce")
    open_app(page, served, "")
    wait_until_still(page)
    assert int(slider(page).input_value()) < 10


def test_dragging_time_redraws_without_asking_the_server(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    before = wait_until_still(page)
    sent.clear()
    drag(page, before)
    assert sent == []


def test_the_double_well_with_two_estimators_is_chosen_played_and_restored(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    expect(page.get_by_text("Degree of the field")).not_to_be_visible()
    page.get_by_role("button", name="double well").click()
    page.get_by_text("Fokker–Planck").wait_for()
    page.get_by_text("exact density ρₜ").wait_for()
    expect(page.locator(".pn-loading")).to_have_count(0)
    expect(page.get_by_text("Degree of the field")).to_be_visible()
    expect(page.get_by_text("Knots of the field")).not_to_be_visible()
    before = wait_until_still(page)
    page.get_by_label("Compare with").select_option("symmetric")
    page.get_by_text("is closer").wait_for()
    expect(page.locator(".pn-loading")).to_have_count(0)
    before = wait_for_new(page, before)
    expect(page).to_have_url(re.compile(r"process=double\+well.*compare=symmetric"))
    sent.clear()
    drag(page, before)
    assert sent == []
    words, link = page.get_by_text("is closer").inner_text(), page.url
    open_app(page, served, f"{urlsplit(link).query}&frame=90")
    assert page.get_by_text("is closer").inner_text() == words
    assert slider(page).input_value() == "90"
    assert page.get_by_label("Compare with").input_value() == "symmetric"
    page.get_by_role("button", name="reversible", exact=True).click()
    page.get_by_text("exact distribution, 2σ").wait_for()
    expect(page.get_by_text("exact density ρₜ")).to_have_count(0)
    page.wait_for_function("() => Bokeh.documents[0].get_model_by_name('clock').text.startsWith('t = 7.50')")


def test_the_double_pendulum_is_chosen_dragged_and_restored(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    page.get_by_role("button", name="double pendulum").click()
    page.get_by_text("Why Euler pumps energy").wait_for()
    expect(page.locator(".pn-loading")).to_have_count(0)
    for name in ("Paths", "Observations", "Knots of the field in time", "Degree of the field in x", "Camera"):
        expect(page.get_by_text(name, exact=True).locator("visible=true")).to_have_count(0)
    expect(page.get_by_text("Seconds", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"process=double\+pendulum"))
    before = wait_until_silent(page, sent)
    drag(page, before)
    assert sent == []
    words, link = page.get_by_text("off the distribution").inner_text(), page.url
    page.goto(f"{served}/flow_explorer?{urlsplit(link).query}&frame=90")
    page.get_by_text("off the distribution").wait_for()
    page.wait_for_function(f"() => ({CLOCKS})[2] === 't = 3.00 s'")
    assert page.get_by_text("off the distribution").inner_text() == words


def test_the_arrow_keys_move_time(served, page):
    open_app(page, served)
    before = wait_until_still(page)
    slider(page).focus()
    page.keyboard.press("ArrowRight")
    wait_for_new(page, before)
    assert slider(page).input_value() == "31"


def test_another_process_is_fitted_and_named_in_the_address(served, page):
    open_app(page, served)
    before, words = wait_until_still(page), page.get_by_text("velocity error").inner_text()
    page.get_by_role("button", name="reversible", exact=True).click()
    page.get_by_text("the flow stops").wait_for()
    expect(page.get_by_text("velocity error")).not_to_have_text(words)
    expect(page.locator(".pn-loading")).to_have_count(0)
    wait_for_new(page, before)
    expect(page).to_have_url(re.compile("process=reversible"))
    assert slider(page).input_value() == "30"
    page.get_by_label("Estimator").select_option("regression")
    page.get_by_text("collapses").wait_for()
    expect(page.locator(".pn-loading")).to_have_count(0)
    expect(page).to_have_url(re.compile("estimator=regression"))


def test_the_address_restores_a_setting(served, page):
    query = "process=custom&a11=0.5&a12=-2&a21=2&a22=0.5&estimator=regression&arrows=difference&frame=77"
    open_app(page, served, query)
    expect(page.get_by_text("unstable")).to_be_visible()
    expect(page.get_by_text("0.5 ± 2 i")).to_be_visible()
    assert slider(page).input_value() == "77"
    assert "regression" in page.locator("select").evaluate_all("all => all.map(one => one.value)")
    assert re.match(r"t = 6\.42 +arrows: v̂ − v", clock(page))
    expect(page.get_by_text("collapses")).to_be_visible()


def test_a_broken_address_shows_the_default(served, page):
    open_app(page, served, STILL)
    default = clock(page), page.get_by_text("velocity error").inner_text(), page.get_by_text("eigenvalues").inner_text()
    junk = "horizon=nan&paths=../../etc/passwd&seed=-1e999&observations=[1,2]&estimator=%3Cscript%3E&process={}&a11=inf"
    open_app(page, served, f"{STILL}&{junk}")
    assert default == (
        clock(page),
        page.get_by_text("velocity error").inner_text(),
        page.get_by_text("eigenvalues").inner_text(),
    )


def test_the_link_that_is_copied_opens_the_same_frame(served, page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_app(page, served, "process=reversible&frame=41")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert "process=reversible" in link
    assert "frame=41" in link


@pytest.mark.parametrize("query", [STILL, f"{STILL}&process=double+well&compare=symmetric"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_at_any_width(served, page, width, query):
    page.set_viewport_size({"width": width, "height": 800})
    open_app(page, served, query)
    wait_until_still(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in (plane(page), slider(page), page.get_by_text("velocity error").first):
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert plane(page).bounding_box()["height"] >= (180 if "well" in query else 280)


def test_on_a_phone_the_controls_unfold_above_the_figure(served, page):
    page.set_viewport_size({"width": 360, "height": 740})
    open_app(page, served)
    process = page.get_by_role("button", name="reversible", exact=True)
    expect(process).not_to_be_visible()
    page.locator("#sidebar-toggle").click()
    expect(process).to_be_visible()
    page.wait_for_timeout(500)
    assert process.bounding_box()["y"] < plane(page).bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_chapters_are_linked(served, page):
    open_app(page, served)
    links = page.locator("a[href*='/book/notebooks/']").evaluate_all("all => all.map(one => one.href)")
    assert len(links) == 4
    assert all(page.request.get(link).ok for link in links)
