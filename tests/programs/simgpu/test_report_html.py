"""report.html: its figures are those of report.json and of the page, what programs say is escaped, and it works."""

import dataclasses
import json
import re
import textwrap
import traceback
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import simgpu
from simgpu.allocator import snapshot
from simgpu.command import main
from simgpu.engines import Choice
from simgpu.gpus import specs
from simgpu.report import diff_html, html, module_table, modules, stored, timeline, track
from simgpu.report.compare import Difference
from simgpu.report.owners import ACTIVATIONS, GRADIENTS, PARAMETERS, STATES
from simgpu.report.report import Line, Report, Spot
from simgpu.report.sizes import mib, size
from simgpu.report.timeline import EVENTS, Timeline
from simgpu.report.track import Description, Track
from simgpu.running.stub import findings, run

MIB = 2**20
VOID = {"meta", "link", "br", "img", "input"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.rest = nn.Sequential(nn.GELU(), nn.Linear(512, 256))
        self.tied = nn.Linear(256, 512, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.rest(self.first(x)))


def train(net=Net, steps=2):
    model = net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(4096, 256, device="cuda")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def too_much():
    train()
    torch.empty(2**40, dtype=torch.uint8, device="cuda")


def all_reduced():
    torch.distributed.init_process_group("nccl")
    torch.distributed.all_reduce(torch.ones(MIB, device="cuda"))


def of_the_stub_engine() -> Report:
    """A report as the stub engine makes it: without modules, with parts and words of its own."""
    line = Line(3 * MIB, 2, "CUDA graph pools", "compiled mm", "forward", "a.py:1 in f", "", ("a.py:1 in f", "a.py:9"))
    blocks = [SimpleNamespace(size=2 * MIB, part="CUDA graph pools"), SimpleNamespace(size=MIB, part="unheard of")]
    line_ = Timeline()
    for block, allocated in ((blocks[0], 2 * MIB), (blocks[1], 3 * MIB), (blocks[0], MIB)):
        line_.add(block, allocated, 20 * MIB)
    return Report(
        what="a.py",
        gpu="H100",
        torch="2.13.0+cu130",
        total_memory=80 * 2**30,
        context=500 * MIB,
        ending="completed",
        peak=3 * MIB,
        reserved=20 * MIB,
        nvidia_smi=520 * MIB,
        at=Spot("mm", MIB, "forward", 0, "a.py:1 in f", ("a.py:1 in f", "a.py:9")),
        parts={"CUDA graph pools": 3 * MIB, "cache (reserved, not allocated)": 17 * MIB},
        lines=(line,),
        unmodeled="at least: without cuDNN's workspaces",
        steps=0,
        seconds=0.0,
        engine="Engine stub (PyTorch's own CUDA code without a GPU, torch 2.13.0): it compiles.",
        timeline=Track.of(line_, 2, lambda one: Description(one.size, one.part, "mm", "forward", "a.py:1 in f")),
    )


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")

    def write(text, name):
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return str(folder / name)

    return write


@pytest.fixture(scope="module")
def reports(script):
    """Reports of every kind."""
    child = script("import torch\nkept = torch.ones(2**20, device='cuda')\n", "child.py")
    parent = script(
        f"""
        import subprocess, sys, torch
        for _ in range(2):
            subprocess.run([sys.executable, {child!r}], check=True)
        torch.ones(2**21, device="cuda")
        """,
        "parent.py",
    )
    return {
        "fits": simgpu.run(train, gpu="RTX 4090"),
        "out of memory": simgpu.run(too_much, gpu="T4"),
        "failed": simgpu.run(lambda: [train(), {}["a"]], gpu="T4"),
        "nothing used": simgpu.run(lambda: None, gpu="T4"),
        "a rank": simgpu.run(all_reduced, gpu="H100", ranks=4, rank=1),
        "processes": simgpu.run(parent, gpu="H100"),
        "stub engine": of_the_stub_engine(),
    }


KINDS = ("fits", "out of memory", "failed", "nothing used", "a rank", "processes", "stub engine")


class Read(HTMLParser):
    """Reads a page: `figures` are the values and texts of <data>, `text` is the other text that is shown, `tags` are
    all tags with their attributes. Raises AssertionError if a tag is not closed."""

    def __init__(self, text):
        super().__init__()
        self.figures, self.tags, self.text, self._open = [], [], "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "data":
            self.figures.append((int(attributes["value"]), data))
        elif tag not in ("script", "style"):
            self.text += f" {data} "


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d|\d", text))


def integers(found) -> set[int]:
    """All integers of a JSON document."""
    if isinstance(found, dict):
        return integers(list(found.values()))
    if isinstance(found, list):
        return set().union(*map(integers, found)) if found else set()
    return {found} if isinstance(found, int) else set()


def followed(report: Report) -> set[int]:
    """Figures that follow from those of a report by one addition or subtraction."""
    found = {sum(report.parts.values()), report.total_memory - report.context, report.verdict.spare or 0}
    found |= {sum(one.nbytes for one in report.lines[html.LINES :]), *(one.total for one in report.modules)}
    found |= {one.total for one in report.module_totals}
    found |= {report.failure[0] - report.failure[1]} if report.failure else set()
    return found.union(*map(followed, report.processes))


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_of_report_json_and_of_the_page(reports, kind):
    report = reports[kind]
    written = json.loads(stored.written(report.document()))
    read = Read(html.document(report))
    known = integers(written) | followed(report)
    for value, text in read.figures:
        assert value in known
        assert text in (mib(value), size(value))
    in_words = numbers(str(report)) | numbers(json.dumps({**written, "timeline": None})) | {f"{n:,}" for n in known}
    in_words |= set().union(*(numbers(size(n)) for n in known))
    in_words |= {str(len(one.lines) - html.LINES) for one in (report, *report.processes)}
    assert numbers(read.text) <= in_words


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_page_says_is_in_the_file(reports, kind):
    """Word for word, except that tables are laid out, and that lines beyond the page's are shown."""
    report = reports[kind]
    shown = " ".join(re.sub(r"<[^>]*>", "", html.document(report)).split())
    for finding in report.findings:
        assert html.escape(finding.remedy) in shown
    for text in (*str(report).splitlines()[:1], report.unmodeled, *report.bounds, report.version, report.command):
        assert html.escape(text) in shown
    for part in report.parts:
        assert html.escape(part) in shown


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched(reports, kind):
    text = html.document(reports[kind])
    tags = Read(text).tags
    assert not [one for one in tags if {"src", "href", "action", "data"} & one[1].keys()]
    (policy,) = [one[1]["content"] for one in tags if one[1].get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "http" not in policy
    assert "@import" not in text and "url(" not in text


def test_a_run_without_gpu_memory_has_no_figure(reports):
    text = html.document(reports["nothing used"])
    assert not [one for one in Read(text).tags if "data-track" in one[1]] and "Leon Sorokin" not in text
    assert "undecided, no GPU memory was used" in text


def test_a_rank_and_its_traffic(reports):
    assert "as rank 1 of 4," in html.document(reports["a rank"])
    assert "all_reduce" in html.document(reports["a rank"])


def test_processes_have_sections_and_equal_ones_are_named(reports):
    read = Read(html.document(reports["processes"]))
    assert len([one for one in read.tags if one[1].get("class") == "process"]) == 1
    assert read.text.count("its memory is that of") == 1
    assert len([one for one in read.tags if "data-track" in one[1]]) == 2  # of a child, and of the program itself


def test_the_stub_engine_says_why_it_has_no_modules(reports):
    assert "With --engine meta this table is filled." in html.document(reports["stub engine"])
    assert html.OTHER in html.document(reports["stub engine"])  # of a part without a colour


# --- hostile names --------------------------------------------------------------------------------------------

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A program whose module, class and file have names that are HTML."""
    path = tmp_path_factory.mktemp("h") / "a<b onclick='x'>&amp;.py"
    path.write_text(
        textwrap.dedent(f"""
        import torch
        Hostile = type({HOSTILE!r}, (torch.nn.Linear,), {{}})
        net = torch.nn.Module()
        net.add_module({HOSTILE!r}, Hostile(64, 64))
        net.cuda()
        net.get_submodule({HOSTILE!r})(torch.ones(8, 64, device="cuda")).sum().backward()
        raise ValueError({HOSTILE!r})
        """),
        encoding="utf-8",
    )
    return simgpu.run(str(path), [HOSTILE], gpu="T4")


def test_what_a_program_names_is_text(hostile):
    text = html.document(hostile)
    read = Read(text)
    assert HOSTILE in (one.name for one in hostile.modules) and HOSTILE in (one.kind for one in hostile.modules)
    assert read.text.count(HOSTILE) >= 4  # the module, its class, the error, the command
    assert {tag for tag, _ in read.tags}.isdisjoint({"img", "b"})
    assert [attrs.get("id") for tag, attrs in read.tags if tag == "script"] == ["track-0", None, None]
    assert "a<b onclick='x'>&amp;.py" in read.text
    assert HOSTILE not in hostile._repr_html_()


def test_a_figure_in_a_notebook_is_one_attribute(hostile):
    (frame,) = [attrs for tag, attrs in Read(hostile._repr_html_()).tags if tag == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert HOSTILE not in frame["srcdoc"] and Read(frame["srcdoc"]).tags[0][0] == "html"


# --- the timeline ---------------------------------------------------------------------------------------------


def test_the_track_has_the_peak_where_it_was(reports):
    for kind in ("fits", "a rank"):
        report = reports[kind]
        allocated = report.timeline.allocated()
        assert len(allocated) == report.timeline.events == len(report.timeline.reserved_after())
        assert max(allocated) == allocated[report.timeline.at - 1] == report.peak
        assert max(report.timeline.reserved_after()) == report.reserved
        assert allocated[-1] >= 0
    failed = reports["out of memory"]
    assert failed.timeline.allocated()[failed.timeline.at - 1] == sum(
        nbytes for part, nbytes in failed.parts.items() if not part.startswith("cache")
    )


def test_a_report_is_the_same_after_it_was_stored(reports, tmp_path):
    for kind in KINDS:
        reports[kind].save(tmp_path / "report.json")
        assert Report.load(tmp_path / "report.json") == reports[kind]


def test_blocks_of_a_track_say_where_they_come_from(reports):
    found = reports["fits"].timeline
    kinds = [(size, *(found.names[at] for at in rest)) for size, *rest in found.kinds]
    (gelu,) = [one for one in kinds if one[2] == "gelu"]
    assert gelu[:2] == (4096 * 512 * 4, ACTIVATIONS)
    assert (gelu[3], gelu[6]) == ("forward", "rest.0") and gelu[4].endswith("in forward")
    assert {one[1] for one in kinds if one[6] == "first"} >= {PARAMETERS, GRADIENTS, STATES}


def long_line(events: int) -> Timeline:
    """A run of a training loop's shape: blocks pile up and are freed, in kinds that repeat."""
    line = Timeline()
    live: list = []
    allocated = reserved = 0
    while line.events < events:
        grows = (line.events // 500) % 2 == 0 or not live
        if grows:
            live.append(SimpleNamespace(size=512 * (1 + line.events % 211), kind=line.events % 97))
        block = live[-1] if grows else live.pop(line.events % len(live))
        allocated += block.size if grows else -block.size
        reserved = max(reserved, allocated + 4 * MIB)
        line.add(block, allocated, reserved)
    return line


def described(block) -> Description:
    words = f"transformers/models/some_model/modeling.py:{block.kind} in forward"
    return Description(block.size, ACTIVATIONS, f"mm {block.kind}", "forward", "train.py:7", words, f"h.{block.kind}")


def with_timeline(report: Report, line: Timeline) -> Report:
    return Report(**{**vars(report), "timeline": Track.of(line, 10, described)})


def test_a_hundred_thousand_events_are_less_than_three_megabytes(reports):
    report = with_timeline(reports["fits"], long_line(EVENTS))
    assert len(report.timeline.order) == EVENTS
    assert len(html.document(report).encode()) < 3_000_000
    assert len(stored.written(report.document()).encode()) < 3_000_000


def test_a_longer_run_keeps_its_highest_points(reports, monkeypatch):
    monkeypatch.setattr(timeline, "EVENTS", 1000)
    monkeypatch.setattr(track, "EVENTS", 1000)
    monkeypatch.setattr(track, "POINTS", 100)
    line = long_line(5000)
    report = with_timeline(reports["fits"], line)
    found = report.timeline
    assert (found.order, found.events) == ((), 5000) and len(found.points) <= 200
    assert max(found.allocated()) == max(line.curve[0::2]) and max(found.reserved_after()) == max(line.curve[1::2])
    assert f"the highest of {found.stride:,} of them" in html.document(report)
    short = Track.of(long_line(900), 10, described)
    assert max(short.thinned().allocated()) == max(short.allocated())
    assert len(short.thinned().points) <= 200


def test_a_peak_in_the_last_events_of_a_long_run_is_kept(monkeypatch):
    """The last point is of fewer events than the others."""
    monkeypatch.setattr(timeline, "EVENTS", 100)
    monkeypatch.setattr(track, "EVENTS", 100)
    monkeypatch.setattr(track, "POINTS", 10)
    line = Timeline()
    for at in range(1, 304):
        line.add(SimpleNamespace(size=512, kind=0), 512 * at, 1024 * at)
    assert line.events % line.stride
    found = Track.of(line, 303, described)
    assert (max(found.allocated()), max(found.reserved_after())) == (512 * 303, 1024 * 303)
    assert (found.at - 1) // found.stride == len(found.allocated()) - 1


def test_many_processes_share_the_room_of_a_file(reports, monkeypatch):
    monkeypatch.setattr(html, "EVENTS", 0)
    monkeypatch.setattr(track, "POINTS", 8)
    charts = html.Charts(events=0)
    html.timeline(reports["fits"], charts)
    assert '"order":[]' in charts.data[0]


# --- modules --------------------------------------------------------------------------------------------------


def test_modules_have_what_is_theirs(reports):
    report = reports["fits"]
    rows = {one.name: one for one in report.modules if one.model}
    assert {one.model for one in rows.values()} == {"Net"}
    assert {name: one.kind for name, one in rows.items()}.items() >= {"first": "Linear", "rest.0": "GELU"}.items()
    weights = 4 * (256 * 512 + 512)
    assert rows["first"].parameters == weights and rows["first"].states == 2 * weights
    assert rows["rest.1"].parameters == 4 * (256 * 512 + 256)
    assert "tied" not in rows or rows["tied"].parameters == 0  # its weight is the first one's
    assert sum(one.total for one in report.modules) == report.peak
    by_part = {"parameters": PARAMETERS, "gradients": GRADIENTS, "states": STATES, "saved": ACTIVATIONS}
    for column, part in by_part.items():
        assert sum(getattr(one, column) for one in report.modules) == report.parts.get(part, 0)


def test_children_sum_to_their_parent(reports):
    """Each column: a module's total is what it has itself and the totals of the modules directly inside it."""
    for kind in ("fits", "out of memory", "failed"):
        report = reports[kind]
        for one in report.module_totals:
            inside = [other for other in report.module_totals if other.name and parent(other) == (one.model, one.name)]
            own = [other for other in report.modules if (other.model, other.name) == (one.model, one.name)]
            for column in (*modules.SIZES, "total"):
                assert getattr(one, column) == sum(getattr(other, column) for other in (*inside, *own))
        roots = [one for one in report.module_totals if not one.name]
        outside = [one for one in report.modules if not one.model]
        assert sum(one.total for one in (*roots, *outside)) == sum(one.total for one in report.modules)
        assert {one.model for one in roots} == {one.model for one in report.modules if one.model}


def parent(one) -> tuple[str, str]:
    return one.model, one.name.rpartition(".")[0]


def test_a_module_that_only_holds_others_has_its_class(reports):
    (rest,) = [one for one in reports["fits"].module_totals if one.name == "rest"]
    assert rest.kind == "Sequential" and rest not in reports["fits"].modules
    assert rest.parameters == 4 * (256 * 512 + 256)


def test_names_with_numbers_are_in_their_natural_order():
    names = ["layers.10", "layers.2", "layers", "h2.a", "h10.a", "layers.2.mlp", "norm", "layers.9"]
    wanted = ["h2.a", "h10.a", "layers", "layers.2", "layers.2.mlp", "layers.9", "layers.10", "norm"]
    assert sorted(names, key=modules.natural) == wanted
    rows = modules.rows((("Net", name, "Linear"), ACTIVATIONS, 512) for name in names)
    assert [one.name for one in rows] == wanted
    totals = [one.name for one in modules.totals(rows, {})]
    assert totals == ["", "h2", "h2.a", "h10", "h10.a", *wanted[2:]]


def test_the_table_of_modules_has_a_row_for_each_total_and_for_what_is_a_parents_own(reports):
    report = reports["fits"]
    rows = module_table.tree(report)
    assert [row.module for row in rows if row.role in ("parent", "leaf") and row.module.model] == list(
        report.module_totals
    )
    for row in rows:
        if row.role == "own":
            assert row.module in report.modules
    assert [row.name for row in rows if not row.module.model] == ["outside all modules"]
    shown = [row for row in rows if row.role != "parent"]  # "each module alone"
    assert sum(row.module.total for row in shown) == report.peak
    assert {row.depth for row in rows} == {0, 1, 2}


def test_a_report_of_an_earlier_version_has_totals_too(reports):
    report = dataclasses.replace(reports["fits"], module_totals=())
    assert [row.module.total for row in module_table.tree(report)] == [
        row.module.total for row in module_table.tree(reports["fits"])
    ]


def test_the_table_opens_at_the_first_depth_with_enough_rows():
    rows = [module_table.Row(modules.Module("", "", ""), depth, "", "", "leaf") for depth in (0, 1, *[2] * 8, 3)]
    assert module_table.opened(rows) == 2 and module_table.opened(rows[:3]) == 2
    own = [row._replace(role="own") for row in rows[2:-1]]
    assert module_table.opened([*rows[:2], *own, rows[-1]]) == 3


def test_backwards_temporaries_belong_to_the_module_whose_backward_runs():
    class Wide(nn.Module):
        def forward(self, x):
            return x.exp().sin()

    def program():
        net = nn.Sequential(Wide(), nn.Identity())
        net(torch.ones(1024, 1024, device="cuda", requires_grad=True)).sum().backward()

    rows = {one.name: one for one in simgpu.run(program, gpu="T4").modules}
    assert rows["0"].saved == 4 * MIB and rows["0"].temporaries >= 4 * MIB


def test_two_models_of_a_class_are_two():
    def program():
        kept = [nn.Linear(64, 64).cuda() for _ in range(2)]
        for net in kept:
            net(torch.ones(8, 64, device="cuda"))
        kept.append(torch.ones(2**24, device="cuda"))

    rows = simgpu.run(program, gpu="T4").modules
    assert {one.model for one in rows} == {"Linear", "Linear #2", ""}


def test_a_block_of_several_modules_belongs_to_the_one_that_holds_them():
    def program():
        net = nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), nn.Linear(64, 64)).cuda()
        flat = torch.zeros(2, 64, 64, device="cuda")
        for at in range(2):
            net[0][at].weight.grad = flat[at]
        torch.optim.SGD(net.parameters(), lr=1.0).step()
        net(torch.ones(8, 64, device="cuda"))

    rows = {one.name: one for one in simgpu.run(program, gpu="T4").modules}
    assert rows["0"].gradients == 2 * 64 * 64 * 4 and rows["0"].kind in ("Sequential", "several")


def test_a_model_that_is_still_being_built_when_memory_runs_out():
    def program():
        nn.Sequential(*[nn.Linear(2**11, 2**11) for _ in range(8)]).cuda()

    report = simgpu.run(program, gpu="T4", memory="200 MiB")
    assert report.outcome == "does not fit"
    assert {one.name for one in report.modules if one.parameters} >= {"0", "1"}


def test_a_cleared_traceback_holds_no_tensor():
    """As PyTorch's own frames: what finds the module leaves nothing in them."""
    left = []

    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError(x.exp().shape)

    def program():
        try:
            Fails()(torch.ones(MIB, device="cuda"))
        except ValueError as error:
            traceback.clear_frames(error.__traceback__)
            left.append(torch.cuda.memory_allocated())

    assert simgpu.run(program, gpu="T4").peak == 8 * MIB
    assert left == [0]


def test_lines_have_the_stack_of_their_first_block(reports):
    (gelu,) = [one for one in reports["fits"].lines if one.operator == "gelu"]
    assert [place.rpartition(" in ")[2] for place in gelu.stack] == ["forward", "train"]
    assert all("torch/" not in place for place in gelu.stack)


# --- the files and the commands -------------------------------------------------------------------------------


def test_run_fit_and_diff_write_it(tmp_path, script, capsys):
    path = script("import torch\nkept = torch.ones(2**20, device='cuda')\n", "small.py")
    assert main(["run", "--engine", "meta", "--out", str(tmp_path / "one"), path]) == 0
    path = script("import torch\nkept = torch.ones(2**21, device='cuda')\n", "small.py")
    assert main(["run", "--engine", "meta", "--out", str(tmp_path / "other"), path]) == 0
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "other"), "--out", str(tmp_path / "diff")]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path / 'diff' / 'report.html'}: this page with timelines" in out
    text = (tmp_path / "diff" / "report.html").read_text(encoding="utf-8")
    difference = Difference.of(tmp_path / "one", tmp_path / "other")
    assert text == diff_html.document(difference)
    for side in (difference.before, difference.after):
        assert html.escape(str(side.report).splitlines()[0]) in text  # each verdict
    read = Read(text)
    assert (4 * MIB, "+4.00") in read.figures and len([one for one in read.tags if "data-track" in one[1]]) == 2
    assert (tmp_path / "diff" / "page.txt").read_text(encoding="utf-8") == str(difference)
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "one"), "--out", str(tmp_path / "diff")]) == 0
    for name in ("one", "other"):
        text = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert text == html.document(Report.load(tmp_path / name / "report.json"))


