"""The user's files in a run without values: as they were before it, while the program sees what it has done to them."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.patches import Patches
from simgpu.report import files as section
from simgpu.report.files import CHANGED, DELETED, FOLDER, MAY_HOLD, REMOVED, TENSORS, File
from simgpu.running import files
from simgpu.running.files import calls
from simgpu.running.files.overlay import Overlay, quiet

NET = "import os, torch\nfrom torch import nn\nnet = nn.Linear(127, 128).cuda()\n"  # too large for known values
BYTES = 4 * 128 * 128


def state(folder):
    """Everything below a folder: links by where they lead, files by their bytes and mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
    return found


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A folder of a user's files, which is the current one."""
    folder = tmp_path / "project"
    (folder / "out" / "checkpoint-1").mkdir(parents=True)
    for name in ("model.pt", "out/checkpoint-1/model.safetensors", "out/checkpoint-1/optimizer.pt", "best.npz"):
        (folder / name).write_bytes(name.encode() * 1000)
    (folder / "log.txt").write_text("epoch 0\n")
    (folder / "locked.pt").write_bytes(b"locked")
    (folder / "locked.pt").chmod(0o444)
    (folder / "latest").symlink_to("out/checkpoint-1")
    (folder / "current.pt").symlink_to("model.pt")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(users, tmp_path):
    """Runs a text as a script in the user's folder, and asserts that all that was there is as it was.

    `new`: the new names in the folder afterwards.
    """

    def run(text, new=(), **how):
        before = state(users)
        path = tmp_path / "script.py"
        path.write_text(NET + textwrap.dedent(text), encoding="utf-8")
        report = simgpu.run(str(path), **how)
        assert report.ended == "", report.ended
        after = state(users)
        assert {name: after.get(name) for name in before} == before
        assert set(after) - set(before) == set(new)
        return report

    return run


def rows(report, *kinds):
    return {one.path: one for one in report.files if one.what in kinds}


# --- what saves tensors ---------------------------------------------------------------------------------

WRITERS = {
    "a path": "torch.save(net.state_dict(), NAME)",
    "pathlib": "import pathlib; torch.save(net.state_dict(), pathlib.Path(NAME))",
    "an open file": "with open(NAME, 'wb') as file:\n    torch.save(net.state_dict(), file)",
    "an open file of pathlib": "from pathlib import Path\nwith Path(NAME).open('wb') as f: torch.save(net, f)",
    "memory, then a file": """
        import io
        buffer = io.BytesIO()
        torch.save(net.state_dict(), buffer)
        with open(NAME, "wb") as file:
            file.write(buffer.getvalue())
        """,
    "a new file that replaces it": "torch.save(net.state_dict(), NAME + '.tmp'); os.replace(NAME + '.tmp', NAME)",
    "a temporary file that replaces it": """
        import tempfile
        descriptor, path = tempfile.mkstemp(dir=".")
        with os.fdopen(descriptor, "wb") as file:
            torch.save(net.state_dict(), file)
        os.replace(path, NAME)
        """,
    "a named temporary file": """
        import shutil, tempfile
        with tempfile.NamedTemporaryFile(suffix=".pt", delete=False) as file:
            torch.save(net.state_dict(), file)
        shutil.move(file.name, NAME)
        """,
    "pickle": "import pickle\nwith open(NAME, 'wb') as file:\n    pickle.dump(net.state_dict(), file)",
    "a zip file": """
        import io, zipfile
        with zipfile.ZipFile(NAME, "w", zipfile.ZIP_DEFLATED) as archive:
            buffer = io.BytesIO()
            torch.save(net.state_dict(), buffer)
            archive.writestr("weights", buffer.getvalue())
        """,
    "gzip": "import gzip\nwith gzip.open(NAME, 'wb') as file:\n    torch.save(net.state_dict(), file)",
    "TorchScript": "torch.jit.save(torch.jit.script(net), NAME)",
    "a method of TorchScript": "torch.jit.script(net).save(NAME)",
    "safetensors": "from safetensors.torch import save_file; save_file(net.state_dict(), NAME)",
    "safetensors of a model": "import safetensors.torch; safetensors.torch.save_model(net, NAME)",
    "safetensors' bytes": """
        import safetensors.torch
        with open(NAME, "wb") as file:
            file.write(safetensors.torch.save(net.state_dict()))
        """,
    "numpy": "import numpy; numpy.save(open(NAME, 'wb'), net.weight.detach().cpu().numpy())",
    "an archive of numpy": """
        import numpy
        with open(NAME, "wb") as file:
            numpy.savez(file, net.weight.detach().cpu().numpy())
        """,
    "an array's own file": "net.weight.detach().cpu().numpy().tofile(NAME)",
    "a copy": "import shutil; torch.save(net.state_dict(), 'a.pt'); shutil.copy2('a.pt', NAME); os.remove('a.pt')",
    "a copy by hand": """
        torch.save(net.state_dict(), "a.pt")
        with open("a.pt", "rb") as source, open(NAME, "wb") as target:
            target.write(source.read())
        os.unlink("a.pt")
        """,
    "a hard link": """
        torch.save(net.state_dict(), "a.pt")
        if os.path.exists(NAME):
            os.unlink(NAME)
        os.link("a.pt", NAME)
        os.unlink("a.pt")
        """,
    "a file of the host's copy": "net.cpu(); torch.save(net.state_dict(), NAME)",
}


