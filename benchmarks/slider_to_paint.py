"""Milliseconds from moving the flow explorer's time slider to the painted frame, in headless Chromium, as JSON.

python benchmarks/slider_to_paint.py                      median and 95 % over 60 moves of the mouse, and the seconds
                                                          to the first picture of a server that has run before
python benchmarks/slider_to_paint.py --screenshot PATH    the picture in the README instead
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser.chromium import find  # noqa: E402

SLIDER = ".bk-panel-models-widgets-Player input[type=range]"
WATCH = """(slider) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name("plane")).canvas_view
  const pixels = () => {
    const {canvas, ctx} = view.primary
    const {data} = ctx.getImageData(canvas.width / 4, canvas.height / 4, canvas.width / 2, canvas.height / 2)
    let sum = 0
    for (let i = 0; i < data.length; i += 4) sum = (31 * sum + data[i]) >>> 0
    return sum
  }
  // A message posted in an animation frame arrives once that frame is painted; reading pixels waits for the raster too.
  const after_frame = (act) => requestAnimationFrame(() => {
    const channel = new MessageChannel()
    channel.port1.onmessage = act
    channel.port2.postMessage(null)
  })
  window.empty_frame = () => new Promise((resolve) => {
    const start = performance.now()
    after_frame(() => { pixels(); resolve(performance.now() - start) })
  })
  let last = pixels()
  slider.addEventListener("input", (event) => {
    window.painted = new Promise((resolve) => {
      const look = () => {
        const now = pixels()
        if (now == last) return performance.now() - event.timeStamp > 2000 ? resolve(null) : after_frame(look)
        last = now
        resolve(performance.now() - event.timeStamp)
      }
      after_frame(look)
    })
  })
}"""


@contextmanager
def served(port: int) -> Iterator[str]:
    """The app on a server of its own, which has already served it once."""
    command = [sys.executable, "-m", "panel", "serve", str(ROOT / "apps" / "flow_explorer.py"), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://localhost:{port}/flow_explorer"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=60).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def open_app(page: Page, url: str) -> float:
    """Open the app and wait for its figures; seconds that took."""
    start = time.perf_counter()
    page.goto(url)
    page.locator("canvas").first.wait_for()
    return time.perf_counter() - start


def measure(page: Page, url: str, moves: int = 60) -> dict[str, float]:
    first = open_app(page, f"{url}?frame=20")
    slider = page.locator(SLIDER)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1000)
    slider.evaluate(WATCH)
    floor = statistics.median(page.evaluate("empty_frame()") for _ in range(30))
    box = slider.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    times = []
    for i in range(moves):
        page.mouse.move(x + (i + 1) * box["width"] * 0.6 / moves, y)
        times.append(page.evaluate("window.painted"))
    page.mouse.up()
    times = sorted(ms for ms in times if ms is not None)  # a move within one frame of the film changes no pixel
    return {
        "slider_to_paint_median_ms": round(statistics.median(times), 1),
        "slider_to_paint_95_ms": round(times[int(0.95 * len(times))], 1),
        "frame_without_drawing_ms": round(floor, 1),
        "first_picture_s": round(first, 2),
        "moves": len(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--screenshot", metavar="PATH", help="write the README's picture there")
    parser.add_argument("--port", type=int, default=5971)
    options = parser.parse_args()
    with served(options.port) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 860})
        if options.screenshot:
            open_app(page, f"{url}?frame=112")
            page.wait_for_timeout(2000)
            page.screenshot(path=options.screenshot)
        else:
            print(json.dumps(measure(page, url)))
        browser.close()


if __name__ == "__main__":
    main()