def test_a_file_of_ones_own_is_not_replaced(tmp_path, script, capsys):
    path = script("import torch\nkept = torch.ones(2**20, device='cuda')\n", "small.py")
    out = tmp_path / "out"
    main(["run", "--engine", "meta", "--out", str(out), path])
    mine = tmp_path / "mine.html"
    mine.write_text("my own")
    capsys.readouterr()
    assert main(["report", str(out), "--html", str(mine)]) == 2
    assert "exists, and simgpu did not write it" in capsys.readouterr().err and mine.read_text() == "my own"
    for arguments, written in (([], out / "report.html"), ([str(tmp_path / "new.html")], tmp_path / "new.html")):
        assert main(["report", str(out), "--html", *arguments]) == 0
        assert capsys.readouterr().out.startswith(f"{written}: ")
        assert written.read_text(encoding="utf-8") == html.document(Report.load(out / "report.json"))


def test_a_memory_history_gives_the_stub_engines_timeline(tmp_path):
    """The stub engine's findings, of a history that the meta engine has written: its format is PyTorch's."""
    report = simgpu.run(train, gpu="H100", out=tmp_path / "out")
    (trace,) = [one for one in snapshot.read(tmp_path / "out" / "snapshot.pickle")["device_traces"] if one]
    count = sum(event["action"] == "alloc" for event in trace)
    owners = SimpleNamespace(marks=[], windows=[("backward", 3, count)], made=[])
    more = {"peak": report.peak, "reserved": report.reserved, "failed": False, "workspaces": frozenset()}
    gpu = {"capacity": report.total_memory, "context": report.context}
    found = findings.of(trace, count, owners, **more, gpu=gpu, version=torch.__version__)
    found |= {"ending": "completed", "text": "", "steps": 0, "used": True}
    chosen = Choice("stub", "it is a test")
    spec = specs.spec("H100")
    of_stub = run._report(json.loads(json.dumps(found)), spec, spec.total_memory, "train.py", chosen)
    assert max(of_stub.timeline.allocated()) == of_stub.timeline.allocated()[of_stub.timeline.at - 1] == report.peak
    assert of_stub.timeline.events == report.timeline.events
    assert any(line.stack and line.stack[0] in (line.place, line.library) for line in of_stub.lines)
    text = html.document(of_stub)
    assert "With --engine meta this table is filled." in text and "it is a test" in text
    of_stub.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == of_stub
