"""Whether values are finite: the one question about values that the simulated GPU answers, as a sound run would.

Training loops guard themselves with it: Trainer before it logs a loss, clip_grad_norm_(error_if_nonfinite=True),
GradScaler before each step. No value exists here, and what is to be shown is the memory of a run that goes well, so
nothing is NaN or infinite. The tensor that torch.isnan returns remembers that; any(), all(), not, and, or of such
tensors follow. A warning, once, says what was assumed.
"""

import operator
import warnings

import torch

from labkit.simulator.handlers import handles
from labkit.simulator.tensors import residence

Tensor = torch.Tensor

_warned = False


def answer(tensor):
    """What `tensor` says of the finiteness of values in a sound run (bool or 0.0), or None for any other tensor."""
    known = _known(tensor)
    global _warned
    if known is not None and not _warned:
        _warned = True
        warnings.warn(
            "simulated tensors have no values: whether they are finite is answered as in a sound run (they are)",
            stacklevel=5,
        )
    return known


def _version(tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _remember(tensor, known):
    if residence(tensor) is not None:
        tensor._in_a_sound_run = known, _version(tensor)
    return tensor


def _known(tensor):
    known, version = getattr(tensor, "_in_a_sound_run", (None, 0))
    return known if known is None or version == _version(tensor) else None


@handles(torch.isnan, torch.isinf, torch.isposinf, torch.isneginf)
@handles(Tensor.isnan, Tensor.isinf, Tensor.isposinf, Tensor.isneginf)
def is_not_finite(mode, function, args, kwargs):
    return _remember(function(*args, **kwargs), False)


@handles(torch.isfinite, Tensor.isfinite)
def is_finite(mode, function, args, kwargs):
    return _remember(function(*args, **kwargs), True)


@handles(torch._amp_foreach_non_finite_check_and_unscale_)
def unscale(mode, function, args, kwargs):
    """GradScaler's: writes 1.0 to its second argument if a gradient is not finite, and 0.0 stands there before."""
    result = function(*args, **kwargs)
    _remember(args[1], 0.0)
    return result


def _follow(combine, *functions):
    @handles(*functions)
    def follow(mode, function, args, kwargs):
        result = function(*args, **kwargs)
        known = [_known(argument) for argument in args if isinstance(argument, Tensor)]
        return result if None in known else _remember(result, combine(*known))


_follow(bool, torch.any, Tensor.any, torch.all, Tensor.all)
_follow(operator.not_, torch.logical_not, Tensor.logical_not, Tensor.__invert__)
_follow(operator.or_, torch.logical_or, Tensor.logical_or, torch.bitwise_or, Tensor.bitwise_or, Tensor.__or__)
_follow(operator.and_, torch.logical_and, Tensor.logical_and, torch.bitwise_and, Tensor.bitwise_and, Tensor.__and__)
