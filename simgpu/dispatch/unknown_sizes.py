"""Gives an operator's results their shapes, also where these depend on values that a simulated tensor may not have."""

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import placeholder_values as numbers
from simgpu.device import machine as machines
from simgpu.errors import NESTED, NotModelledError, NoValueError
from simgpu.op_info.arguments import tensors_in
from simgpu.ops import custom
from simgpu.placeholder_values import PlaceholderLine, zeros_like
from simgpu.shapes import meta_kernels
from simgpu.storage import storage_map, values
from simgpu.storage.storage_map import HOST, on_gpu

# Finds out whether the shapes of a call's results depend on a placeholder value.
# The call is repeated twice on detached meta tensors, with the number as it is and with one more. If the shapes
# differ, or only one of the two calls succeeds, the number decides a size. PyTorch itself gives the answer for every
# function: `x[:n]` and `zeros(n)` differ, `x[n]` and `x * n` do not.

_FAILED = "failed"


def lines_in(args, kwargs) -> tuple[PlaceholderLine, ...]:
    """Returns the lines whose placeholder values a call's arguments depend on."""
    found: dict[PlaceholderLine, None] = {}
    _collect(args, found)
    if kwargs:
        _collect(kwargs.values(), found)
    return tuple(found)


def _collect(arguments, found: dict) -> None:
    for one in arguments:
        kind = type(one)
        if kind is numbers.Int or kind is numbers.Float:
            found.update(dict.fromkeys(one.of))
        elif kind is slice:
            _collect((one.start, one.stop, one.step), found)
        elif kind is tuple or kind is list or kind is torch.Size:
            _collect(one, found)


def look(function, args, kwargs) -> None:
    """Records for each line that a call's arguments depend on whether it decides a size there."""
    for line in lines_in(args, kwargs):
        if not (line.sizes and not line.at_least):
            _note(line, function, args, kwargs, line)


def look_inside(line: PlaceholderLine, mode: TorchFunctionMode | None) -> None:
    """Does the same as `look` for an integer that PyTorch's C++ reads inside a call: a one-element tensor argument.

    Any other integer that C++ reads decides a size, as when one_hot reads the largest element. `mode` is the function
    mode that handles the call, in a frame that has its arguments.
    """
    answers = getattr(type(mode), "__torch_function__", None)
    code, frame = getattr(answers, "__code__", None), sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        line.decides_size()
        return
    function, args, kwargs = (frame.f_locals[name] for name in ("function", "args", "kwargs"))
    _note(line, function, args, kwargs, None)


def _note(line: PlaceholderLine, function, args, kwargs, of: PlaceholderLine | None) -> None:
    """Makes the two calls and records what `line` decides. `of` is that of `_Given`."""
    before, after = (_shapes(function, args, kwargs, _Given(of, more)) for more in (0, 1))
    if before is None or after is None:
        return
    if before != after:
        grows = _FAILED in (before, after) or _elements(after) >= _elements(before)
        line.decides_size(at_least=grows)
    elif before == _FAILED:
        line.decides_size()


def _elements(shapes) -> int:
    return sum(shape.numel() for shape in shapes)


class _Given:
    """Converts arguments for a probe: adds `more` to the numbers of `line`.

    If `line` is None, it replaces one-element tensors without values.
    """

    def __init__(self, line: PlaceholderLine | None, more: int):
        self.line, self.more = line, more

    def __call__(self, one) -> Any:
        kind = type(one)
        if kind is numbers.Int or kind is numbers.Float:
            return numbers.plain(one) + (self.more if self.line in one.of else 0)
        if kind is slice:
            return slice(self(one.start), self(one.stop), self(one.step))
        if kind is tuple or kind is list:
            return kind(map(self, one))
        if isinstance(one, torch.Tensor):
            return self._tensor(one)
        return torch.device("meta") if kind is torch.device else one

    def _tensor(self, one):
        whole = one.numel() == 1 and not one.dtype.is_floating_point and not one.dtype.is_complex
        if self.line is None and whole and storage_map.of(one) is not None and values.of(one) is None:
            return torch.full(one.shape, self.more, dtype=one.dtype, device="cpu")
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")


def _shapes(function, args, kwargs, given: _Given):
    """Returns the shapes of a call's results, _FAILED if it raises, or None if an index is out of range."""
    kwargs = {name: one for name, one in (kwargs or {}).items() if name not in ("generator", "pin_memory")}
    if "device" in kwargs or function in _device_constructors():
        kwargs["device"] = "meta"
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        try:
            result = function(*given(tuple(args)), **{name: given(one) for name, one in kwargs.items()})
        except IndexError:  # x[n] with n one too large
            return None
        except Exception:
            return _FAILED
        return tuple(one.shape for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor))


# Gives an operator's results their shapes, also where these depend on values that a simulated tensor may not have.

if TYPE_CHECKING:
    from simgpu.dispatch.stages import StagedCall

