"""The ledger in a real kernel, where displayed values and exceptions keep tensors alive."""

import nbclient
import nbformat

from labkit.gpu import UNIFIED

DAY = 24 * 60 * 60

CELLS = [
    "import sys, torch, labkit\ngpu = labkit.use_gpu('A100-80GB')",
    "ledger = labkit.Ledger(history=True)",
    "with ledger('x'):\n    x = torch.zeros(1024, 1024, device='cuda')",
    "x.T",
    "del x\nlabkit.Ledger()",  # refused: Out[4] holds it
    "%reset -f out",
    "labkit.Ledger().baseline",
    "def fails():\n    hidden = torch.zeros(100, device='cuda')\n    raise ValueError('on purpose')\nfails()",
    "labkit.Ledger()",  # refused: the traceback holds it, and from now on the refusal's own does not
    "labkit.Ledger().baseline",
    "labkit.mib(ledger['x'].added)",
    "ledger.plot()",
    "ledger.timeline()",
    "y = torch.zeros(1024, 1024, device='cuda')\nlabkit.use_gpu('A100-80GB').name",  # run again with a living tensor
    "y = None\nlabkit.use_gpu('A100-80GB').name",
    "labkit.use_gpu('H100', only_simulated=True).name",  # though LABKIT_GPU asks for another
]


def outputs(sources):
    """The outputs of each cell; what it prints is one of them, in however many messages the kernel sends it."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    asked = {"kernel_name": "python3", "allow_errors": True, "coalesce_streams": True}
    waits = {"timeout": None, "startup_timeout": DAY, "iopub_timeout": DAY}  # however busy the machine is
    nbclient.NotebookClient(notebook, **asked, **waits).execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_notebook(monkeypatch):
    monkeypatch.setenv("LABKIT_GPU", "A100-80GB")
    monkeypatch.setenv(UNIFIED, "1")  # else the first cell prints so on torch 2.11
    out = outputs(CELLS)
    assert [[o.output_type for o in outputs] for outputs in out[:5]] == [
        ["stream"],
        [],
        [],
        ["execute_result"],
        ["error"],
    ]
    assert out[4][0].ename == "DirtyBaseline"
    assert "_, _4, Out[4]  [1024, 1024] float32  4.0 MiB" in out[4][0].evalue
    assert out[6][0].data["text/plain"] == "0"
    assert "the last exception, in fails(): hidden  [100] float32" in out[8][0].evalue
    assert out[9][0].data["text/plain"] == "0"
    assert out[10][0].data["text/plain"] == "4.0 MiB"
    for drawn in out[11:13]:
        assert [set(o.data) for o in drawn] == [{"text/plain", "image/png"}]  # once each
    assert out[13][0].text.startswith("Still alive of the GPU before, and of no use on this one: y.\nRunning on")
    assert out[14][0].text.startswith("Running on")
    assert out[15][1].data["text/plain"] == "'H100'"


DISPLAYS = """x = None
get_ipython().displayhook.flush()
print(labkit.Ledger().baseline)
x = torch.zeros(1024, 1024, device="cuda")
x"""


def test_a_cell_that_displays_a_tensor_is_run_twice(monkeypatch):
    monkeypatch.setenv("LABKIT_GPU", "A100-80GB")
    sources = ["import torch, labkit\ngpu = labkit.use_gpu()", DISPLAYS, DISPLAYS]
    printed = [[o.get("text", o.output_type) for o in cell] for cell in outputs(sources)[1:]]
    assert printed == [["0\n", "execute_result"]] * 2
