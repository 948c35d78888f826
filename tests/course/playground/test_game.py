"""The game of the playground page: moves, undo, errors, tasks with their solutions, and the program that it writes."""

import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.physical import Device
from simgpu.session import simulated_gpu
from tests.course.playground.wandering import wander
from tools.playground import build, state
from tools.playground.answers import Desk
from tools.playground.game import MOST_BLOCKS, Card, Playground, Refused
from tools.playground.tasks import TASKS, ask, free
from tools.playground.telling import exact

ROOT = Path(__file__).parents[3]
MIB = 2**20
CARD = Card(2048 * MIB)


def said(game, move):
    return " ".join(game.move(move).said)


def asked(desk, **request):
    return json.loads(desk.answer(json.dumps(request)))


# --- moves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "nbytes"), [("800 MiB", 800 * MIB), ("4 B", 4), ("1e9", 10**9), (512, 512), ("1.5 GiB", 1536 * MIB)]
)
def test_a_request_is_the_allocators(size, nbytes):
    game = Playground(CARD)
    game.move(ask(size, "a"))
    direct = CachingAllocator(Device(CARD.total))
    direct.malloc(nbytes)
    assert game.allocator.stats() == direct.stats()
    assert state.counters(game.allocator)["requested_bytes.all.current"] == nbytes


@pytest.mark.parametrize(
    ("move", "error"),
    [
        ({"do": "ask", "size": ""}, "'' is not a size"),
        ({"do": "ask", "size": "0"}, "more than 0 B"),
        ({"do": "ask", "size": "-3 MiB"}, "is not a size"),
        ({"do": "ask"}, "is not a size"),
        ({"do": "ask", "size": "1", "name": "1st"}, "got the name '1st'"),
        ({"do": "ask", "size": "1", "name": "a b"}, "got the name 'a b'"),
        ({"do": "ask", "size": "1", "count": "many"}, "how often: got 'many'"),
        ({"do": "ask", "size": "1", "count": 0}, "wanted 1 to 10,000"),
        ({"do": "ask", "size": "1", "name": "here", "count": "until it fails"}, "here is there already"),
        ({"do": "free", "name": "nobody"}, "nothing is called 'nobody'; there is here"),
        ({"do": "free", "name": "here[0]"}, "nothing is called"),
        ({"do": "free"}, "nothing is called ''"),
        ({"do": "jump"}, "got the move 'jump'"),
        ({}, "got the move None"),
        ({"do": "settings", "text": "backend:cudaMallocAsync"}, "not modelled"),
    ],
)
def test_what_cannot_be_done_changes_nothing(move, error):
    game = Playground(CARD)
    game.move(ask("3 MiB", "here"))
    before = state.whole(game)
    with pytest.raises(Refused) as raised:
        game.move(move)
    assert error in str(raised.value)
    assert state.whole(game) == before


def test_a_name_that_is_taken_is_given_anew_as_in_python():
    """The new tensor is there before the old one goes: the peak has both."""
    game = Playground(CARD)
    game.move(ask("16 MiB", "x"))
    game.move(ask("16 MiB", "x"))
    counters = state.counters(game.allocator)
    assert counters["allocated_bytes.all.current"] == 16 * MIB
    assert counters["allocated_bytes.all.peak"] == 32 * MIB


def test_a_request_that_fails_leaves_the_old_one():
    game = Playground(CARD)
    game.move(ask("1 GiB", "x"))
    told = game.move(ask("1.5 GiB", "x"))
    assert told.error.startswith(
        "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 2.00 GiB"
    )
    assert list(game.names().values()) == ["x"]
    told = game.move(ask("600 MiB", "y", 2))  # the first fits, and goes again with the list that never was
    assert told.error and list(game.blocks) == ["x"]


