"""Estimates the time of grouped convolutions: a group fills only part of a tile, and depthwise ones use no Tensor
Cores.

A convolution is an implicit matmul of the output's positions by its channels. Each group is a separate matmul, with as
many columns as the group has output channels. CUTLASS's tiles are at least `rates.CONVOLUTION_TILE` columns wide, so a
narrower group wastes the rest of the tile, however many groups share it. In the gradient of the input, the columns are
the group's input channels. In that of the weight, the rows are the group's output channels, and the columns its input
channels times the kernel's positions. Depthwise convolutions run without Tensor Cores, in CUTLASS and in PyTorch's own
kernels (aten/src/ATen/native/cuda/DepthwiseConv2d.cu), which accumulate in float32. How much slower the kernels of a
given cuDNN version are is not published, and not modelled.
"""

from math import ceil, prod

from simgpu.clock import achieved_rates, rates
from simgpu.gpus.specs import Spec
from simgpu.op_info import arguments


def _filled(columns: int, tile: int) -> float:
    return columns / (ceil(columns / tile) * tile)


def _channels(weight, transposed: bool, groups: int) -> tuple[int, int]:
    """Returns the input and output channels of a group."""
    if transposed:
        return weight.shape[0] // groups, weight.shape[1]
    return weight.shape[1], weight.shape[0] // groups


def seconds(spec: Spec, operator, args, kwargs, outputs, flops: int, precision: str) -> float | None:
    """Returns the seconds of a convolution of `flops` operations, forward or backward; None if it has one group."""
    if not (arguments.has(operator, "groups") and arguments.has(operator, "transposed")):
        return None
    groups = arguments.given(operator, "groups", args, kwargs)
    if groups == 1:
        return None
    weight = arguments.given(operator, "weight", args, kwargs)
    inputs, per_group = _channels(weight, arguments.given(operator, "transposed", args, kwargs), groups)
    if inputs == 1:
        return flops / achieved_rates.rate(spec, "float64" if precision == "float64" else "float32")
    tile = rates.SIMT_TILE if precision in ("float32", "float64") else rates.CONVOLUTION_TILE
    rate = achieved_rates.rate(spec, precision)
    if operator._schema.name != "aten::convolution_backward":
        return flops / (rate * _filled(per_group, tile))
    shares = (
        _filled(inputs, tile),
        _filled(per_group, tile) * _filled(inputs * prod(weight.shape[2:]), tile),
    )
    wanted = [share for share, one in zip(shares, outputs[:2], strict=True) if one is not None]
    return sum(flops / len(wanted) / (rate * share) for share in wanted)
