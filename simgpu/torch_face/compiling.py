"""torch.compile while a simulated GPU is on: compiled functions run eagerly, and it is told that they do.

Dynamo does not compile under modes, and what a compiled program takes is inductor's to decide. PyTorch's own stance
"force_eager" has every compiled function run as it was written, also with fullgraph=True.
"""

import sys
from functools import wraps

import torch

from simgpu.left_out import COMPILING
from simgpu.machine import Machine
from simgpu.patches import Patches


def patch(patches: Patches, machine: Machine) -> None:
    """Puts it into torch."""
    patches.apply(torch, "compile", told(patches, machine, torch.compile))
    patches.apply(torch.nn.Module, "compile", told(patches, machine, torch.nn.Module.compile))
    if "torch._dynamo.eval_frame" in sys.modules:  # something may have been compiled before
        force_eager(patches)


def told(patches: Patches, machine: Machine, compile_):
    """torch.compile or Module.compile (`compile_` is PyTorch's own): says once that it runs eagerly."""

    @wraps(compile_)
    def compile(*args, **kwargs):
        eagerly = machine.active and torch._C._is_torch_function_mode_enabled() and not kwargs.get("disable")
        if eagerly:
            machine.left_out.add("torch.compile", COMPILING, lower_bound=False)
        compiled = compile_(*args, **kwargs)
        if eagerly:
            force_eager(patches)
        return compiled

    return compile


def force_eager(patches: Patches) -> None:
    """Sets Dynamo's stance (torch.compiler.set_stance) until the patches are undone."""
    from torch._dynamo import eval_frame

    if eval_frame._stance.stance != "force_eager":
        patches.apply(eval_frame, "_stance", eval_frame.DynamoStance("force_eager"))