def test_the_text_of_the_error_is_the_allocators():
    card = Card(4096 * MIB, 300 * MIB, 1536 * MIB)
    direct = CachingAllocator(Device(card.total, card.context))
    direct.set_memory_fraction(card.allowed / card.total)
    direct.malloc(1000 * MIB)
    with pytest.raises(OutOfMemory) as raised:
        direct.malloc(800 * MIB)
    game = Playground(card)
    game.move(ask("1000 MiB"))
    assert game.move(ask("800 MiB")).error == str(raised.value)
    assert "1.50 GiB allowed" in str(raised.value)


def test_many_at_once_one_of_them_and_all():
    game = Playground(CARD)
    game.move(ask("4 B", "a", 4096))
    assert game.allocator.reserved == 2 * MIB
    game.move(ask("4 B", "b"))
    assert game.allocator.reserved == 4 * MIB
    game.move(free("a[7]"))
    assert game.living == 4096
    with pytest.raises(Refused, match=r"a\[7\] was freed before"):
        game.move(free("a[7]"))
    with pytest.raises(Refused, match="nothing is called"):
        game.move(free("a[4096]"))
    game.move(free("a"))
    assert game.names() == {game.blocks["b"][0].address: "b"}


def test_the_last_of_a_list_ends_it():
    game = Playground(CARD)
    game.move(ask("4 B", "a", 2))
    game.move(free("a"))
    with pytest.raises(Refused, match="nothing is called 'a\\[0\\]'"):
        game.move(free("a[0]"))
    game.move(ask("4 B", "a", 2))
    game.move(free("a[1]"))
    game.move(free("a[0]"))
    assert game.blocks == {}


def test_asking_until_it_fails():
    game = Playground(CARD)
    told = game.move({"do": "ask", "size": "100 MiB", "count": "until it fails"})
    assert game.living == 20 and told.text == "a = 100 MiB × 20"
    assert told.error.startswith("CUDA out of memory. Tried to allocate 100.00 MiB.")
    game = Playground(CARD)
    told = game.move({"do": "ask", "size": "4 B", "count": "until it fails"})
    assert told.error is None and game.living == MOST_BLOCKS
    with pytest.raises(Refused, match="at most 10,000 blocks"):
        game.move(ask("4 B"))


def test_names_that_nobody_gave():
    game = Playground(CARD)
    for _ in range(28):
        game.move(ask("4 B"))
    assert list(game.blocks)[:3] + list(game.blocks)[-3:] == ["a", "b", "c", "z", "a1", "b1"]
    game.move(free("b"))
    assert game.next_name() == "b"


def test_undo_takes_back_any_move():
    game = Playground(CARD, "", (ask("30 MiB", "kept"),))
    states = [state.whole(game)]
    for move in wander(5, 60):
        try:
            game.move(move)
        except Refused:
            continue
        states.append(state.whole(game))
    assert len(states) > 40
    for before in reversed(states[:-1]):
        game.undo()
        assert state.whole(game) == before
    with pytest.raises(Refused, match="no move to take back"):
        game.undo()


# --- settings and cards --------------------------------------------------------------------------


def test_settings_at_the_start_and_while_running():
    game = Playground(CARD, "expandable_segments:True")
    game.move(ask("3 MiB"))
    assert game.allocator.reserved == 20 * MIB
    assert state.segments(game.allocator)[0]["expandable"]
    game.move({"do": "settings", "text": "expandable_segments:False,roundup_power2_divisions:4"})
    game.move(ask("300 MiB", "big"))
    assert game.blocks["big"][0].size == 320 * MIB
    assert state.settings(game.allocator)["roundup_power2_divisions"] == [4]


def test_a_setting_that_pytorch_refuses_is_told_in_its_words():
    with pytest.raises(Refused, match="option max_split_size_mb too small, must be >= 20, got 5"):
        Playground(CARD, "max_split_size_mb:5")
    game = Playground(CARD)
    told = game.move({"do": "settings", "text": "garbage_collection_threshold:0.8,nonsense:1"})
    assert told.error == "Unrecognized key 'nonsense' in Accelerator allocator config."
    assert game.allocator.settings.garbage_collection_threshold == 0.8  # what stands before the error counts


