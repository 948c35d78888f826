"""The page in Chromium: it loads, answers as CPython does, to the byte, works by keyboard, and sends nothing away."""

import json

import pytest

from simgpu.allocator import snapshot as snapshots
from tests.course.playground.recorded import recorded
from tests.course.playground.wandering import MIB, wander
from tools import chromium
from tools.playground import build, pyodide
from tools.playground.answers import Desk
from tools.playground.tasks import TASKS

READY = "document.body !== null && document.body.dataset.ready === 'true'"
SHOWN = "!document.getElementById('results').hidden"
LETTER_Z, ENTER, TAB, DELETE, ARROW_RIGHT = 90, 13, 9, 46, 39
CONTROL = 2


def here() -> str:
    """What is missing for these tests on this machine; nothing if nothing is."""
    if chromium.FOUND is None:
        return "there is no Chromium"
    try:
        import websocket  # noqa: F401

        pyodide.files()
    except (ImportError, pyodide.NoPyodide) as error:
        return str(error)
    return ""


MISSING = here()
pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build.build(folder / "playground")
    server = chromium.Server(folder)
    yield f"{server.url}playground/index.html"
    server.close()


@pytest.fixture(scope="module")
def browser(site):
    opened = chromium.Chromium()
    opened.open(f"{site}?task=ten_free_eight_not")
    opened.wait(READY, 120)
    yield opened
    opened.close()


@pytest.fixture
def page(browser):
    """The page after its start: an empty card of 2 GiB."""
    fresh = {"do": "new", "total": "2 GiB"}
    browser.evaluate(f"document.getElementById('task').value = ''; playground.send({json.dumps(fresh)})")
    browser.said.clear()
    yield browser
    assert browser.said == []


def ask(page, **request) -> dict:
    """Python's answer in the browser."""
    return page.evaluate(f"playground.ask({json.dumps(request)})")


def here_and_there(page, requests) -> list[tuple[dict, dict]]:
    """The answers to the same requests, of CPython here and of the browser."""
    desk = Desk()
    mine = [json.loads(desk.answer(json.dumps(request))) for request in requests]
    asks = f"{json.dumps(requests)}.map((one) => playground.ask(one))"  # answered in the order in which they are made
    return list(zip(mine, page.evaluate(f"Promise.all({asks})"), strict=True))


def test_it_loads_from_its_own_server_and_says_nothing(browser, site):
    """It begins with the task that its address names."""
    assert browser.said == []
    assert browser.evaluate("document.querySelectorAll('#map button.block').length") == 5
    assert "20 MiB" in browser.evaluate("document.getElementById('goal').textContent")
    origin = site.rsplit("/", 2)[0]
    assert len(browser.requested) > 10
    assert [address for address in browser.requested if not address.startswith((origin, "data:", "blob:"))] == []
    assert browser.evaluate("document.getElementById('status').hidden")


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "garbage_collection_threshold:0.6"])
def test_random_moves_give_the_counters_of_cpython(page, settings):
    start = {"do": "new", "total": "1 GiB", "allowed": "600 MiB", "settings": settings}
    moves = [{"do": "move", "move": move} for move in wander(len(settings), 250)]
    answers = here_and_there(page, [start, *moves, {"do": "undo"}])
    assert sum(one["ok"] for one, _ in answers) > 150
    for mine, theirs in answers:
        assert theirs == mine  # segments, counters, words, errors
    failures = [mine["told"]["error"] for mine, _ in answers if mine.get("told", {}).get("error")]
    assert any(text.startswith("CUDA out of memory. Tried to allocate") for text in failures)


def test_the_tasks_are_solved_there_too(page):
    requests = [one for task in TASKS for one in ({"do": "new", "task": task.key}, {"do": "show"})]
    for mine, theirs in here_and_there(page, requests):
        assert theirs == mine


def test_by_keyboard_alone(page):
    page.evaluate("document.getElementById('size').focus(); document.getElementById('size').select()")
    page.type("300 MiB")
    page.press("Enter", ENTER, "\r")
    page.wait("document.querySelectorAll('#map button.block').length === 1")
    page.type("4 B")  # the field has the focus still, and its text is selected
    page.press("Enter", ENTER, "\r")
    page.wait("document.querySelectorAll('#map .segment[role=group]').length === 2")
    labels = page.evaluate("[...document.querySelectorAll('#map button.block')].map((one) => one.ariaLabel)")
    assert "a: block of 300 MiB, allocated" in labels
    assert any(label.startswith("b: block of 512 B, 4 B of it asked for") for label in labels)
    for _ in range(60):
        page.press("Tab", TAB)
        if page.evaluate("document.activeElement.classList.contains('block')"):
            break
    for _ in range(5):
        if page.evaluate("document.activeElement.ariaLabel.startsWith('a:')"):
            break
        page.press("ArrowRight", ARROW_RIGHT)
    page.press("Delete", DELETE)
    page.wait("document.getElementById('said').textContent.startsWith('free a')")
    page.evaluate("document.getElementById('free-name').focus()")
    page.type("b")
    page.press("Enter", ENTER, "\r")
    page.wait("document.getElementById('said').textContent.startsWith('free b')")
    page.evaluate("document.activeElement.blur()")
    page.press("z", LETTER_Z, modifiers=CONTROL)
    page.wait("document.getElementById('said').textContent === 'Taken back: free b.'")


