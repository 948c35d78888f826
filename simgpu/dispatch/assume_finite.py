"""Answers whether values are finite and valid as in a sound run, because the simulated GPU has no values.

Training loops check finiteness: Trainer before it logs a loss, clip_grad_norm_(error_if_nonfinite=True), GradScaler
before each step. The memory of a run that goes well is what matters, so nothing is NaN or infinite. The result of
torch.isnan remembers that, and any(), all(), not, and, or of such tensors follow. Validity is checked by some of
PyTorch's own Python code (for example that no variance is negative), and unknown values pass. One warning says what was
assumed.
"""

import operator
import sys

import torch
import torch.distributions
from torch.testing._comparison import TensorLikePair

from simgpu.device import machine as machines
from simgpu.handlers import handles
from simgpu.storage import storage_map, values

Tensor = torch.Tensor

# PyTorch's Python functions that check values: what bool() of a tensor in them is in a sound run, and whether a warning
# says so. They are identified by their code, because a wrapper would hold their arguments.
CHECKS = {
    torch.nn.functional.gaussian_nll_loss: (False, True),  # any(var < 0)
    torch.distributions.Distribution.__init__: (True, True),  # are all parameters valid for the distribution?
    torch.distributions.Distribution._validate_sample: (True, True),
    TensorLikePair._compare_regular_values_close: (True, True),  # used by assert_close, and so by torch.jit.trace
    # redraws while any(out of range), which is random on a GPU too
    torch.nn.init._no_grad_trunc_normal_: (False, False),
}
_CODES = {function.__code__: answer for function, answer in CHECKS.items()}


def answer(tensor):
    """Returns what `tensor` says about finiteness in a sound run (bool or 0.0), or None for any other tensor."""
    known = _known(tensor)
    if known is None or values.of(tensor) is not None:
        return None
    _warn()
    return known


def _warn():
    machines.on().unmodeled.say(
        "sound run",
        "simulated tensors have no values: whether they are finite and valid is answered as in a sound run (they are)",
    )


def assumed() -> bool | None:
    """Returns what bool() of a tensor with unknown values is, if one of CHECKS calls it, else None."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _CODES:
            known, warn = _CODES[frame.f_code]
            if warn:
                _warn()
            return known
        frame = frame.f_back
    return None


def _version(tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _remember(tensor, known):
    if storage_map.of(tensor) is not None and values.of(tensor) is None:
        tensor._assumed_finite = known, _version(tensor)
    return tensor


def _known(tensor):
    if isinstance(tensor, (bool, int)):
        return bool(tensor)
    known, version = getattr(tensor, "_assumed_finite", (None, 0))
    return known if known is None or version == _version(tensor) else None


@handles(torch.isnan, torch.isinf, torch.isposinf, torch.isneginf)
@handles(Tensor.isnan, Tensor.isinf, Tensor.isposinf, Tensor.isneginf)
def is_not_finite(mode, function, args, kwargs):
    """Implements isnan(), isinf() and similar: False for every element, as in a sound run."""
    return _remember(function(*args, **kwargs), False)


@handles(torch.isfinite, Tensor.isfinite)
def is_finite(mode, function, args, kwargs):
    """Implements isfinite(): True for every element, as in a sound run."""
    return _remember(function(*args, **kwargs), True)


@handles(torch._amp_foreach_non_finite_check_and_unscale_)
def unscale(mode, function, args, kwargs):
    """Implements GradScaler's check, which writes 1.0 to its second argument (0.0 before) if a gradient is not
    finite.
    """
    result = function(*args, **kwargs)
    _remember(args[1], 0.0)
    return result


_OF_TWO = (operator.or_, operator.and_)


@handles(torch._amp_update_scale_)
def update_scale(mode, function, args, kwargs):
    """Implements GradScaler's count of sound steps since the scale last grew (AmpKernels.cu)."""
    tracker, found, interval = args[1], args[2], args[5]
    steps = None if machines.on().host_memory is not None else values.of(tracker)
    steps = None if steps is None or _known(found) != 0.0 else steps.item() + 1
    result = function(*args, **kwargs)
    if steps is not None:
        values.keep(tracker, torch.tensor(0 if steps == interval else steps, dtype=tracker.dtype, device="cpu"))
    return result


@handles(Tensor.add_)  # also `+=`
def add_in_place(mode, function, args, kwargs):
    """Adds up what GradScaler found for several optimizers, which is nothing."""
    nothing = [_known(one) for one in args] == [0.0, 0.0]
    result = function(*args, **kwargs)
    return _remember(result, 0.0) if nothing else result


def _follow(combine, *functions):
    @handles(*functions)
    def follow(mode, function, args, kwargs):
        result = function(*args, **kwargs)
        given = [*args, *(kwargs[name] for name in ("input", "other") if name in kwargs)]
        known = [_known(one) for one in given[: None if combine in _OF_TWO else 1]]
        return result if None in known else _remember(result, combine(*known))


_follow(bool, torch.any, Tensor.any, torch.all, Tensor.all)
_follow(operator.not_, torch.logical_not, Tensor.logical_not, Tensor.__invert__)
_follow(operator.or_, torch.logical_or, Tensor.logical_or, torch.bitwise_or, Tensor.bitwise_or, Tensor.__or__)
_follow(operator.and_, torch.logical_and, Tensor.logical_and, torch.bitwise_and, Tensor.bitwise_and, Tensor.__and__)
