"""Functions that are called when a module has been imported."""

import importlib
import importlib.util
import sys

import pytest

from simgpu.running.after_import import AfterImport


@pytest.fixture
def called(tmp_path, monkeypatch):
    (tmp_path / "found_later.py").write_text("value = 1\n")
    (tmp_path / "fails_once.py").write_text("import sys\nif not hasattr(sys, 'tried'): sys.tried = 1; [][0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delattr(sys, "tried", raising=False)
    calls = []
    finder = AfterImport(dict.fromkeys(("found_later", "fails_once", "not_there"), calls.append))
    sys.meta_path.insert(0, finder)
    yield calls
    sys.meta_path.remove(finder)
    for name in ("found_later", "fails_once"):
        sys.modules.pop(name, None)
    if hasattr(sys, "tried"):
        del sys.tried


def test_asking_for_a_module_is_no_import(called):
    assert importlib.util.find_spec("found_later") is not None and called == []
    module = importlib.import_module("found_later")
    assert called == [module] and module.value == 1
    importlib.reload(module)
    assert called == [module]


def test_an_import_that_fails_is_no_import(called):
    with pytest.raises(IndexError):
        importlib.import_module("fails_once")
    assert called == []
    module = importlib.import_module("fails_once")
    assert called == [module]


def test_a_module_that_does_not_exist(called):
    assert importlib.util.find_spec("not_there") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there")
