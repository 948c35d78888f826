"""Values that are known on the stub engine although its kernels compute none: those of small tensors of integers.

Models ask masks and positions which way to continue: does this mask let everything through? `zeros`, `arange`, copies
from the host and the like give values that follow from their arguments, and so do comparisons and sums of them. For
these operators the kernel of CUDA is replaced by one that calls PyTorch's own and computes the same on the CPU, by
`torch.library.get_kernel`, as its documentation shows. So the size of `nonzero` or `unique` of such values is known
too. Floating-point numbers are known where they follow from integers or from what the host copied, by operators that
round once, as IEEE 754 says, and so as on the GPU. Sums of them are known only where every order of adding gives one
result. Those of modules are not noted when a module moves to the GPU, because batch
norm writes its running statistics without a new version. Everything else is unknown: random numbers, results of other
operators.

What is known of a tensor is forgotten when anything may have written to it: when its version has changed, or when a
kernel that is not one of PyTorch's operators (a Triton kernel, an extension's) was given a pointer into its memory
(stub/sources/libcudart/written.c). A replay of a CUDA graph counts as the kernels that were captured, and forgets all
tensors of the dtypes that cuBLAS and cuDNN write. Tensors of inference mode have no version,
so any kernel that was given a pointer into one may have written to it, but for those of the operators below.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MOST, MOST_BOOLS = 1 << 16, 1 << 22
"""Elements of the largest tensor whose values are computed, and of the largest one of booleans."""

_NUMBERS = frozenset((bool, int, float, complex))
_OF_A_DEVICE = frozenset(("device", "layout", "pin_memory", "non_blocking"))
_SWEPT = 256  # tensors that are known before those that are gone are looked for

FILLED = ("zeros", "ones", "full", "scalar_tensor", "arange", "arange.start", "arange.start_step")
"""Operators that make a tensor of numbers alone."""
LIKE = ("zeros_like", "ones_like", "full_like")
"""Operators that take only the shape of their argument."""
MOVES = (
    *("clone", "cat", "stack", "constant_pad_nd", "index.Tensor", "index_select", "masked_select", "gather"),
    *("tril", "triu", "flip", "roll", "repeat", "where.self", "maximum", "minimum", "neg", "abs"),
    *("ceil", "floor", "trunc", "round"),
)
"""Operators that are exact for floating-point numbers too."""
ROUNDED = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "clamp")
"""Operators that round each element of their result once. Known for float32 and float64: in a smaller dtype the GPU
computes with numbers of the host that are not rounded to it.
"""
SUMS = ("sum", "sum.dim_IntList")
EXACT = 1 << 24  # integers up to this one are float32 numbers
COMPUTED = (
    *MOVES,
    *ROUNDED,
    *SUMS,
    *("floor_divide", "remainder.Tensor", "remainder.Scalar", "cumsum", "max", "min", "amax", "amin", "argmax"),
    *("aminmax", "max.dim", "min.dim"),
    *("all", "all.dim", "any", "any.dim", "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_not"),
    *(f"bitwise_{name}.{overload}" for name in ("and", "or", "xor") for overload in ("Tensor", "Scalar")),
    *(f"{name}.{overload}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for overload in ("Tensor", "Scalar")),
)
"""Operators whose result follows from the values of their arguments."""
SIZED = ("nonzero", "_unique2", "unique_consecutive")
"""Operators that read one number from the device, how many rows their result has."""
_SOUND = {
    "eq.Tensor": (lambda x, other: x is other, True),
    "ne.Tensor": (lambda x, other: x is other, False),
    "ne.Scalar": (lambda x, number: number == float("inf"), True),
    "eq.Scalar": (lambda x, number: number == float("inf"), False),
}
"""Comparisons that `isfinite`, `isnan` and `isinf` consist of (aten/src/ATen/native/TensorCompare.cpp), and their
results for unknown numbers: a run is taken to be sound, as on the meta engine.
"""


def _listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else (results,)


class UnknownError(Exception):
    """An argument whose values are not known."""


class Known:
    """The values of tensors on the GPU. `runtime`: the stub of the CUDA runtime.

    `reading` is true while the program reads what is known.
    """

    def __init__(self, torch: Any, runtime: ctypes.CDLL):
        from torch.multiprocessing.reductions import StorageWeakRef

        runtime.mock_kernels.restype = runtime.mock_last_kernel.restype = ctypes.c_ulong
        self.reading = False
        self._torch, self._runtime, self._weak = torch, runtime, StorageWeakRef
        self._exact = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
        self._inexact = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
        self._of: dict[int, tuple] = {}  # by a storage's address: it, version, kernels until then, values
        self._sweep_at = _SWEPT
        self._library: Any = None
        self._moves_module = self._infers = False

    def begin(self) -> None:
        """Replaces the kernels, where this version of torch (2.9 or newer) lets them be asked for."""
        if not hasattr(self._torch.library, "get_kernel"):
            return
        self._library = self._torch.library.Library("aten", "IMPL")
        kinds = ((FILLED, self._filled), (LIKE, self._like), (COMPUTED, self._computed), (SIZED, self._sized))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")  # that a kernel is replaced
            for names, make in kinds:
                for name in names:
                    self._replace(name, make)
            for key in ("CPU", "CUDA"):
                self._replace("_to_copy", self._moved, key)
            for name in ("_local_scalar_dense", "equal"):
                self._replace(name, self._read)
        module = self._torch.nn.Module
        module._apply = self._applied(module._apply)

    def _replace(self, name: str, make: Callable, key: str = "CUDA") -> None:
        base, _, overload = name.partition(".")
        try:
            operator = getattr(getattr(self._torch.ops.aten, base), overload or "default")
            real = self._torch.library.get_kernel(operator, key).call_boxed
        except (AttributeError, RuntimeError):
            return  # a different version of torch may lack the operator or the kernel; its values are unknown then
        self._library.impl(name, make(operator, real), key, with_keyset=True)

    def _applied(self, real: Callable) -> Callable:
        """Module._apply, in which no floating-point numbers are noted."""

        @functools.wraps(real)
        def _apply(module, *args, **kwargs):
            outer, self._moves_module = self._moves_module, True
            try:
                return real(module, *args, **kwargs)
            finally:
                self._moves_module = outer

        return _apply

    # What takes the place of a kernel. When an error leaves it, its frame must not keep tensors alive.

    def _filled(self, operator, real) -> Callable:
        def kernel(keyset, *args, **kwargs):
            result = self._reads((), real, keyset, *args, **kwargs)
            if self._wanted(result):
                self.note(operator, result, args, {**kwargs, "device": "cpu"})
            return result

        return kernel

    def _like(self, operator, real) -> Callable:
        def kernel(keyset, this, *args, **kwargs):
            try:
                result = self._reads((this,), real, keyset, this, *args, **kwargs)
                if self._wanted(result):
                    blank = self._torch.ops.aten.empty.memory_format(this.shape, dtype=result.dtype, device="cpu")
                    self.note(operator, result, (blank, *args), {**kwargs, "device": "cpu"})
                return result
            finally:
                del this

        return kernel

    def _computed(self, operator, real) -> Callable:
        name = operator.name().removeprefix("aten::")
        asks, sound = _SOUND.get(name, (lambda *_: False, None))
        full = self._torch.ops.aten.full.default
        binary = [str(one.type) for one in operator._schema.arguments][:2] == ["Tensor", "Tensor"]

        def kernel(keyset, *args, **kwargs):
            try:
                if binary:
                    args = self._tensors(*args)
                elif type(args[0]) in _NUMBERS:
                    args = (self._scalar(args[0]), *args[1:])
                result = self._reads(args, real, keyset, *args, **kwargs)
                first = _listed(result)[0]
                if self._wanted(first, self.as_on_gpu(name, first, args, kwargs)):
                    computes = self._quotient(operator, args) if name == "div.Tensor" else operator
                    noted = self.note(computes, result, args, kwargs)
                    if not noted and sound is not None and args[0].is_floating_point() and asks(*args):
                        self.note(full, first, (list(first.shape), sound), {"dtype": first.dtype, "device": "cpu"})
                return result
            finally:
                del args, kwargs

        return kernel

    def as_on_gpu(self, name: str, result: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Returns whether the CPU computes the floating-point numbers of a result as the GPU does."""
        if not result.dtype.is_floating_point or name in MOVES:
            return True
        if name in SUMS:
            return self._adds_up(args[0])
        wide = result.dtype in (self._torch.float32, self._torch.float64)
        return (
            name in ROUNDED and wide and kwargs.get("alpha", 1) == 1
        )  # else it is multiplied and added in one rounding

    def _adds_up(self, this: Any) -> bool:
        """Returns whether a sum does not depend on the order of adding: of integers, also as floating-point numbers."""
        known = self.of(this)
        if known is None:
            return False
        with self._torch._C.DisableTorchFunction():
            exact = known.double()
            return bool((exact == exact.trunc()).all()) and exact.abs().sum().item() <= EXACT

    def _quotient(self, operator, args: Sequence[Any]) -> Callable:
        """Returns a function that divides as the GPU does, which multiplies by the reciprocal of a number of the host.

        (aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu)
        """
        if args[1].is_cuda or args[1].dim():
            return operator

        def times_reciprocal(one, other):
            dtype = operator(self._torch.ones_like(one), other).dtype
            wide = dtype if dtype is self._torch.float64 else self._torch.float32
            return (one.to(wide) * (1 / other.to(wide))).to(dtype)

        return times_reciprocal

    def _sized(self, operator, real) -> Callable:
        def kernel(keyset, this, *args, **kwargs):
            try:
                known = self.of(this)
                if known is None:
                    return real(keyset, this, *args, **kwargs)
                with self._torch._C.DisableTorchFunction():
                    values = operator(known, *args, **kwargs)
                with self.read_of(known), self._next_read(_listed(values)[0].shape[0]):
                    results = self._reads((this,), real, keyset, this, *args, **kwargs)
                self.keep(results, values)
                return results
            finally:
                del this

        return kernel

    @contextmanager
    def _next_read(self, number: int) -> Iterator[None]:
        """Gives an operator the number that it reads from the device."""
        reads = self._runtime.mock_reads
        reads((ctypes.c_uint64 * 1)(number), ctypes.c_size_t(1))
        try:
            yield
        finally:
            reads((ctypes.c_uint64 * 0)(), ctypes.c_size_t(0))

    def _moved(self, operator, real) -> Callable:
        def kernel(keyset, this, **kwargs):
            try:
                if type(this) in _NUMBERS:
                    this = self._scalar(this)
                known = self.of(this) if this.is_cuda else None
                with self.read_of(known):
                    result = self._reads((this,), real, keyset, this, **kwargs)
                if known is not None and result.device.type == "cpu":
                    result.copy_(known)
                elif self._wanted(result, not self._moves_module):
                    self.note(operator, result, (this,), kwargs)
                return result
            finally:
                del this

        return kernel

    def _read(self, operator, real) -> Callable:
        def kernel(keyset, *args):
            try:
                known = [self.of(one) for one in args]
                if any(one is None for one in known):
                    return real(keyset, *args)
                with self.read_of(known):
                    self._reads(args, real, keyset, *args)  # it waits for the GPU
                with self._torch._C.DisableTorchFunction():
                    return operator(*known)
            finally:
                del args

        return kernel

    @contextmanager
    def read_of(self, known: object) -> Iterator[None]:
        """What is read inside counts as known if `known` is not None."""
        outer = self.reading
        self.reading = outer or known is not None
        try:
            yield
        finally:
            self.reading = outer

    # Values

    def of(self, tensor: Any) -> Any:
        """The values of a tensor, on the CPU and not to be written to; None where they are not known."""
        if tensor.numel() > self._most(tensor):
            return None
        if not tensor.is_cuda:
            return tensor if tensor.device.type == "cpu" and tensor.layout is self._torch.strided else None
        if tensor.layout is not self._torch.strided:
            return None
        address = self._address(tensor)
        found = self._of.get(address)
        if found is None:
            return None
        _, version, kernels, values = found
        inference = tensor.is_inference()
        if version != (None if inference else tensor._version) or (
            kernels != self._kernels(inference) and kernels < self._written(tensor, inference)
        ):
            del self._of[address]
            return None
        with self._torch._C.DisableTorchFunction():
            view = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
            return view.set_(values, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _kernels(self, inference: bool) -> int:
        """Returns how many kernels ran that may write to a tensor without a new version."""
        return self._runtime.mock_kernels(inference)

    def _written(self, tensor: Any, inference: bool) -> int:
        """Returns the number of the last of these kernels that may have written to the tensor's storage."""
        storage = tensor.untyped_storage()
        address, nbytes = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
        by_libraries = tensor.dtype in self._inexact or tensor.dtype in (self._torch.int32, self._torch.int8)
        return self._runtime.mock_last_kernel(inference, address, nbytes, by_libraries)

    def stays(self, tensor: Any) -> None:
        """Keeps the values of a tensor that the last kernels were given and did not write to."""
        address = self._address(tensor)
        if address in self._of:
            storage, version, _, values = self._of[address]
            self._of[address] = storage, version, self._kernels(tensor.is_inference()), values

    def _reads(self, arguments: Any, real: Callable, *args: Any, **kwargs: Any) -> Any:
        """Calls a kernel that only reads these arguments: what is known of inference tensors among them stays known."""
        tensors = []
        if self._infers:
            tensors = self._of_inference(arguments)
            self._runtime.mock_clear_stack()
        del arguments
        try:
            return real(*args, **kwargs)
        finally:
            del args, kwargs
            for tensor in tensors:
                self.stays(tensor)
            tensors.clear()

    def _of_inference(self, arguments: Any) -> list[Any]:
        """Returns the inference tensors among an operator's arguments that are known."""
        flat = [one for argument in arguments for one in _listed(argument) if isinstance(one, self._torch.Tensor)]
        return [one for one in flat if one.is_cuda and one.is_inference() and self.of(one) is not None]

    @staticmethod
    def _address(tensor: Any) -> int:
        return tensor.untyped_storage()._cdata

    def _most(self, tensor: Any) -> int:
        return MOST_BOOLS if tensor.dtype is self._torch.bool else MOST

    def _wanted(self, result: Any, inexact: bool = False) -> bool:
        """Returns whether the values of a result are worth knowing. `inexact`: floating-point numbers may be noted."""
        if result.numel() > self._most(result):
            return False
        if result.dtype not in self._exact and not (inexact and result.dtype in self._inexact):
            return False
        return type(result) is self._torch.Tensor and result.is_cuda

    def note(self, operator, result, args, kwargs) -> bool:
        """Notes the values of a result, if those of the arguments are known; returns whether they are."""
        try:
            given = self._values_of(args)
        except UnknownError:
            return False
        named = {name: one for name, one in kwargs.items() if name not in _OF_A_DEVICE or one == "cpu"}
        with self._torch._C.DisableTorchFunction():
            try:
                values = operator(*given, **named)
            except (RuntimeError, IndexError, TypeError):
                return False  # the CPU has it in no such dtype, or the error will be raised on the GPU too
        return self.keep(result, values)

    def keep(self, results: Any, values: Any) -> bool:
        """Keeps the values of results until they are written to; returns whether they have their shapes and dtypes."""
        kept = [self._keep_one(*pair) for pair in zip(_listed(results), _listed(values), strict=True)]
        return all(kept)

    def _keep_one(self, result: Any, values: Any) -> bool:
        if values.shape != result.shape or values.dtype != result.dtype:
            return False  # the shape depends on values, and was another one with zeros
        if result.numel() > self._most(result):
            return False
        inference = result.is_inference()
        if inference and not self._infers:
            self._infers = True
            self._runtime.mock_watch_all_kernels()
        with self._torch._C.DisableTorchFunction():
            if values.stride() != result.stride():
                values = self._torch.empty_strided(
                    result.shape, result.stride(), dtype=result.dtype, device="cpu"
                ).copy_(values)
        storage = self._weak(result.untyped_storage())
        version = None if inference else result._version
        self._of[storage.cdata] = storage, version, self._kernels(inference), values.untyped_storage()
        if len(self._of) > self._sweep_at:
            self._of = {address: one for address, one in self._of.items() if not one[0].expired()}
            self._sweep_at = _SWEPT + 2 * len(self._of)
        return True

    def _values_of(self, argument: Any) -> Any:
        if isinstance(argument, self._torch.Tensor):
            known = self.of(argument)
            if known is None:
                raise UnknownError
            return known
        if isinstance(argument, (list, tuple)):
            return [self._values_of(one) for one in argument]
        return argument

    def _tensors(self, one: Any, other: Any, *more: Any) -> tuple:
        """The operands of an operator. Python gets numbers in place of those that PyTorch calls wrapped numbers."""
        if type(other) in _NUMBERS:
            other = self._scalar(other, one)
        elif type(one) in _NUMBERS:
            one = self._scalar(one, other)
        return one, other, *more

    def _scalar(self, number: Any, other: Any = None) -> Any:
        """Returns a number as a tensor of its own dtype, or of one that does not change what it gives with `other`."""
        with self._torch._C.DisableTorchFunction():
            exact = other is None and self._torch.tensor(number).dtype
            dtype = exact or self._torch.result_type(other, number)
            return self._torch.scalar_tensor(number, dtype=dtype, device="cpu")
