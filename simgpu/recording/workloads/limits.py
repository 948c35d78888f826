"""Out of memory: in the forward pass, in the backward pass, and at a limit that the process sets."""

from functools import partial

import torch

from simgpu.recording.workloads.models import three_linear

GiB = 2**30
ROW = 4 * 1024  # bytes per row of the input; the activations need four more rows of this size


def out_of_memory(stage, share):
    """Runs three linear layers on an input that fills `share` of the device."""
    model = three_linear().to("cuda")
    stage("model")
    rows = int(share * torch.cuda.get_device_properties(0).total_memory) // ROW
    inputs = torch.randn(rows, 1024, device="cuda")
    stage("input")
    outputs = model(inputs)
    stage("forward")
    outputs.sum().backward()
    stage("backward")


def fraction(stage):
    """Allocates until the process reaches its own limit of 4 GiB."""
    torch.cuda.set_per_process_memory_fraction(4 * GiB / torch.cuda.get_device_properties(0).total_memory)
    held = []
    while True:
        held.append(torch.empty(300_000_000, dtype=torch.uint8, device="cuda"))
        stage(f"{len(held)} held")


WORKLOADS = {
    "oom-forward": partial(out_of_memory, share=0.3),
    "oom-backward": partial(out_of_memory, share=0.18),
    "oom-fraction": fraction,
}
