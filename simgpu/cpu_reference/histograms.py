"""Histograms of integers, which only CUDA computes (aten/src/ATen/native/cuda/SummaryOps.cu)."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl


@cpu_impl("histc.default", "histc.out")
def histogram(call: Call):
    """Returns the histogram; integers are binned with integer arithmetic, floats by the CPU's own operator.

    (_histc_cuda_template)
    """
    given = call["self"]
    if given.dtype.is_floating_point:
        return call.operator(*call.args, **call.kwargs)
    counts = _counts(given.flatten().long(), call["bins"], int(call["min"]), int(call["max"])).to(given.dtype)
    return call["out"].copy_(counts) if call.operator._overloadname == "out" else counts


def _counts(given: torch.Tensor, bins: int, least: int, most: int) -> torch.Tensor:
    """Counts the values in each of `bins` between `least` and `most`, both included; equal limits mean the values'
    range.
    """
    if least == most and given.numel():
        least, most = (int(one) for one in given.aminmax())
    if least == most:
        least, most = least - 1, most + 1
    inside = given[(given >= least) & (given <= most)]
    return ((inside - least) * bins // (most - least)).clamp(max=bins - 1).bincount(minlength=bins)