@pytest.mark.parametrize("way", WRITERS)
@pytest.mark.parametrize("name", ["model.pt", "new.pt", "current.pt"])
def test_what_holds_simulated_tensors_is_kept_apart(run, way, name):
    text = f"NAME = {name!r}\n" + textwrap.dedent(WRITERS[way]) + "\nassert os.path.getsize(NAME)\n"
    report = run(text)
    written = rows(report, TENSORS, MAY_HOLD, CHANGED)
    target = "model.pt" if name == "current.pt" and "replace" not in way and "link" not in way else name
    assert {name, target} & written.keys(), report.files
    assert "Files with simulated tensors" in str(report) or way in (
        "numpy",
        "an archive of numpy",
        "an array's own file",
    )


def test_the_report_says_where_the_files_are(run, users, tmp_path):
    report = run("torch.save(net.state_dict(), 'model.pt')\ntorch.save(net, 'new.pt')", out=tmp_path / "kept")
    assert [(one.path, one.times, one.nbytes, one.yours) for one in report.files] == [
        ("model.pt", 1, BYTES, True),
        ("new.pt", 1, BYTES, False),
    ]
    for one in report.files:
        assert os.path.exists(one.where) and one.where in str(report)
        assert one.where.startswith(str(tmp_path / "kept" / "files"))


def test_without_a_folder_they_are_removed_and_the_page_says_so(run, users):
    report = run("print(os.environ['SIMGPU_FILES'], file=open('where', 'w'))\ntorch.save(net, 'model.pt')", ["where"])
    assert not os.path.exists((users / "where").read_text().strip())
    assert "removed when the run ended, and --out FOLDER keeps them" in str(report)
    assert "model.pt: 65,536 B of tensors; your file of that name is as it was" in str(report)


def test_with_values_files_are_written_as_without_a_simulated_gpu(users):
    simgpu.run(lambda: torch.save(torch.ones(3, device="cuda"), "model.pt"), values=True)
    assert torch.load("model.pt", map_location="cpu").tolist() == [1, 1, 1]


# --- what the program sees ------------------------------------------------------------------------------


def test_the_program_sees_its_changes(run):
    """As os, os.path, pathlib and glob show them; the user's files are compared by `run`."""
    run("""
        import glob, shutil
        from pathlib import Path
        torch.save(net.state_dict(), "model.pt")
        assert torch.load("model.pt", map_location="cpu")["weight"].shape == (128, 127)
        assert torch.load("current.pt", weights_only=False, map_location="cuda")["bias"].is_cuda
        with open("log.txt", "a") as file:
            file.write("epoch 1\\n")
        assert Path("log.txt").read_text().splitlines() == ["epoch 0", "epoch 1"]
        shutil.rmtree("out/checkpoint-1")
        assert not os.path.exists("latest/optimizer.pt") and not Path("out/checkpoint-1").exists()
        assert os.path.islink("latest") and os.listdir("out") == []
        os.makedirs("out/checkpoint-2")
        torch.save(net.state_dict(), "out/checkpoint-2/model.pt")
        os.remove("latest")
        os.symlink("out/checkpoint-2", "latest")
        assert os.listdir("latest") == ["model.pt"] and os.readlink("latest") == "out/checkpoint-2"
        assert torch.load("latest/model.pt", map_location="cpu")["bias"].shape == (128,)
        assert glob.glob("out/*/*.pt") == ["out/checkpoint-2/model.pt"]
        assert sorted(str(one) for one in Path(".").rglob("*.pt") if "latest" not in one.parts) == [
            "current.pt", "locked.pt", "model.pt", "out/checkpoint-2/model.pt",
        ]
        assert [one.name for one in os.scandir("out") if one.is_dir()] == ["checkpoint-2"]
        assert {name for _, _, names in os.walk("out") for name in names} == {"model.pt"}
        os.rename("best.npz", "old.npz")
        assert open("old.npz", "rb").read(8) == b"best.npz" and not os.path.exists("best.npz")
        shutil.move("out/checkpoint-2", "out/last")
        assert os.path.isfile("out/last/model.pt") and not os.path.isdir("out/checkpoint-2")
        os.chmod("locked.pt", 0o644)
        with open("locked.pt", "r+b") as file:
            file.truncate(3)
        assert os.path.getsize("locked.pt") == 3
        os.truncate("log.txt", 1)
        assert os.stat("log.txt").st_size == 1
        """)


