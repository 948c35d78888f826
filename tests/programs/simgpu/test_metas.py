"""Meta kernels in C++: found, used, and PyTorch's own left as they were."""

import subprocess
import sys

import pytest
import torch

import labkit

PREPARED = """
import torch
import torch._meta_registrations as registrations
from simgpu.shapes import meta_kernels

def registered():
    # what is registered for meta tensors, and how many kernels it replaces; where it stands in a file does not matter
    lines = {}
    for name in torch._C._dispatch_get_all_op_names():
        for line in torch._C._dispatch_dump(name).splitlines():
            if line.startswith("Meta"):
                lines.setdefault(name, []).append((line.split(":")[0], "(none)" in line))
    return lines, registrations._meta_lib_dont_use_me_use_register_meta._op_impls

def functions():
    # the very Python functions behind them, and what torch.library takes for taken
    library = registrations._meta_lib_dont_use_me_use_register_meta
    overloads = [meta_kernels._overload(name) for name in library._op_impls]
    return {one: one.py_kernels[torch._C.DispatchKey.Meta] for one in overloads}, set(torch.library._impls)

def layouts():
    # Python's kernels lay some results otherwise than C++'s
    wide = torch.ones((), dtype=torch.bfloat16, device="meta").expand(100, 7)
    tall = torch.empty_strided((100, 7), (1, 100), dtype=torch.bfloat16, device="meta")
    one_channel = torch.empty(2, 1, 5, 6, device="meta").to(memory_format=torch.channels_last)
    return [y.stride() for y in (wide * tall, tall + wide, one_channel * 2, torch.nn.functional.gelu(tall))]

layouts()  # imports what registers more
before = registered(), functions(), layouts()
meta_kernels.prepare()
assert registered() == before[0]
assert functions() == before[1]
assert layouts() == before[2]
assert len(before[1][0]) > 600, len(before[1][0])
assert len(meta_kernels._kernels) > 600, len(meta_kernels._kernels)
"""


def test_pytorch_s_registrations_are_as_before():
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_lie_as_on_a_device_with_values(dtype):
    def strides(device):
        column_major = torch.empty_strided((100, 7), (1, 100), dtype=dtype, device=device)
        expanded = torch.ones((), dtype=dtype, device=device).expand(100, 7)
        one_channel = torch.empty(2, 1, 5, 6, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        results = [
            expanded * column_major,
            column_major + expanded,
            torch.empty_like(one_channel),
            one_channel * 2,
            one_channel + one_channel,
        ]
        return [result.stride() for result in results]

    with labkit.simulated_gpu("A100-80GB"):
        assert strides("cuda") == strides("cpu")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.complex64])
@pytest.mark.parametrize("number", [True, 2, 0.5, 1j])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_promote_as_on_a_device_with_values(dtype, number, shape):
    with labkit.simulated_gpu("A100-80GB"):
        for function in (torch.mul, torch.add, torch.div):
            real, simulated = (torch.ones(shape, dtype=dtype, device=device) for device in ("cpu", "cuda"))
            assert function(simulated, number).dtype == function(real, number).dtype
