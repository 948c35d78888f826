"""The zoo's names, and the answers that the oracle is given."""

import json

import pytest
import torch

import labkit
from tools.oracle.workloads import find
from tools.oracle.zoo import answers, families, page


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_entry_is_found_by_its_name(family):
    entries = families.names(family, families.DTYPES, (False, True), (False, True))
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(find(entry.name) == entry for entry in entries)


def test_there_are_as_many_models_as_were_asked_for():
    models = {family: families.names(family, ("fp32",), (False,), (False,)) for family in families.FAMILIES}
    assert len(models["transformers"]) >= 90 and len(models["timm"]) + len(models["torchvision"]) >= 60


@pytest.mark.parametrize("name", ["zoo-transformers-nothing-fp32", "zoo-transformers-bert", "zoo-", "zoo-timm-x-fp8"])
def test_what_is_not_there_is_no_workload(name):
    with pytest.raises(KeyError, match="zoo"):
        find(name)


def ask(tensor):
    return bool(tensor.all()), tensor.sum().item(), tensor.tolist()


def test_the_oracle_is_given_the_answers_of_the_simulated_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv(answers.VARIABLE, str(tmp_path))
    before = torch.Tensor.item
    with labkit.simulated_gpu("T4"), answers.the_same("asking"):
        assert ask(torch.ones(3, dtype=torch.long).cuda()) == (True, 3, [1, 1, 1])
    assert len(json.loads(answers.path("asking").read_text())["lines"]) == 3
    monkeypatch.setattr(answers, "_stub_that_reads", lambda values: None)
    with answers.the_same("asking"):
        assert ask(torch.zeros(3, dtype=torch.long)) == (True, 3, [1, 1, 1])  # as on the oracle, where every value is 0
        assert ask(torch.zeros(3, dtype=torch.long)) == (False, 0, [0, 0, 0])
    assert torch.Tensor.item is before


def test_what_operators_read_is_noted_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv(answers.VARIABLE, str(tmp_path))
    with labkit.simulated_gpu("T4"), answers.the_same("reading"):
        x = torch.arange(5).cuda()
        assert x[x > 1].shape == (3,) and torch.repeat_interleave(torch.tensor([2, 2, 3]).cuda()).shape == (7,)
        x.masked_select(x > 3).sum()
        assert x.max().item() == 4  # the program's own question
    noted = json.loads(answers.path("reading").read_text())["reads"]
    assert noted == [3, 7, 1, 1]  # repeats are summed, and none may be negative


def cut(values, length):
    return values[:length]


def test_bounds_of_slices_are_answers_of_the_line_that_cuts(tmp_path, monkeypatch):
    monkeypatch.setenv(answers.VARIABLE, str(tmp_path))
    with labkit.simulated_gpu("T4"), answers.the_same("cutting"):
        assert cut(torch.zeros(5).cuda(), torch.tensor(3).cuda()).shape == (3,)
    noted = json.loads(answers.path("cutting").read_text())
    assert list(noted["lines"].values()) == [[3]] and noted["reads"] == []
    monkeypatch.setattr(answers, "_stub_that_reads", lambda values: None)
    with answers.the_same("cutting"):
        assert cut(torch.zeros(5), torch.tensor(0)).shape == (3,)  # as on the oracle, where every value is 0


@pytest.mark.parametrize(
    ("value", "dtype", "read"),
    [
        (-1, torch.int64, 2**64 - 1),
        (True, torch.bool, 1),
        (1.0, torch.float64, 0x3FF0000000000000),
        (1.0, torch.float32, 0x3F800000),
        (1.0, torch.bfloat16, 0x3F80),
        (float("nan"), torch.float16, 0),
    ],
)
def test_values_are_read_as_their_bytes(value, dtype, read):
    assert answers.as_read(value, dtype) == read


def test_the_page_is_what_was_found():
    found = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    assert page.PAGE.read_text(encoding="utf-8") == page.text(found)
    assert all(find(name).name == name for name in found)
    vision = [one["H100"]["result"] for name, one in found.items() if name.startswith(("zoo-timm", "zoo-torchvision"))]
    assert len(vision) >= 60 and set(vision) == {page.EQUAL}


def test_a_result_is_noted_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "RESULTS", tmp_path / "zoo.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "zoo.md")
    page.note({"zoo-timm-resnet34-fp32": None, "zoo-timm-vgg11-fp32": "missing alloc | mm"}, "H100", "2.13.0")
    page.note({"zoo-timm-vgg11-fp32": None}, "H100", "2.13.0")
    assert "| timm | fp32 | H100, torch 2.13.0 | 2 | 2 |" in page.PAGE.read_text()


def copy_and_align(lengths, scores):
    copies = lengths.cpu(), lengths.to("cpu", torch.int32), (lengths * 2).detach().cpu().numpy()
    loss = torch.nn.functional.ctc_loss(scores, torch.ones(2, 3, dtype=torch.long), torch.tensor([4, 4]), lengths)
    return [one.tolist() for one in copies], loss.shape


def test_the_oracle_is_given_what_is_copied_to_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv(answers.VARIABLE, str(tmp_path))
    with labkit.simulated_gpu("T4"), answers.the_same("copying"):
        scores = torch.zeros(4, 2, 5, device="cuda")
        found = copy_and_align(torch.tensor([3, 2]).cuda(), scores)
    assert found == ([[3, 2], [3, 2], [6, 4]], ())
    noted = json.loads(answers.path("copying").read_text())
    by_kind = {line.split()[-1]: given for line, given in noted["lines"].items()}
    assert by_kind["cpu"] == [[3, 2], [6, 4]] and by_kind["to"] == [[3, 2]] and by_kind["ctc_loss"] == [[4, 4], [3, 2]]
    assert noted["reads"] == []