def test_a_split_size_that_comes_too_late():
    """PyTorch would give the driver the rest of a cut block back, as if it were a segment."""
    game = Playground(CARD)
    for move in (ask("200 MiB", "a"), free("a"), ask("50 MiB", "b"), ask("1600 MiB", "c")):
        game.move(move)
    game.move({"do": "settings", "text": "max_split_size_mb:64"})
    told = game.move(ask("400 MiB"))
    assert told.error.startswith("CUDA error: invalid argument.")
    assert game.undo() is not None and game.allocator.reserved == 1800 * MIB


@pytest.mark.parametrize(
    ("card", "error"),
    [(Card(MIB, 2 * MIB), "needs room for its context"), (Card(MIB, 0, 2 * MIB), "wanted at most the card's memory")],
)
def test_cards_that_cannot_be(card, error):
    with pytest.raises(Refused, match=error):
        Playground(card)


# --- what is said --------------------------------------------------------------------------------


def test_what_is_said_of_a_request_and_a_free():
    game = Playground(CARD)
    assert said(game, ask("4 B", "a")) == (
        "4 B becomes a block of 512 B, and is served from the small pool. No free block was large enough: the device "
        "gave a segment of 2 MiB. 2,096,640 B of it stay free."
    )
    assert "The smallest free block that is large enough had 2,096,640 B: best fit" in said(game, ask("1 MiB", "b"))
    assert "1 MiB would be left over, too little to be split off" in said(game, ask("11 MiB", "c"))
    assert "Other blocks of its segment are in use" in said(game, free("a"))
    assert "merged with free neighbours to 2 MiB. Its segment is free as a whole" in said(game, free("b"))
    assert said(game, {"do": "empty_cache"}) == (
        "1 segment with 2 MiB went back to the device. 12 MiB stay reserved: something in each segment is in use."
    )
    assert said(game, {"do": "empty_cache"}).startswith("There was nothing to give back.")


def test_what_is_said_of_segments_that_go_first():
    game = Playground(Card(1024 * MIB))
    game.move(ask("500 MiB", "a", 2))
    game.move(free("a"))
    assert "First 2 segments with 1,000 MiB went back to the device: the device was full (a retry)." in said(
        game, ask("800 MiB")
    )
    game = Playground(Card(1024 * MIB, 0, 1000 * MIB), "garbage_collection_threshold:0.5")
    game.move(ask("600 MiB", "a"))
    game.move(free("a"))
    assert "garbage_collection_threshold was passed" in said(game, ask("700 MiB"))
    game = Playground(Card(1024 * MIB), "max_split_size_mb:100")
    game.move(ask("400 MiB", "a", 2))
    game.move(free("a"))
    assert "max_split_size_mb lets large free blocks go first" in said(game, ask("700 MiB"))


def test_what_is_said_of_expandable_segments():
    game = Playground(CARD, "expandable_segments:True")
    assert "20 MiB were mapped behind the expandable segment. 17 MiB of it stay free." in said(game, ask("3 MiB", "a"))
    assert "Its pages can go back to the device with empty_cache." in said(game, free("a"))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (4, "4 B"),
        (MIB, "1 MiB"),
        (MIB + 1, "1,048,577 B"),
        (19 * MIB // 2, "9.5 MiB"),
        (10**9, "1,000,000,000 B (953.7 MiB)"),
        (1536 * MIB, "1,536 MiB"),
    ],
)
def test_sizes_lose_no_byte(nbytes, text):
    assert exact(nbytes) == text


# --- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_a_tasks_solution_solves_it_and_less_does_not(task):
    game = task.start()
    assert not task.judge(game)[0]
    game = task.start(task.solution_settings)
    for at, move in enumerate(task.solution):
        assert not task.judge(game)[0], f"solved before move {at + 1}"
        task.move(game, move)
    solved, words = task.judge(game)
    assert solved and words
    assert task.most_moves is None or len(task.solution) <= task.most_moves