DATA_DEPENDENT = (
    "{operator} gives a tensor whose size depends on the values of its input, and a simulated tensor has no values. "
    "{remedy}; or use a form with a fixed size (torch.where instead of a mask)."
)

OTHER_LAYOUT = (
    "the simulated GPU does not model tensors of layout {layout}: how much they hold follows from values. Keep tensors "
    "dense; embeddings with sparse=False, and a dense optimizer"
)


def is_refusal_of_meta(error: RuntimeError) -> bool:
    """Returns whether PyTorch's C++ failed because it does not expect meta tensors, for example nested ones."""
    return "INTERNAL ASSERT FAILED" in str(error)


def shapes(call: "StagedCall") -> Any:
    """Returns the operator's result on meta tensors.

    If its sizes depend on values, they are computed from the arguments as the program passed them.
    """
    operator = call.operator
    try:
        return meta_kernels.run(operator, call.args, call.kwargs)
    except NotImplementedError:
        return of_known_size(call)
    except RuntimeError as error:
        if custom.has_fake(operator):
            smallest = custom.smallest(operator, call.args, call.kwargs)
            if smallest is not None:
                return _of_library(call, smallest)
        if is_refusal_of_meta(error):
            raise explained(operator) from None
        raise


def of_known_size(call: "StagedCall") -> Any:
    """Returns the results of an operator whose sizes depend on values, if those are known; else raises an
    explanation.

    The results have the CPU's layout, except for nonzero's (Nonzero.cu: a row per dim, transposed).
    """
    operator, args, kwargs = call.operator, call.given, call.named
    try:
        if not custom.is_of_library(operator):
            if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags):
                raise values.UnknownError
            args, kwargs = _with_placeholders(call)
        results = values.computed(operator, args, kwargs)
    except (values.UnknownError, NotImplementedError):
        raise explained(operator) from None
    if operator is torch.ops.aten.nonzero.default:
        results = results.t().contiguous().t()
    return pytree.tree_map_only(torch.Tensor, meta_kernels.like, results)


def _of_library(call: "StagedCall", smallest) -> Any:
    """Returns the results of a library's operator whose fake kernel has sizes that depend on values.

    The library's CPU kernel computes them if the values are known. Otherwise, with placeholder values, they are the
    `smallest` ones that the fake kernel allows.
    """
    operator, placeholders = call.operator, call.machine.placeholder_values
    try:
        return pytree.tree_map_only(torch.Tensor, meta_kernels.like, values.computed(operator, call.given, call.named))
    except NotImplementedError:
        raise explained(operator) from None
    except values.UnknownError:
        if placeholders is None:
            raise NoValueError(DATA_DEPENDENT.format(operator=operator, remedy=machines.remedy())) from None
    placeholders.note(operator._schema.name).decides_size()
    return smallest


def _with_placeholders(call: "StagedCall") -> tuple:
    """Returns the arguments, with zeros for unknown values if the GPU provides placeholder values."""
    operator, args, kwargs, placeholders = call.operator, call.given, call.named, call.machine.placeholder_values
    tensors = tensors_in((*args, *kwargs.values()))
    if placeholders is None or all(values.of(tensor) is not None for tensor in tensors if tensor.is_meta):
        return args, kwargs
    line = placeholders.note(operator._schema.name.removeprefix("aten::"))
    if torch.Tag.data_dependent_output in operator.tags:
        line.branches = True
    elif any(map(on_gpu, tensors)):
        line.decides_size()
    else:
        call.here.lines = (line,)

    def known(tensor):
        return zeros_like(tensor) if tensor.is_meta and values.of(tensor) is None else tensor

    with _disable_current_modes():
        return pytree.tree_map_only(torch.Tensor, known, (args, kwargs))


def of_the_host(argument, operator):
    """Returns a host tensor for one that was copied there from the GPU, for an operator that reads its values.

    The values are the known ones, or placeholders. Raises NoValueError if there are neither. Returns any other argument
    unchanged.
    """
    home = storage_map.of(argument) if isinstance(argument, torch.Tensor) else None
    if home is None or home.home is not HOST:
        return argument
    unknown = f"the lengths were copied from the simulated GPU, where they have no values. {machines.remedy()}."
    return values.deciding(argument, operator._opname, unknown, least=1)


def explained(operator) -> Exception:
    """Returns the error for an operator whose results have no known shapes, with the reason and a remedy."""
    tags = operator.tags
    if "nested" in operator._opname:
        return NotModelledError(NESTED)
    if "_sparse" in operator._opname:
        return NotModelledError(OTHER_LAYOUT.format(layout=f"sparse ({operator})"))
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return NoValueError(DATA_DEPENDENT.format(operator=operator, remedy=machines.remedy()))
    message = f"the simulated GPU does not model {operator}: PyTorch has no shapes of its results"
    if custom.is_of_library(operator):
        message += (
            ". Register them (torch.library.register_fake), or use values=True (--values), with which the "
            "operator's kernel for the CPU makes the results, if it has one"
        )
    return NotModelledError(message)
