"""Holds the parameters of a convolution, and finds the layout that its implementations need."""

from dataclasses import dataclass

import torch
from torch._prims_common import suggest_memory_format

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dims


@dataclass
class Geometry:
    """The parameters of a convolution, one value per spatial dim."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def __post_init__(self):
        dims = max(map(len, (self.stride, self.padding, self.dilation, self.output_padding)))
        for name in ("stride", "padding", "dilation", "output_padding"):
            values = list(getattr(self, name))
            setattr(self, name, values * dims if len(values) == 1 else values)

    def as_2d(self) -> "Geometry":
        """Returns a 1-D convolution as a 2-D one of height 1."""
        return Geometry(
            [1, *self.stride],
            [0, *self.padding],
            [1, *self.dilation],
            self.transposed,
            [0, *self.output_padding],
            self.groups,
        )

    def output_shape(self, input, weight) -> list[int]:
        """Returns the sizes of the output for an input and a weight with batch and channels."""
        numbers = zip(
            input.shape[2:],
            weight.shape[2:],
            self.stride,
            self.padding,
            self.dilation,
            self.output_padding,
            strict=True,
        )
        if self.transposed:
            spatial = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + o for n, k, s, p, d, o in numbers]
            return [input.shape[0], weight.shape[1] * self.groups, *spatial]
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in numbers]
        return [input.shape[0], weight.shape[0], *spatial]

    @property
    def dilated(self) -> bool:
        return any(d != 1 for d in self.dilation)

    def is_pointwise(self, weight) -> bool:
        """Returns whether the input is its own matrix of columns."""
        ones = (*weight.shape[2:], *self.stride, *self.dilation)
        return all(n == 1 for n in ones) and not any(self.padding)


def cudnn_layout(input, weight) -> torch.memory_format:
    """Returns channels_last if either operand is, except for fp64 (ConvUtils.h, cudnn_conv_suggest_memory_format)."""
    if torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    layout = CHANNELS_LAST[weight.dim()]
    return layout if layout in map(suggest_memory_format, (input, weight)) else torch.contiguous_format