@pytest.mark.parametrize(
    ("key", "moves"),
    [
        ("one_byte_more", [ask("2 MiB")]),  # more bytes than are needed
        ("one_byte_more", [ask("1 MiB"), ask("1048577")]),  # two requests
        ("ten_free_eight_not", [free("a"), free("e")]),  # 12 MiB, and the segment's ends: see below
        ("ten_free_eight_not", [free("a"), free("b")]),  # 8 MiB in one piece
        ("most_returned", [free("a"), free("c"), free("d"), free("e"), {"do": "empty_cache"}]),  # the largest four
        ("room_for_800", [free("a"), free("g"), free("c")]),  # the largest three
        ("thousand_free", [ask("1500 MiB", "a"), free("a"), ask("1 GiB", "b"), ask("800 MiB")]),
        ("three_refused", [ask("1530 MiB"), ask("3 MiB")]),  # 6 MiB left
        ("three_refused", [ask("1518 MiB"), ask("4 MiB")]),  # not 3
        ("loop_goes_on", [ask("256 MiB"), {"do": "empty_cache"}, ask("1024 MiB")]),
    ],
)
def test_what_a_learner_would_try_first(key, moves):
    task = next(one for one in TASKS if one.key == key)
    game = task.start()
    for move in moves:
        task.move(game, move)
    assert task.judge(game)[0] == (moves == [free("a"), free("e")])  # the two ends do as well as a and c


def test_the_rules_of_a_task():
    task = next(one for one in TASKS if one.key == "room_for_800")
    game = task.start()
    with pytest.raises(Refused, match="solved with free alone"):
        task.move(game, ask("1 MiB"))
    for name in "abc":
        task.move(game, free(name))
    with pytest.raises(Refused, match="the task's 3 moves are made"):
        task.move(game, free("d"))
    with pytest.raises(Refused, match="solved by settings alone"):
        TASKS[-1].move(TASKS[-1].start(), ask("1 MiB"))


@pytest.mark.parametrize(
    ("text", "solves"),
    [
        ("max_split_size_mb:512", True),
        ("garbage_collection_threshold:0.5", False),
        ("roundup_power2_divisions:4", False),
    ],
)
def test_other_settings_for_the_last_task(text, solves):
    assert TASKS[-1].judge(TASKS[-1].start(text))[0] == solves


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_program_does_the_same_to_pytorch(seed):
    """The moves as PyTorch, run on the simulated GPU: the same counters."""
    game = Playground(Card(16 * 2**30, 0, 600 * MIB))
    for move in wander(seed, 80):
        try:
            told = game.move(move)
        except Refused:
            continue
        if told.error and told.error.startswith("CUDA error"):
            game.undo()  # a GPU is of no use after that
    program = game.program()
    assert ("except RuntimeError" in program) == (seed != 2)  # one of them meets no failure
    with simulated_gpu("V100-16GB"):
        import torch

        share = game.card.allowed / torch.cuda.get_device_properties(0).total_memory
        program = program.replace(f"{game.card.allowed} / torch.cuda.get_device_properties(0).total_memory", str(share))
        names = {"print": lambda *_: None}  # what lives in it lives while the counters are read
        exec(program, names)
        stats = {key: value for key, value in torch.cuda.memory_stats().items() if "private_pools" not in key}
    counters = state.counters(game.allocator)
    later = () if "num_oom_rejections" in stats else ("num_oom_rejections",)  # from torch 2.12 on
    assert stats == {name: value for name, value in counters.items() if name not in later}


# --- what the page asks ---------------------------------------------------------------------------


