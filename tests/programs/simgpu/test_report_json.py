"""--json of run, fit and diff, `simgpu report`, and the schema that docs/report_json.md describes."""

import dataclasses
import json
import subprocess
import sys
import textwrap
from typing import get_type_hints

import pytest

import simgpu
from simgpu.command import main
from simgpu.report import provenance, stored
from simgpu.report.report import Report
from tools import report_json

jsonschema = pytest.importorskip("jsonschema")
GPT2 = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
TALKS = """
    import os, subprocess, sys, torch
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run([sys.executable, "-c", "print('by a process')"], check=True)
    net = torch.nn.Linear(512, 512).cuda()
    net(torch.ones(8, 512, device="cuda")).sum().backward()
    if "--fail" in sys.argv:
        raise KeyError("name")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "talks.py"
    path.write_text(textwrap.dedent(TALKS), encoding="utf-8")
    return str(path)


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2), encoding="utf-8")
    return str(path)


def checked(text: str) -> dict:
    """The document of a text, which holds nothing else and follows the schema."""
    found = json.loads(text)
    jsonschema.Draft202012Validator(report_json.schema()).validate(found)
    return found


def strict(kind: str) -> dict:
    """The schema of one document that allows no other field than those that it describes."""
    found = report_json.schema()
    for one in found["$defs"].values():
        one["additionalProperties"] = False
    return {**found, "anyOf": [{"$ref": f"#/$defs/{kind}"}]}


# --- the schema ---------------------------------------------------------------------------------------------


def test_every_field_is_described_and_no_other():
    for kind, fields in report_json.FIELDS.items():
        assert list(fields) == list(get_type_hints(kind)), kind


def test_the_documentation_is_that_of_the_classes():
    """Otherwise: python -m tools.report_json"""
    assert report_json.PAGE.read_text(encoding="utf-8") == report_json.page()
    assert json.loads(report_json.FILE.read_text(encoding="utf-8")) == report_json.schema()
    jsonschema.Draft202012Validator.check_schema(report_json.schema())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("peak", "1"), ("outcome", "maybe"), ("lines", [{}]), ("schema", 2), ("rank", [1]), ("timeline", {"events": 1})],
)
def test_the_schema_refuses_what_is_wrong(name, wrong):
    document = json.loads(stored.written(simgpu.run(lambda: None, gpu="T4").document()))
    validator = jsonschema.Draft202012Validator(report_json.schema())
    assert validator.is_valid(document)
    assert not validator.is_valid({**document, name: wrong})
    assert not validator.is_valid({other: value for other, value in document.items() if other != name})


def test_a_document_keeps_columns_on_one_line():
    document = {"a": [1, -2, 3], "b": "[\n 1,\n 2\n]", "c": [[], [1], ["x", 2]]}
    text = stored.written(document)
    assert json.loads(text) == document and '"a": [1,-2,3]' in text


# --- run ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("arguments", "status", "outcome"), [((), 0, "fits"), (("--fail",), 2, "failed")])
def test_run_prints_one_document_and_the_rest_goes_to_stderr(script, arguments, status, outcome):
    command = [sys.executable, "-m", "simgpu", "run", "--engine", "meta", "--json", "--gpu", "T4", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    document = checked(done.stdout)
    jsonschema.Draft202012Validator(strict("Report")).validate(document)
    assert (done.returncode, document["status"], document["outcome"]) == (status, status, outcome)
    for said in ("printed\n", "written\n", "by a process\n"):
        assert said in done.stderr
    assert ("KeyError: 'name'" in done.stderr) == bool(arguments)
    assert document["command"].startswith("simgpu run --gpu T4 --engine meta /") and document["version"]


def test_it_is_the_report_json_of_the_folder(script, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", "--engine", "meta", "--json", "--out", str(out), script]) == 0
    text = capsys.readouterr().out
    assert text == (out / "report.json").read_text(encoding="utf-8")
    assert main(["report", str(out), "--json"]) == 0
    assert capsys.readouterr().out == text
    assert main(["report", str(out / "report.json")]) == 0
    assert capsys.readouterr().out == (out / "page.txt").read_text(encoding="utf-8")


def test_a_report_without_the_newer_fields_is_read(script, tmp_path):
    simgpu.run(script, gpu="T4").save(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    new = {"schema", "status", "verdict", "modules", "timeline", "command", "version", "answer", "results", "plan"}
    old = {name: value for name, value in document.items() if name not in new | {"needs", "step"}}
    old["lines"] = [{name: value for name, value in line.items() if name != "stack"} for line in old["lines"]]
    (tmp_path / "report.json").write_text(json.dumps(old), encoding="utf-8")
    found = Report.load(tmp_path / "report.json")
    assert (found.peak, found.modules, found.timeline) == (document["peak"], (), None)


def test_a_report_of_a_later_schema_is_refused(tmp_path, capsys):
    simgpu.run(lambda: None, gpu="T4").save(tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    (tmp_path / "report.json").write_text(text.replace('"schema": 1', '"schema": 2'), encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 2
    assert "has schema 2, and this version of simgpu reads 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "said"),
    [("nothing", "no file and no folder"), ("folder", "holds no report.json"), ("file", "is not JSON")],
)
def test_what_is_no_report_gets_one_line(tmp_path, capsys, made, said):
    path = tmp_path / made
    if made == "folder":
        path.mkdir()
    elif made == "file":
        path.write_text("no")
    assert main(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--hf-token", "s3cret", "--lr", "1"], "train.py --hf-token HIDDEN --lr 1"),
        (["train.py", "--api_key=s3cret", "db.password=s3cret"], "train.py --api_key=HIDDEN db.password=HIDDEN"),
        (["a b.py", "--token", "--max-tokens", "5"], "'a b.py' --token --max-tokens 5"),
        (["train.py", "--tokenizer", "gpt2"], "train.py --tokenizer gpt2"),
    ],
)
def test_a_command_without_its_secrets(words, shown):
    assert provenance.command(words) == shown


# --- fit and diff -------------------------------------------------------------------------------------------


def test_fit_has_its_answers_as_data(config, tmp_path, capsys):
    out = tmp_path / "fit"
    arguments = ["fit", config, "--gpu", "T4", "--memory", "400 MiB", "--length", "64", "--largest", "batch"]
    status = main([*arguments, "--every-gpu", "--json", "--out", str(out)])
    document = checked(capsys.readouterr().out)
    jsonschema.Draft202012Validator(strict("Report")).validate(document)
    assert status == document["status"]
    largest = document["results"]["largest"]
    assert largest["what"] == "batch" and largest["fits"] == document["plan"]["batch"] >= 1
    assert document["results"]["gpus"]["H100"] == "fits"
    assert document["answer"][0].startswith(f"The largest batch that fits: {largest['fits']} ")
    assert document["needs"] == document["nvidia_smi"] and document["step"] > 0
    assert document["command"] == f"simgpu {provenance.command([*arguments, '--every-gpu', '--json', '--out', out])}"
    assert {path.name for path in out.iterdir()} >= {"page.txt", "report.html", "report.json"}
    page = (out / "page.txt").read_text(encoding="utf-8")
    assert page.startswith(document["answer"][0])
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "The smallest on which it fits" in text and "transformer.h.0" in text


def test_fit_prints_with_out_what_it_prints_without(config, tmp_path, capsys):
    arguments = ["fit", config, "--gpu", "T4"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    assert main([*arguments, "--out", str(tmp_path / "fit")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(plain) and str(tmp_path / "fit" / "report.html") in out
    assert main(["diff", str(tmp_path / "fit"), str(tmp_path / "fit")]) == 0  # a fit's folder is a run's


def test_diff_prints_its_rows(script, tmp_path, capsys):
    for name, gpu in (("one", "T4"), ("other", "H100")):
        main(["run", "--engine", "meta", "--gpu", gpu, "--out", str(tmp_path / name), script])
    capsys.readouterr()
    status = main(["diff", str(tmp_path / "one"), str(tmp_path / "other"), "--json"])
    document = checked(capsys.readouterr().out)
    jsonschema.Draft202012Validator(strict("Difference")).validate(document)
    assert document["grown"] == document["after"]["peak"] - document["before"]["peak"] > 0 and status == 1
    assert sum(row["more"] for row in document["rows"]) == document["grown"]
    assert document["after"]["gpu"] == "simulated H100"
    assert dataclasses.asdict(Report.load(tmp_path / "one" / "report.json"))["peak"] == document["before"]["peak"]