def test_the_report_lists_what_became_of_the_users_files(run):
    report = run("""
        import shutil
        with open("log.txt", "a") as file:
            file.write("more")
        shutil.rmtree("out/checkpoint-1")
        os.replace("best.npz", "other.npz")
        torch.save(net, "temporary.pt")
        os.remove("temporary.pt")
        """)
    assert {name: one.what for name, one in rows(report, CHANGED, REMOVED).items()} == {
        "log.txt": CHANGED,
        "out/checkpoint-1": REMOVED,
        "best.npz": REMOVED,
    }
    assert rows(report, DELETED)["temporary.pt"].nbytes == BYTES
    assert "  log.txt: changed in the run only" in str(report)


def test_new_names_without_tensors_are_the_programs(run, users):
    run(
        """
        import csv, json, logging, shutil, tempfile
        os.makedirs("runs/1")
        json.dump({"lr": 0.1}, open("runs/1/config.json", "w"))
        with open("runs/1/log.csv", "w", newline="") as file:
            csv.writer(file).writerow([1, 2])
        handler = logging.FileHandler("run.log")  # basicConfig does nothing where pytest has its own handlers
        logging.getLogger("train").addHandler(handler)
        logging.getLogger("train").warning("begun")
        handler.close()
        torch.save({"seen": torch.arange(3)}, "real.pt")
        with tempfile.TemporaryDirectory(dir=".") as folder:
            open(os.path.join(folder, "a"), "w").close()
        shutil.copy("log.txt", "log.bak")
        os.symlink("runs/1", "newest")
        """,
        ["runs", "runs/1", "runs/1/config.json", "runs/1/log.csv", "run.log", "real.pt", "log.bak", "newest"],
    )
    assert torch.load(users / "real.pt")["seen"].tolist() == [0, 1, 2]
    assert (users / "log.bak").read_text() == "epoch 0\n"


def test_a_new_checkpoint_folder_is_kept_apart_as_a_whole(run, tmp_path):
    """Half of it would make a later run on a GPU fail, which looks for the newest checkpoint."""
    report = run(
        """
        import json
        for step in (1, 2):
            folder = f"new/checkpoint-{step}"
            os.makedirs(folder)
            torch.save(net.state_dict(), folder + "/model.pt")
            json.dump({}, open(folder + "/state.json", "w"))
        os.symlink("checkpoint-2", "new/latest")
        open("new/log.txt", "w").close()
        """,
        ["new", "new/log.txt"],
        out=tmp_path / "kept",
    )
    kept = tmp_path / "kept" / "files" / "here" / "new"
    assert {str(one.relative_to(kept)) for one in kept.rglob("*")} == {
        *("checkpoint-1", "checkpoint-1/model.pt", "checkpoint-1/state.json"),
        *("checkpoint-2", "checkpoint-2/model.pt", "checkpoint-2/state.json", "latest"),
    }
    assert rows(report, FOLDER)["new/checkpoint-1"].times == 1


def test_an_array_that_is_mapped_for_writing(run):
    """numpy.memmap does so by default."""
    run("""
        import numpy
        numpy.memmap("model.pt", dtype="uint8")[:4] = 0
        numpy.savez("best.npz", a=numpy.arange(3))
        assert numpy.load("best.npz")["a"].tolist() == [0, 1, 2]
        """)


