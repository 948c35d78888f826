"""The user's files in a run without values: as they were before it, while the program sees what it has done to them."""

import os
import textwrap

import pytest
import torch

import simgpu
from simgpu.report.files import CHANGED, MAY_HOLD, TENSORS

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
