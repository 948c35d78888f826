"""What the kernels of scaled dot product attention take, forward and backward.

cuDNN's engines take a workspace of their own whose size only cuDNN can tell, on a GPU; it is left out here.
"""

import torch

from labkit.simulator.kernels.launch import Launch, rule
from labkit.simulator.kernels.reductions import reduce


@rule("_safe_softmax.default")
def softmax_of_masked_rows(launch: Launch) -> None:
    """aten/src/ATen/native/transformers/attention.cpp: which scores are -inf, which rows are all so, and a zero."""
    (output,) = launch.outputs
    launch.give(output)
    masked = torch.empty_like(launch.args[0], dtype=torch.bool)
    dim = launch.args[1]
    launch.scratch_like(masked)
    launch.scratch(masked.numel() // max(1, masked.shape[dim]))
    reduce(launch, masked, [dim], 1, 1)
    launch.scratch(output.element_size())
