"""The simulated GPU on a CUDA build of PyTorch, whose outputs are compared with those of a CPU build."""

import subprocess
import sys

CODE = """
import torch
torch.version.cuda = "13.0"
import labkit
with labkit.simulated_gpu("H100"):
    x = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
"""


def test_nothing_is_printed_for_want_of_triton():
    code = "import sys; sys.modules['triton'] = None\n" + CODE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
