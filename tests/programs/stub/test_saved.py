"""Folders that a run's overlay over the file system leaves alone, such as caches of compiled code."""

import os
import shutil

import pytest

from simgpu.patches import Patches
from simgpu.running.files import calls
from simgpu.running.files.overlay import Overlay


@pytest.fixture
def cache(tmp_path):
    """A folder that is left alone, named by a link to it, while an overlay is on; a file in it is older than that."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "old").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    overlay, patches = Overlay(tmp_path / "upper"), Patches()
    overlay.leave_alone(str(tmp_path / "link"))
    calls.patch(patches, overlay)
    yield tmp_path / "link"
    patches.undo()
    overlay.close()


def test_what_is_done_there_is_done(cache, tmp_path):
    """Other processes, which know no overlay, see the same files there. Inductor renames the code that it wrote."""
    real = tmp_path / "real"
    os.makedirs(cache / "ab")
    (cache / "ab" / "part").write_text("new")
    os.rename(cache / "ab" / "part", cache / "ab" / "code.py")
    (cache / "old").write_text("other")
    os.replace(cache / "ab" / "code.py", real / "old")
    shutil.rmtree(cache / "ab")
    assert not calls.overlay().differs()
    assert os.listdir(real) == ["old"] and (real / "old").read_text() == "new"
    (tmp_path / "beside").write_text("made")
    os.remove(tmp_path / "beside")
