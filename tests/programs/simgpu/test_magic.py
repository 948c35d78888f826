"""%%gpu_memory in a real Jupyter kernel, and `gpu.timeline()`: a block of code on a simulated GPU, with its report."""

import re

import nbformat
import pytest
import torch

import simgpu
import simgpu.device.machine
from simgpu.report.figure import Figure
from simgpu.report.owners import PARAMETERS
from simgpu.report.sizes import mib

nbclient = pytest.importorskip("nbclient")

TRAIN = """
net = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(2):
    net(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
IS_OFF = "print(simgpu.device.machine.current(), torch.cuda.is_available())"
CELLS = {
    "load": "%load_ext simgpu\nimport simgpu.device.machine, torch",
    "trains": f'%%gpu_memory "RTX 4090"\n{TRAIN}\nprint("done")\nstep',
    "after": IS_OFF + "\nprint(net.weight.shape, net.weight.device.type)",
    "values": "%%gpu_memory T4 --values\nprint(torch.ones(3, device='cuda').sum().item())",
    "no values": "%%gpu_memory T4\nprint(torch.rand(3, device='cuda').sum().item())",
    "error": f"%%gpu_memory T4\n{TRAIN}\nraise KeyError('a name')",
    "after the error": IS_OFF,
    "too much": "%%gpu_memory T4 --memory 1GiB\ntorch.empty(2**30, device='cuda')",
    "interrupt": """%%gpu_memory T4
import os, signal, threading
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
while True:
    torch.ones(1024, device="cuda")