def test_a_database_of_the_users(run, users):
    import sqlite3

    with sqlite3.connect(users / "runs.db") as base:
        base.execute("create table runs (loss real)")
    base.close()
    run("""
        import sqlite3
        with sqlite3.connect("runs.db") as base:
            base.execute("insert into runs values (0.5)")
        with sqlite3.connect("runs.db") as base:
            assert base.execute("select * from runs").fetchall() == [(0.5,)]
        """)


def test_a_tokenizer_of_the_users(run, users):
    pytest.importorskip("tokenizers")
    (users / "tokenizer.json").write_text("{}")
    run("""
        from tokenizers import Tokenizer, models
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save("tokenizer.json")
        assert "WordLevel" in open("tokenizer.json").read()
        """)


def test_rotation_of_checkpoints_by_a_trainer(run, users):
    """Three checkpoints of which two are kept, in a folder that has one of the user's; the newest is loaded again."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    report = run("""
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        from transformers.trainer_utils import get_last_checkpoint
        config = GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=99, n_positions=16)
        data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(6)]
        options = dict(output_dir="out", max_steps=3, save_steps=1, save_total_limit=2, report_to=[],
                       per_device_train_batch_size=2)
        Trainer(GPT2LMHeadModel(config), TrainingArguments(**options), train_dataset=data).train()
        assert sorted(os.listdir("out")) == ["checkpoint-2", "checkpoint-3"], os.listdir("out")
        assert get_last_checkpoint("out") == os.path.join("out", "checkpoint-3")
        trainer = Trainer(GPT2LMHeadModel(config), TrainingArguments(**options | {"max_steps": 4}), train_dataset=data)
        assert trainer.train(resume_from_checkpoint=True).global_step == 4
        """)
    assert "out/checkpoint-4/model.safetensors" in rows(report, TENSORS)


def test_states_of_accelerate(run):
    pytest.importorskip("accelerate")
    run(
        """
        from accelerate import Accelerator
        accelerator = Accelerator()
        model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
        accelerator.backward(model(torch.ones(2, 127, device="cuda")).sum())
        optimizer.step()
        accelerator.save_state("out/checkpoint-1")
        accelerator.save_state("out/new")
        accelerator.load_state("out/checkpoint-1")
        accelerator.load_state("out/new")
        accelerator.save_model(model, "out")
        """,
        ["out/checkpoint-1/random_states_0.pkl"],  # of the host
    )


def test_a_distributed_checkpoint_over_one_of_the_users(run):
    run(
        """
        import torch.distributed.checkpoint as dcp
        dcp.save({"model": net.state_dict()}, checkpoint_id="out/checkpoint-1", no_dist=True)
        state = {"model": net.state_dict()}
        dcp.load(state, checkpoint_id="out/checkpoint-1", no_dist=True)
        assert state["model"]["weight"].is_cuda
        """,
        ["out/checkpoint-1/.metadata"],
    )


def test_processes_of_a_run_share_the_overlay(users, tmp_path):
    """What one has written, removed and renamed, another one sees."""
    text = """
        import os, sys
        from simgpu.patches import Patches
        from simgpu.running.files import calls
        from simgpu.running.files.overlay import Overlay, quiet
        patches, overlay = Patches(), Overlay(sys.argv[1])
        calls.patch(patches, overlay)
        assert open("log.txt").read() == "changed" and not os.path.exists("model.pt")
        os.rename("log.txt", "other.txt")
        open("best.npz", "wb").close()
        """
    before, patches, overlay = state(users), Patches(), Overlay(tmp_path / "scratch")
    calls.patch(patches, overlay)
    try:
        with open("log.txt", "w") as file:
            file.write("changed")
        os.remove("model.pt")
        subprocess.run([sys.executable, "-c", textwrap.dedent(text), overlay.folder], check=True)
        assert not os.path.exists("log.txt") and os.path.getsize("best.npz") == 0
        assert read("other.txt") == "changed"
    finally:
        patches.undo()
        overlay.close()
    assert state(users) == before


def test_everything_is_put_back(users):
    def names():
        return [dict(vars(one)) for one in (os, shutil, torch, torch.jit)], open, dict(os.environ)

    before = names()
    with pytest.raises(ValueError, match="ended"), files.kept_apart(None) as apart:
        patches = Patches()
        try:
            calls.patch(patches, apart._overlay)
            assert os.stat is not before[0][0]["stat"] and open is not before[1]
            raise ValueError("ended")
        finally:
            patches.undo()
    assert names() == before


# --- the folder of a run --------------------------------------------------------------------------------


def test_a_runs_folder_replaces_an_earlier_runs_and_nothing_else(users):
    simgpu.run(lambda: None, out="kept")
    first = state(users / "kept")
    assert simgpu.run(lambda: torch.save(torch.ones(9999, device="cuda"), "a.pt"), out="kept").files
    assert set(state(users / "kept")) > set(first)
    before = state(users)
    (users / "out" / "page.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"page\.txt exists, and no run wrote it"):
        simgpu.run(lambda: None, out="out")
    assert state(users) == {**before, "out/page.txt": state(users)["out/page.txt"]}


def test_the_section_of_the_page():
    assert section.section(()) == ""
    kept = [File("a.pt", 2, 2**20, "/o/a.pt", True), File("", 3, 400), File("c", 4, 0, "/o/c", False, FOLDER)]
    assert section.section(kept).splitlines() == [
        "Files with simulated tensors, whose bytes do not exist",
        "  a.pt: 1 MiB of tensors, written 2 times; your file of that name is as it was → /o/a.pt",
        "  buffers: 400 B of tensors, in 3 pieces",
        "  c: the whole new folder, with 4 other files → /o/c",
    ]


# --- any sequence of operations -------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "l", "new", "new/x"])
OPERATIONS = {
    "write": lambda one, other: write(one, "w", "new"),
    "append": lambda one, other: write(one, "a", "more"),
    "change": lambda one, other: write(one, "r+", "X"),
    "create": lambda one, other: write(one, "x", "own"),
    "read": lambda one, other: read(one),
    "list": lambda one, other: sorted(os.listdir(one)),
    "scan": lambda one, other: sorted((e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in os.scandir(one)),
    "ask": lambda one, other: (os.path.exists(one), os.path.isdir(one), os.path.islink(one), os.path.lexists(one)),
    "remove": lambda one, other: os.remove(one),
    "make": lambda one, other: os.mkdir(one),
    "unmake": lambda one, other: os.rmdir(one),
    "remove all": lambda one, other: shutil.rmtree(one),
    "rename": lambda one, other: os.rename(one, other),
    "replace": lambda one, other: os.replace(one, other),
    "copy": lambda one, other: shutil.copyfile(one, other) and None,
    "link": lambda one, other: os.symlink(os.path.basename(one), other),
    "size": lambda one, other: os.path.getsize(one) if os.path.isfile(one) else None,
}


def write(path, mode, text):
    with open(path, mode) as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def tree(folder="."):
    """What os shows: links by where they lead, files by what they hold."""
    found = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            found[path] = os.readlink(path)
        elif os.path.isdir(path):
            found |= {path: None} | tree(path)
        else:
            found[path] = read(path)
    return found


def outcome(operation, one, other):
    try:
        return operation(one, other)
    except OSError as error:
        return type(error)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), NAMES, NAMES), max_size=25))
@example([("rename", "a", "b"), ("rename", "b", "a")])
@example([("link", "a", "d/y"), ("create", "d/y", "a")])
def test_the_overlay_is_what_the_operations_make_of_the_folder(steps):
    """The same operations on a copy without an overlay have the same results, and the folder below does not change."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        for folder in ("over", "plain"):
            os.makedirs(os.path.join(place, folder, "d", "e"))
            for name in ("a", "b", "d/x", "d/e/z"):
                write(os.path.join(place, folder, name), "w", name)
            os.symlink("d", os.path.join(place, folder, "l"))
        before = state(Path(place, "over"))
        os.chdir(os.path.join(place, "over"))
        patches, overlay = Patches(), Overlay(os.path.join(place, "scratch"))
        try:
            calls.patch(patches, overlay)
            for name, one, other in steps:
                os.chdir(os.path.join(place, "over"))
                got = outcome(OPERATIONS[name], one, other)
                with quiet():
                    os.chdir(os.path.join(place, "plain"))
                    assert got == outcome(OPERATIONS[name], one, other), (name, one, other)
                    wanted = tree()
                os.chdir(os.path.join(place, "over"))
                assert tree() == wanted, (name, one, other)
        finally:
            patches.undo()
            overlay.close()
            os.chdir(home)
        after = state(Path(place, "over"))
        assert {name: after.get(name) for name in before} == before
