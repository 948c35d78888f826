"""Measures every slide of a folder in headless Chromium: `python -m tools.slides.look [FOLDER] [--pictures FOLDER]`.

At 1440 × 810 each slide has to fit, or to scroll: nothing of it may lie outside of what can be reached. A page has to
load, to say nothing on the console, and to ask nobody but its own server. What is wrong is printed, a line each, and
then how many slides fit as they are, with smaller type, or by scrolling; the status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools import chromium

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 1440, 810
READY = "document.body !== null && document.body.dataset.ready === 'true'"
# Each slide is shown with all its fragments, and measured: how far its content ends below the slide if it cannot be
# scrolled there, and how far what cannot be scrolled sideways stands out on the right.
MEASURE = """(() => {
  const leaves = [...document.querySelectorAll('.reveal .slides section')].filter(s => !s.querySelector('section'));
  return leaves.map(slide => {
    const at = Reveal.getIndices(slide);
    Reveal.slide(at.h, at.v ?? 0, 999);
    const box = slide.getBoundingClientRect(), scrolls = slide.classList.contains('scrolls');
    const parts = [...slide.querySelectorAll('*')].filter(e => e.getClientRects().length && !e.closest('aside.notes'));
    const wide = e => e.closest('.jp-OutputArea-output') !== null;
    const right = Math.max(0, ...parts.filter(e => !wide(e)).map(e => e.getBoundingClientRect().right)) - box.right;
    const below = scrolls ? 0 : Math.max(0, ...parts.map(e => e.getBoundingClientRect().bottom)) - box.bottom;
    const whole = Math.abs(box.width - innerWidth) < 2 && Math.abs(box.height - innerHeight) < 2;
    const size = parseFloat(slide.style.getPropertyValue('--size'));
    return {h: at.h, v: at.v ?? 0, right, below, whole, scrolls, size,
            prompt: /^(In|Out)\\s*\\[/m.test(slide.innerText)};
  });
})()"""


def problems(folder: Path, pictures: Path | None = None, counts: Counter | None = None) -> Iterator[str]:
    """What is wrong with the slides of the folder, a line each; `counts` gets how many fit in which way."""
    counts = Counter() if counts is None else counts
    server = chromium.Server(folder)
    browser = chromium.Chromium(WIDTH, HEIGHT)
    try:
        for path in sorted(folder.glob("*.slides.html")):
            yield from (f"{path.name}: {line}" for line in _page(browser, f"{server.url}{path.name}", counts))
            if pictures:
                pictures.mkdir(parents=True, exist_ok=True)
                _pictures(browser, pictures, path.name.removesuffix(".slides.html"))
        foreign = {asked for asked in browser.requested if not asked.startswith((server.url, "data:", "blob:"))}
        yield from (f"asks for {asked}" for asked in sorted(foreign))
    finally:
        browser.close()
        server.close()


def _page(browser: chromium.Chromium, url: str, counts: Counter) -> Iterator[str]:
    browser.said.clear()
    browser.open(url)
    browser.wait(f"location.href.startsWith('{url}') && {READY}")
    for slide in browser.evaluate(MEASURE):
        name = f"slide {slide['h'] + 1}.{slide['v'] + 1}"
        counts["scroll" if slide["scrolls"] else "fit" if slide["size"] == 24 else "fit with smaller type"] += 1
        if slide["below"] > 1:
            yield f"{name} ends {slide['below']:.0f} px below the screen"
        if slide["right"] > 1:
            yield f"{name} stands out {slide['right']:.0f} px on the right"
        if not slide["whole"]:
            yield f"{name} is not {WIDTH} × {HEIGHT}"
        if slide["prompt"]:
            yield f"{name} shows a prompt"
    yield from (f"the console: {line}" for line in browser.said)


def _pictures(browser: chromium.Chromium, pictures: Path, name: str) -> None:
    for number in range(browser.evaluate("Reveal.getTotalSlides()")):
        browser.evaluate(
            f"(s => {{const i = Reveal.getIndices(s); Reveal.slide(i.h, i.v ?? 0, 999)}})(Reveal.getSlides()[{number}])"
        )
        browser.picture(pictures / f"{name}-{number + 1:02}.png")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools.slides.look", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "slides")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each slide")
    options = parser.parse_args(arguments)
    if not any(options.folder.glob("*.slides.html")):
        parser.error(f"no slides in {options.folder}: python course.py slides")
    if chromium.FOUND is None:
        parser.error(f"there is no Chromium; its program is sought as {', '.join(chromium.NAMES)}")
    counts: Counter = Counter()
    found = 0
    for line in problems(options.folder, options.pictures, counts):
        found += 1
        print(line, flush=True)
    print(", ".join(f"{number} {how}" for how, number in counts.items()))
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