""",
    "after the interrupt": IS_OFF,
    "second GPU": "%%gpu_memory T4\nwith simgpu.simulated_gpu('H100'):\n    pass",
    "GPU is on": "gpu = simgpu.simulated_gpu('H100')\ngpu.__enter__()",
    "nested": "%%gpu_memory T4\nprint('never')",
    "GPU is off": "gpu.__exit__()\n" + IS_OFF,
    "unknown": "%%gpu_memory T5\n1",
    "wrong": "%%gpu_memory T4 --value\n1",
    "syntax": "%%gpu_memory T4\nfor",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each cell, after all of them ran in one kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    client = nbclient.NotebookClient(notebook, timeout=None, startup_timeout=3600, allow_errors=True)
    client.resources = {"metadata": {"path": str(tmp_path_factory.mktemp("kernel"))}}
    client.execute()
    return {name: cell["outputs"] for name, cell in zip(CELLS, notebook.cells, strict=True)}


def printed(outputs: list) -> str:
    return "".join(one["text"] for one in outputs if one["output_type"] == "stream" and one["name"] == "stdout")


def errors(outputs: list) -> list[str]:
    return [one["ename"] for one in outputs if one["output_type"] == "error"]


def reports(outputs: list) -> list[dict]:
    """What each report that is displayed gives: text and HTML."""
    return [one["data"] for one in outputs if one["output_type"] == "display_data"]


def test_a_cell_runs_on_the_gpu_and_its_report_is_below(outputs):
    (report,) = reports(outputs["trains"])
    assert report["text/plain"].startswith("the cell fits on a simulated RTX 4090, with ")
    assert "2 optimizer steps" in report["text/plain"]
    assert "a cell of the notebook:7" in report["text/plain"]  # counted from the magic's own line
    for part in ("the cell fits on a simulated RTX 4090", "Memory by kind", "<iframe", "srcdoc="):
        assert part in report["text/html"]
    assert printed(outputs["trains"]) == "done\n"
    (value,) = [one for one in outputs["trains"] if one["output_type"] == "execute_result"]
    assert value["data"]["text/plain"] == "1"
    assert errors(outputs["trains"]) == []


def test_the_gpu_is_off_after_the_cell(outputs):
    assert printed(outputs["after"]) == "None False\ntorch.Size([1024, 1024]) meta\n"


def test_values_are_computed_where_they_are_asked_for(outputs):
    assert printed(outputs["values"]) == "3.0\n"
    assert printed(outputs["no values"]) == "0.0\n"
    assert "Values that were answered as 0" in reports(outputs["no values"])[0]["text/plain"]


def test_an_error_is_shown_and_the_report_after_it(outputs):
    error, report = (one for one in outputs["error"] if one["output_type"] != "stream")
    assert (error["output_type"], error["ename"]) == ("error", "KeyError")
    assert "raise KeyError('a name')" in re.sub(r"\x1b\[[\d;]*m", "", "".join(error["traceback"]))
    text = report["data"]["text/plain"]
    assert text.startswith("the cell failed on a simulated T4, and not because of memory: KeyError: 'a name'")
    assert printed(outputs["after the error"]) == "None False\n"


def test_a_cell_that_runs_out_of_memory(outputs):
    assert errors(outputs["too much"]) == ["OutOfMemoryError"]
    (report,) = reports(outputs["too much"])
    assert report["text/plain"].startswith("the cell does not fit on a simulated T4: empty at a cell of the notebook:2")


def test_an_interrupt_leaves_the_gpu_and_shows_what_is_known(outputs):
    assert errors(outputs["interrupt"]) == ["KeyboardInterrupt"]
    (report,) = reports(outputs["interrupt"])
    assert "Interrupted by Ctrl-C, after no optimizer steps." in report["text/plain"]
    assert printed(outputs["after the interrupt"]) == "None False\n"


def test_one_simulated_gpu_at_a_time(outputs):
    assert errors(outputs["second GPU"]) == ["RuntimeError"]
    (nested,) = [one for one in outputs["nested"] if one["output_type"] == "error" or one.get("name") == "stderr"]
    said = nested.get("evalue", "") or nested["text"]
    assert "a simulated H100 is on already" in said and "leave that one first" in said
    assert printed(outputs["nested"]) == ""
    assert printed(outputs["GPU is off"]) == "None False\n"


@pytest.mark.parametrize(
    ("cell", "said"), [("unknown", "unknown GPU 'T5'"), ("wrong", "unrecognized arguments: --value")]
)
def test_a_wrong_line_gets_a_message(outputs, cell, said):
    assert said in str(outputs[cell])
    assert reports(outputs[cell]) == []


def test_a_cell_that_is_no_python_is_not_run(outputs):
    assert errors(outputs["syntax"]) == ["SyntaxError"]
    assert reports(outputs["syntax"]) == []


# --- gpu.timeline() ---------------------------------------------------------------------------------------


def test_the_gpu_of_a_with_has_a_timeline_and_a_report(tmp_path):
    with simgpu.simulated_gpu("T4", watch=True) as gpu:
        kept = torch.nn.Linear(512, 512).cuda()
        torch.ones(512, device="cuda")
        during = gpu.report()
    after = gpu.report()
    assert during.parts[PARAMETERS] == after.parts[PARAMETERS] == 4 * (512 * 512 + 512)
    assert during.peak == after.peak == sum(nbytes for name, nbytes in after.parts.items() if "cache" not in name)
    figure = gpu.timeline()
    assert repr(figure) == "<the timeline of 4 allocations and frees>"
    assert 'data-track="track-0"' not in repr(figure) and "data-track=&quot;track-0&quot;" in figure._repr_html_()
    shown, about = figure._repr_mimebundle_()
    assert f"peaks at {mib(after.peak)} MiB" in about["image/png"]["alt"] and "parameters" in about["image/png"]["alt"]
    assert shown["text/html"] == figure._repr_html_() and shown["text/plain"] == repr(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    figure.save(tmp_path / "figure.html")
    assert "<iframe" not in (tmp_path / "figure.html").read_text(encoding="utf-8")
    assert kept.weight.device.type == "meta"


def test_a_block_that_runs_out_of_memory_has_a_report():
    with pytest.raises(torch.OutOfMemoryError), simgpu.simulated_gpu("T4", watch=True) as gpu:
        torch.empty(2**40, dtype=torch.uint8, device="cuda")
    assert (gpu.report().outcome, gpu.report().failure[0]) == ("does not fit", 2**40)


def test_a_gpu_that_is_not_watched_says_how():
    with simgpu.simulated_gpu("T4") as gpu:
        pass
    with pytest.raises(RuntimeError, match=r'simulated_gpu\("T4", watch=True\)'):
        gpu.timeline()


def test_an_empty_block_has_an_empty_figure():
    with simgpu.simulated_gpu("T4", watch=True) as gpu:
        pass
    assert isinstance(gpu.timeline(), Figure)
    assert (repr(gpu.timeline()), gpu.timeline()._repr_html_()) == (
        "<an empty timeline>",
        "<p>No GPU memory was used.</p>",
    )
    assert "image/png" not in gpu.timeline()._repr_mimebundle_()[0]


def test_a_copy_of_a_watched_gpu_is_watched_too():
    gpu = simgpu.simulated_gpu("T4", watch=True)

    @gpu
    def report():
        return simgpu.device.machine.current().allocator.malloc.__self__

    assert type(report()).__name__ == "Watch"
