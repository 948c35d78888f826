"""The notebooks under another torch than the one that their stored outputs are of: their cells run, and no more."""

import importlib.util
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def conftest():
    spec = importlib.util.spec_from_file_location("the_root_s_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("installed", "of"), [("2.13.0+cpu", ""), ("2.13.1", ""), ("2.11.0", "2.13.0"), ("2.14.0", "2.13.0")]
)
def test_stored_outputs_are_compared_under_their_own_torch(installed, of, conftest, monkeypatch):
    monkeypatch.setattr(metadata, "version", {"torch": installed}.__getitem__)
    assert conftest.of_another_torch() == of
    paths = "notebooks/03_a_linear_model.ipynb", "rehearsed/T4/03_a_linear_model.ipynb", "tests/test_a.py"
    items = [SimpleNamespace(path=ROOT / path, options={"check": True}) for path in paths]
    conftest.pytest_collection_modifyitems(SimpleNamespace(rootpath=ROOT), items)
    assert [item.options["check"] for item in items] == [not of, True, True]
