"""A reader scrubs a clip, plays it slowly and brings a good and a bad one. `page` also watches for errors."""

import re
from itertools import count

import av
import numpy as np
import pytest
from playwright.sync_api import expect

STILL = "source=video&frame=20"  # a link to a frame does not start to play
CLOCK = "Bokeh.documents[0].get_model_by_name('video clock')"
MIDDLE = """one => {
    const middle = document.createElement("canvas")
    middle.width = one.width / 2
    middle.height = one.height / 2
    middle.getContext("2d").drawImage(one, -one.width / 4, -one.height / 4)
    return middle.toDataURL()
}"""


def open_app(page, served: str, query: str = STILL) -> None:
    page.goto(f"{served}/rollout_explorer?{query}")
    ready(page)


def ready(page) -> None:
    page.wait_for_function(f"() => window.Bokeh?.documents[0] && {CLOCK}?.text.includes('here frame')")
    expect(page.locator(".pn-loading")).to_have_count(0, timeout=60_000)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")


def clock(page) -> str:
    return page.evaluate(f"{CLOCK}.text")


def truth(page) -> str:
    """The middle of the screen that shows the truth, on the first canvas of its figure; its edges may fall between two
    pixels of the page."""
    return page.locator(".bk-Figure:visible").first.locator("canvas").first.evaluate(MIDDLE)


def slider(page):
    return page.locator(".bk-panel-models-widgets-Player:visible input[type=range]")


def chooser(page):
    return page.locator("input[type=file]")


def choice(page, text: str):
    return page.locator("select:visible").filter(has_text=text)


def chosen(page) -> list[str]:
    """What the menus say."""
    return page.locator("select:visible").evaluate_all("all => all.map(one => one.selectedOptions[0].text)")


def wait_for_new(page, before: str) -> str:
    for _ in range(600):
        if (now := truth(page)) != before:
            return now
        page.wait_for_timeout(50)
    pytest.fail("the picture stayed the same", pytrace=False)


@pytest.fixture
def clip(tmp_path):
    """Makes the file of a clip in which a bar moves to the right."""
    number = count()

    def make(frames: int = 24):
        path = tmp_path / f"bar{next(number)}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
            for i in range(frames):
                picture = np.zeros((64, 96, 3), np.uint8)
                picture[:, 20 + 2 * i :][:, :12] = 255
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        return path

    return make


def test_scrubbing_shows_other_frames_and_scores_without_asking_the_server(served, page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))))
    open_app(page, served)
    assert "frame 21 of 40" in clock(page)
    expect(page.get_by_text("Mean of the first 11 frames")).to_be_visible()
    before = truth(page)
    page.wait_for_timeout(500)
    sent.clear()
    slider(page).focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Mean of the first 17 frames")).to_be_visible()
    wait_for_new(page, before)
    assert "frame 27 of 40" in clock(page)
    assert sent == []
    page.keyboard.press("Home")
    expect(page.get_by_text("Nothing is predicted yet")).to_be_visible()


def test_slow_motion_plays_what_is_between_the_frames(served, page):
    open_app(page, served)
    page.get_by_role("button", name="¼", exact=True).click()
    expect(slider(page)).to_have_attribute("max", str(4 * 39), timeout=60_000)
    ready(page)
    assert slider(page).input_value() == "80" and "frame 21 of 40" in clock(page)
    expect(page.get_by_text("4 times as short")).to_be_visible()
    before = truth(page)
    page.locator(".bk-panel-models-widgets-Player:visible button.play").click()
    page.wait_for_function(f"() => /frame \\d+[.](25|5|75) of 40/.test({CLOCK}.text)")
    wait_for_new(page, before)
    expect(page).to_have_url(re.compile("slow=4"))


def test_another_method_and_clip_are_computed_and_named_in_the_address(served, page):
    open_app(page, served)
    before = truth(page)
    choice(page, "boxing").select_option("boxing")
    wait_for_new(page, before)
    choice(page, "persistence").select_option("persistence")
    page.get_by_text("The last frame that was seen stays").wait_for()
    expect(choice(page, "regression")).to_have_count(0)
    expect(page).to_have_url(re.compile("clip=boxing&method=persistence"))
    assert slider(page).input_value() == "20"


def test_a_good_video_is_shown_and_gives_way_to_the_test_figure(served, page, clip):
    open_app(page, served)
    before = truth(page)
    chooser(page).set_input_files(clip())
    page.get_by_text("24 frames; the square in the middle of 96 × 64 pixels made 64 × 64").wait_for()
    page.wait_for_function(f"() => {CLOCK}.text.includes('of 24')")
    mine = wait_for_new(page, before)
    page.get_by_role("button", name="test figure").click()
    page.wait_for_function(f"() => {CLOCK}.text.includes('of 40')")
    wait_for_new(page, mine)
    assert "bar" not in page.url and "your" not in page.url


@pytest.mark.parametrize("reason", ["this one has 9", "at most 8 MB; this file has 30.0"])
def test_a_bad_video_is_explained_and_the_picture_stays(served, page, clip, reason):
    """Each on a page of its own: of two uploads in a row it would be uncertain which one the note is about."""
    path = clip(9)
    if "MB" in reason:  # it is not even sent
        path.write_bytes(bytes(30 * 2**20))
    open_app(page, served)
    before = truth(page)
    chooser(page).set_input_files(path)
    expect(page.locator(".note")).to_contain_text(reason, timeout=60_000)
    expect(page.locator(".pn-loading")).to_have_count(0, timeout=60_000)
    assert truth(page) == before


def test_another_session_does_not_see_the_video(served, page, clip):
    open_app(page, served)
    chooser(page).set_input_files(clip())
    page.get_by_text("24 frames").wait_for()
    other = page.context.new_page()
    open_app(other, served)
    expect(other.get_by_role("button", name="your clip")).to_have_count(0)
    assert "of 40" in clock(other)
    other.close()


def test_the_address_restores_a_setting_and_junk_gives_the_default(served, page):
    query = "source=video&clip=running&method=augmented&video_objective=symmetric&video_integrator=rk4&context=4"
    open_app(page, served, f"{query}&slow=2&frame=31")
    assert chosen(page) == ["running", "flow of frame and velocity", "symmetric", "rk4"]
    assert slider(page).input_value() == "31" and "frame 16.5 of 40" in clock(page)
    open_app(page, served)
    usual = chosen(page)
    open_app(page, served, f"{STILL}&clip=%3Cscript%3E&method=nonsense&slow=3&context=1e999&person=-7")
    assert chosen(page) == usual and usual[0] == "walking"
    assert slider(page).get_attribute("max") == "39"


def test_from_the_pendulum_to_video_and_back(served, page):
    page.goto(f"{served}/rollout_explorer?frame=30")
    page.get_by_text("This path is off by").wait_for()
    page.get_by_role("button", name="video", exact=True).click()
    ready(page)
    expect(page.get_by_text("This path is off by")).to_be_hidden()
    expect(page.get_by_text("Nothing is predicted yet")).to_be_visible()
    page.get_by_role("button", name="pictures", exact=True).click()
    expect(page.get_by_text("This path is off by")).to_be_visible()
    assert slider(page).input_value() == "30"


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_at_any_width(served, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    open_app(page, served)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in (*page.locator(".bk-Figure:visible").all(), slider(page), page.locator("table")):
        box = part.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
