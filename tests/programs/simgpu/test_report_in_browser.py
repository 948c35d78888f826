"""report.html in Chromium: the figure zooms and says what is under the pointer, tables are sorted, nothing is fetched.

Only with --browser.
"""

import importlib.util

import pytest
import torch
from torch import nn

import simgpu
from simgpu.report import html
from simgpu.report.sizes import mib
from tools import chromium

MISSING = "there is no Chromium" * (chromium.FOUND is None)
MISSING = MISSING or "websocket-client is missing" * (importlib.util.find_spec("websocket") is None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

BOX = "(() => { const box = document.querySelector('.u-over').getBoundingClientRect();"
VIEW = "document.querySelector('.chart').dataset.view"
READOUT = "document.querySelector('.readout').innerText"
NAMES = "[...document.querySelectorAll('table.tree tbody tr')].map((row) => row.cells[0].innerText)"
INK = "getComputedStyle(document.body).backgroundColor"


def program():
    hostile = type("</script><b>", (nn.Linear,), {})
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)], hostile(256, 4096)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        net(torch.ones(4096, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def report():
    return simgpu.run(program, gpu="T4")


@pytest.fixture
def page(report, tmp_path):
    """The report in a browser. Afterwards its console said nothing, and only the file was asked for."""
    path = tmp_path / "report.html"
    path.write_text(html.document(report), encoding="utf-8")
    browser = chromium.Chromium(1100, 900)
    try:
        browser.open(path.as_uri())
        browser.wait("!!document.querySelector('.u-over')")
        yield browser
        assert browser.said == []
        assert browser.requested == [path.as_uri()]
    finally:
        browser.close()


def point(browser, across: float, down: float) -> tuple[float, float]:
    """The place of a share of the figure's width and height, on the screen."""
    found = browser.evaluate(f"{BOX} return [box.left + box.width * {across}, box.top + box.height * {down}]; }})()")
    return found[0], found[1]


def mouse(browser, kind: str, place: tuple[float, float], **more) -> None:
    browser.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)


def pressed(browser, kind: str, place: tuple[float, float], count: int = 1) -> None:
    mouse(browser, kind, place, button="left", buttons=1, clickCount=count)


def view(browser) -> list[int]:
    return [int(one) for one in browser.evaluate(VIEW).split()]


def test_the_figure_zooms_and_goes_back(page, report):
    page.evaluate("document.querySelector('.chart').scrollIntoView()")
    whole = [0, report.timeline.events]
    assert view(page) == whole
    mouse(page, "mouseMoved", point(page, 0.25, 0.5))
    pressed(page, "mousePressed", point(page, 0.25, 0.5))
    mouse(page, "mouseMoved", point(page, 0.5, 0.5), buttons=1)
    pressed(page, "mouseReleased", point(page, 0.5, 0.5))
    first, last = view(page)
    assert first == pytest.approx(whole[1] * 0.25, abs=8) and last == pytest.approx(whole[1] * 0.5, abs=8)
    mouse(page, "mouseWheel", point(page, 0.5, 0.5), deltaX=0, deltaY=-100)
    page.wait(f"{VIEW} !== '{first} {last}'")
    assert view(page)[1] - view(page)[0] < last - first
    for count in (1, 2):
        pressed(page, "mousePressed", point(page, 0.5, 0.5), count)
        pressed(page, "mouseReleased", point(page, 0.5, 0.5), count)
    page.wait(f"{VIEW} === '0 {whole[1]}'")
    for name, narrower in (("in", True), ("out", False)):
        before = view(page)[1] - view(page)[0]
        page.evaluate(f"document.querySelector('[data-zoom={name}]').click()")
        assert (view(page)[1] - view(page)[0] < before) is narrower


def test_the_pointer_finds_a_block(page):
    page.evaluate("document.querySelector('.chart').scrollIntoView()")
    mouse(page, "mouseMoved", point(page, 0.6, 0.96))  # above the parameters, 2 % of the height
    page.wait(f"{READOUT}.includes('Under the pointer')")
    said = page.evaluate(READOUT)
    assert "optimizer states" in said and " MiB" in said and "test_report_in_browser.py:" in said
    assert "alive from event" in said


def test_the_mark_is_at_the_event_with_the_allocators_peak(page, report):
    """The event under the mark, as the figure itself describes it, also where the view is narrow."""
    page.evaluate("document.querySelector('.chart').scrollIntoView()")
    mark = float(page.evaluate("document.querySelector('.chart').dataset.mark"))
    for _ in range(3):
        first, last = view(page)
        place = point(page, (mark - first) / (last - first), 0.5)
        mouse(page, "mouseMoved", place)
        page.wait(f"{READOUT}.includes('Event ')")
        said = page.evaluate(READOUT)
        assert said.startswith(f"Event {report.timeline.at} of {report.timeline.events}: allocates")
        assert f"Then: {mib(report.peak)} MiB allocated" in said
        mouse(page, "mouseWheel", place, deltaX=0, deltaY=-100)
        page.wait(f"{VIEW} !== '{first} {last}'")
    assert report.timeline.allocated()[int(mark)] == report.peak


def test_a_click_sorts_the_modules(page):
    click = "document.querySelectorAll('table.tree th button:not(.fold)')[{}].click()"
    page.evaluate(choose(1))
    page.evaluate(click.format(0))
    layers = [str(number) for number in range(9)]
    assert page.evaluate(NAMES) == ["outside all modules", "Sequential", *layers]
    page.evaluate(click.format(2))
    assert page.evaluate(NAMES)[1] == "8"  # has most parameters
    page.evaluate(click.format(2))
    assert page.evaluate(NAMES)[-1] == "8"


def choose(depth) -> str:
    return (
        f"(() => {{ const choice = document.querySelector('select.depth'); choice.value = '{depth}';"
        " choice.onchange(); })()"
    )


def test_rows_of_modules_open_and_close(page, report):
    assert len(page.evaluate(NAMES)) == 11  # the model, its 9 parts, and what is outside
    page.evaluate(choose(0))
    assert sorted(page.evaluate(NAMES)) == ["Sequential", "outside all modules"]
    fold = "[...document.querySelectorAll('tr.parent .fold')].at({})"
    page.evaluate(fold.format(0) + ".click()")
    assert len(page.evaluate(NAMES)) == 11
    rows = "[...document.querySelectorAll('tr.parent')]"
    page.evaluate(f"{rows}.find((row) => row.innerText.startsWith('2')).querySelector('.fold').click()")
    names = page.evaluate(NAMES)
    assert len(names) == 13 and set(names[names.index("2") + 1 :][:2]) == {"2.0", "2.1"}
    page.evaluate(fold.format(0) + ".click()")
    assert len(page.evaluate(NAMES)) == 2
    page.evaluate(choose("alone"))
    shown = (
        "[...document.querySelectorAll('table.tree tbody tr')].map((row) => Number(row.querySelector('data').value))"
    )
    assert sum(page.evaluate(shown)) == report.peak and "2" not in page.evaluate(NAMES)
    page.evaluate(choose(2))
    assert page.evaluate("document.querySelectorAll('table.tree [aria-expanded=true]').length") == 9


def test_a_name_that_is_html_is_text(page):
    assert page.evaluate("document.body.innerText.includes('</script><b>')")
    assert page.evaluate("document.querySelectorAll('b:not(.readout b)').length") == 0


def test_a_narrow_screen_does_not_scroll_sideways(page):
    page.resize(420, 900)
    page.wait("document.querySelector('.chart canvas').getBoundingClientRect().width < 420")
    assert page.evaluate("document.documentElement.scrollWidth") == 420


def test_dark_and_light(page):
    light = page.evaluate(INK)
    page.dark(True)
    assert light == "rgb(255, 255, 255)" and page.evaluate(INK) == "rgb(20, 23, 26)"


def test_the_frame_of_a_notebook(report, tmp_path):
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><body>{report._repr_html_()}</body>", encoding="utf-8")
    browser = chromium.Chromium(900, 900)
    try:
        browser.open(path.as_uri())
        browser.wait("document.readyState === 'complete' && !!document.querySelector('iframe')")
        browser.wait("performance.now() > 0 && frames.length === 1")
        assert browser.evaluate("document.querySelector('iframe').clientHeight") > 300
        assert browser.said == []
    finally:
        browser.close()