def test_errors_stand_beside_what_was_typed(page):
    page.evaluate("document.getElementById('size').focus(); document.getElementById('size').select()")
    page.type("<b>lots</b>")
    page.press("Enter", ENTER, "\r")
    page.wait("!document.getElementById('size-error').hidden")
    assert page.evaluate("document.getElementById('size-error').textContent").startswith("'<b>lots</b>' is not a size")
    page.evaluate("document.getElementById('settings').value = 'max_split_size_mb:5'")
    page.evaluate("document.getElementById('start').requestSubmit()")
    page.wait("!document.getElementById('settings-error').hidden")
    assert "must be >= 20, got 5" in page.evaluate("document.getElementById('settings-error').textContent")
    page.evaluate("document.getElementById('settings').value = ''")


def test_a_task_as_a_reader_plays_it(page):
    page.evaluate("document.getElementById('task').value = 'room_for_800'")
    page.evaluate("document.getElementById('task').dispatchEvent(new Event('change'))")
    page.wait("document.querySelectorAll('#map button.block').length === 7")
    for name in "cde":
        page.evaluate(f"document.querySelector('#map button[aria-label^=\"{name}:\"]').click()")
        page.evaluate("document.querySelector('#selected button').click()")
        page.wait(f"document.getElementById('said').textContent.startsWith('free {name}')")
    assert page.evaluate("document.getElementById('verdict').classList.contains('solved')")


def test_a_snapshot_gives_the_counters_of_cpython(page, tmp_path):
    _, snapshot = recorded(1, 400, "", 450 * MIB)
    path = tmp_path / "mine.pickle"
    snapshots.write(snapshot, path)
    page.choose_file("#file", path)
    page.wait(SHOWN)
    desk = Desk()
    found = json.loads(desk.answer(json.dumps({"do": "snapshot", "path": str(path), "name": "mine.pickle"})))
    total = f"{found['history']['total']} B"
    assert page.evaluate("document.getElementById('replay-total').value") == total
    for settings in ("", "expandable_segments:True", "max_split_size_mb:32,garbage_collection_threshold:0.5"):
        request = {"do": "replay", "settings": settings, "total": total}
        assert ask(page, **request) == json.loads(desk.answer(json.dumps(request)))
    peak = page.evaluate("document.querySelectorAll('#side-by-side tbody tr')[1].textContent")
    assert f"{found['history']['peak_reserved'] // MIB} MiB" in peak
    assert page.evaluate("document.querySelector('#curves svg').ariaLabel").startswith("Memory over ")


def test_a_file_that_is_none_is_said_to_be_none(page, tmp_path):
    path = tmp_path / "letter.pickle"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    page.choose_file("#file", path)
    page.wait("!document.getElementById('file-error').hidden")
    said = page.evaluate("document.getElementById('file-error').textContent")
    assert said.startswith("letter.pickle: refused: the pickle wants os.system")


def test_nothing_can_leave(page):
    """The worker has no way out any more, and the page may talk to its own server alone."""
    (worker,) = page.workers
    ways = "['fetch', 'XMLHttpRequest', 'WebSocket', 'EventSource', 'WebTransport'].map((name) => typeof self[name])"
    assert page.evaluate(ways, worker) == ["undefined"] * 5
    elsewhere = "fetch('http://127.0.0.1:9/').then(() => 'went', (error) => 'refused')"
    assert page.evaluate(elsewhere) == "refused"
    assert any("Content Security Policy" in line for line in page.said)
    page.said.clear()


@pytest.mark.parametrize("width", [420, 800, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_width_scrolls_sideways_and_texts_can_be_read(page, width, dark):
    for move in ({"size": "4 B", "count": 300}, {"size": "11 MiB", "count": 3}, {"size": "900 MiB", "count": 3}):
        page.evaluate(f"playground.send({json.dumps({'do': 'move', 'move': {'do': 'ask', **move}})})")
    page.resize(width, 900)
    page.evaluate(f"document.documentElement.dataset.theme = '{'dark' if dark else 'light'}'")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    page.resize(1280, 900)
    page.evaluate("document.documentElement.dataset.theme = 'light'")


# Texts whose contrast with what is behind them is below 4.5 (WCAG 2, AA).
CONTRAST = """(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const linear = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => [r, g, b].map((x) => linear(x / 255))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = parse(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] > 0.5) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.checkVisibility() || one.closest(":disabled, .hidden")) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${one.tagName}.${one.className} ${one.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""


def test_every_control_has_a_name_and_every_picture_a_text(page):
    ask(page, do="hello")
    nameless = """[...document.querySelectorAll("input, select, button, [role=img], [role=region]")]
      .filter((one) => !(one.ariaLabel || one.labels?.length || one.getAttribute("aria-labelledby")))
      .filter((one) => one.tagName !== "BUTTON" || !one.textContent.trim()).map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    kinds = ("button", "textbox", "combobox", "image", "group")
    named = [node for node in tree if node.get("role", {}).get("value") in kinds and not node["ignored"]]
    assert len(named) > 15
    without = [node for node in named if not node.get("name", {}).get("value")]
    assert [node["role"]["value"] for node in without if node["role"]["value"] != "group"] == []
