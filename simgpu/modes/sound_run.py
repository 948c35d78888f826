"""Whether values are finite and valid: the questions about values that the simulated GPU answers, as a sound run would.

Training loops guard themselves with the first: Trainer before it logs a loss, clip_grad_norm_(error_if_nonfinite=True),
GradScaler before each step. No value exists here, and what is to be shown is the memory of a run that goes well, so
nothing is NaN or infinite. The tensor that torch.isnan returns remembers that; any(), all(), not, and, or of such
tensors follow. The second is PyTorch's own: some of its Python checks what it is given (no variance is negative), and
what is not known passes. A warning, once, says what was assumed.
"""

import operator
import sys

import torch
import torch.distributions
from torch.testing._comparison import TensorLikePair

from simgpu import machine as machines
from simgpu.handlers import handles
from simgpu.tensors import residence, values

Tensor = torch.Tensor

# PyTorch's functions in Python that ask whether values are valid: what bool() of a tensor is in them in a sound run,
# and whether a warning says so. They are known by their code: a function around them would hold their arguments.
CHECKS = {
    torch.nn.functional.gaussian_nll_loss: (False, True),  # any(var < 0)
    torch.distributions.Distribution.__init__: (True, True),  # are all parameters as the distribution wants them?
    torch.distributions.Distribution._validate_sample: (True, True),
    TensorLikePair._compare_regular_values_close: (True, True),  # of assert_close, and with it torch.jit.trace
    torch.nn.init._no_grad_trunc_normal_: (False, False),  # draws again while any(out of range): chance on a GPU too
}
_CODES = {function.__code__: answer for function, answer in CHECKS.items()}


def answer(tensor):
    """What `tensor` says of the finiteness of values in a sound run (bool or 0.0), or None for any other tensor."""
    known = _known(tensor)
    if known is None or values.of(tensor) is not None:
        return None
    _warn()
    return known


def _warn():
    machines.on().left_out.say(
        "sound run",
        "simulated tensors have no values: whether they are finite and valid is answered as in a sound run (they are)",
    )


def assumed() -> bool | None:
    """What bool() of a tensor whose value is not known is where it is asked for: in one of CHECKS, else None."""
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
    if residence.of(tensor) is not None and values.of(tensor) is None:
        tensor._in_a_sound_run = known, _version(tensor)
    return tensor


def _known(tensor):
    if isinstance(tensor, (bool, int)):
        return bool(tensor)
    known, version = getattr(tensor, "_in_a_sound_run", (None, 0))
    return known if known is None or version == _version(tensor) else None


@handles(torch.isnan, torch.isinf, torch.isposinf, torch.isneginf)
@handles(Tensor.isnan, Tensor.isinf, Tensor.isposinf, Tensor.isneginf)
def is_not_finite(mode, function, args, kwargs):
    """isnan(), isinf() and kin: no element is, as in a sound run."""
    return _remember(function(*args, **kwargs), False)


@handles(torch.isfinite, Tensor.isfinite)
def is_finite(mode, function, args, kwargs):
    """isfinite(): every element is, as in a sound run."""
    return _remember(function(*args, **kwargs), True)


@handles(torch._amp_foreach_non_finite_check_and_unscale_)
def unscale(mode, function, args, kwargs):
    """GradScaler's: writes 1.0 to its second argument if a gradient is not finite, and 0.0 stands there before."""
    result = function(*args, **kwargs)
    _remember(args[1], 0.0)
    return result


_OF_TWO = (operator.or_, operator.and_)


@handles(torch._amp_update_scale_)
def update_scale(mode, function, args, kwargs):
    """GradScaler's: counts the sound steps since the scale last grew (aten/src/ATen/native/cuda/AmpKernels.cu)."""
    tracker, found, interval = args[1], args[2], args[5]
    steps = None if machines.on().host_memory is not None else values.of(tracker)
    steps = None if steps is None or _known(found) != 0.0 else steps.item() + 1
    result = function(*args, **kwargs)
    if steps is not None:
        values.keep(tracker, torch.tensor(0 if steps == interval else steps, dtype=tracker.dtype, device="cpu"))
    return result


@handles(Tensor.add_)  # and `+=`
def add_in_place(mode, function, args, kwargs):
    """What GradScaler found for several optimizers, added up: nothing."""
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