def test_a_conversation():
    desk = Desk()
    hello = asked(desk, do="hello")
    assert hello["ok"] and {"A100-80GB", "T4"} <= {card["key"] for card in hello["cards"]}
    assert [task["key"] for task in hello["tasks"]] == [task.key for task in TASKS]
    assert hello["state"]["card"] == {
        "total": 2048 * MIB,
        "context": 0,
        "allowed": None,
        "free": 2048 * MIB,
        "in_use": 0,
        "reserved": 0,
        "allocated": 0,
    }
    answer = asked(desk, do="move", move=ask("800 MiB", "a"))
    (segment,) = answer["state"]["segments"]
    assert segment["blocks"] == [
        {
            "address": segment["address"],
            "size": 800 * MIB,
            "requested": 800 * MIB,
            "state": "active_allocated",
            "name": "a",
        }
    ]
    assert asked(desk, do="move", move=ask("x"))["error"].startswith("'x' is not a size")
    assert asked(desk, do="undo")["undone"] == "a = 800 MiB"
    assert asked(desk, do="new", card="A100-80GB", allowed="10 GiB")["state"]["card"]["allowed"] == 10 * 2**30
    assert "wanted one of" in asked(desk, do="new", card="A1000")["error"]
    assert asked(desk, do="new", total="much")["error"].startswith("the card's memory: 'much' is not a size")
    assert "no task" in asked(desk, do="show")["error"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_a_task_through_the_desk(task):
    desk = Desk()
    began = asked(desk, do="new", task=task.key)["state"]["task"]
    assert (began["solved"], began["left"], began["why"]) == (False, task.most_moves, "")
    shown = asked(desk, do="show")["state"]
    assert shown["task"]["solved"] and shown["task"]["why"] == task.why
    with_settings = asked(desk, do="new", task=task.key, settings="expandable_segments:True")
    assert with_settings["ok"] == (not task.allowed)


# --- the files -------------------------------------------------------------------------------------


def test_the_archive_has_all_that_it_imports_and_no_torch(tmp_path):
    content = build.archive()
    assert content == build.archive()
    (tmp_path / "page.zip").write_bytes(content)
    code = (
        "import json, sys; sys.path[:0] = ['page.zip']; from tools.playground.answers import Desk;"
        "assert json.loads(Desk().answer('{\"do\": \"hello\"}'))['ok'];"
        "assert all('page.zip' in sys.modules[n].__file__ for n in ('simgpu', 'tools', 'sortedcontainers'));"
        "print(sorted({n.split('.')[0] for n in sys.modules} - sys.stdlib_module_names - {'__main__'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == ["simgpu", "sortedcontainers", "tools"]


def test_a_folder_with_something_else_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(build.pyodide, "files", lambda source: {"pyodide.mjs": b"//"})
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds something else"):
        build.build(tmp_path)
    page = build.build(tmp_path / "page")
    assert build.build(tmp_path / "page") == page and page.exists()
    assert (tmp_path / "thesis.tex").exists()


def test_pyodide_that_is_missing_or_another_is_refused(tmp_path):
    with pytest.raises(build.pyodide.NoPyodide, match="is missing: wanted the files of Pyodide 314"):
        build.pyodide.files(tmp_path)
    for name in build.pyodide.FILES:
        (tmp_path / name).write_text("something else")
    with pytest.raises(build.pyodide.NoPyodide, match="is not that of Pyodide"):
        build.pyodide.files(tmp_path)


def test_the_page_names_every_element_that_its_scripts_look_for():
    import re

    page = (build.PAGE / "index.html").read_text(encoding="utf-8")
    here = set(re.findall(r'\bid="([^"]+)"', page))
    for script in build.PAGE.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        wanted = set(re.findall(r'(?:\bat|getElementById|say)\("([^"]+)"', text))
        assert wanted <= here, script.name
    assert set(re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', page)) <= {
        *here,
        *re.findall(r'aria-describedby="([^"]+)"', page),
    }
    assert "http" not in re.sub(r'<a href="https://pyodide.org">', "", page).replace("http-equiv", "")


def test_wandering_meets_every_kind_of_move():
    rng = random.Random(1)
    kinds = {move["do"] for seed in range(3) for move in wander(rng.randrange(100) + seed, 300)}
    assert kinds == {"ask", "free", "empty_cache", "reset_peak", "settings"}
