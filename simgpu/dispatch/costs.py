"""Estimates an operator's cost on the GPU: its number of kernels, and how long they take.

By the roofline, an operator either computes at the rate that large matmuls reach in its dtype (`achieved_rates`), or
reads and writes at a share of the memory's bandwidth (`rates`), whichever is slower. torch.utils.flop_counter counts
operations if it knows the operator, and `extra_flops` some more. All others are free, because elementwise kernels,
norms and reductions wait for memory. Bytes are those of the arguments read and the results written, each once, except
for the operators of `sorts`. Caches are not modelled, nor layouts that make memory slower.
"""

import logging
from functools import lru_cache
from math import ceil, prod

import torch

from simgpu.clock import achieved_rates, rates
from simgpu.clock.clock import TO_GPU, TO_HOST
from simgpu.dispatch import kernel_work
from simgpu.gpus.specs import Spec
from simgpu.op_info import arguments
from simgpu.op_info.op_spec import mark
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.ops.foreach import CHUNK
from simgpu.ops.transfer import temporaries
from simgpu.storage import storage_map

# On import, a CUDA build without Triton (as on Windows) logs that it cannot count Triton's kernels. There are none
# here, and a notebook would keep the line.
_log = logging.getLogger("torch.utils.flop_counter")
_log.disabled = True
try:
    from torch.utils.flop_counter import conv_flop_count, flop_registry
finally:
    _log.disabled = False

_aten = torch.ops.aten
_COPY = _aten.copy_.default
READ, WRITTEN, BOTH = 1, 1, 2  # how often an argument's bytes are read or written

# Operators that allocate memory or report on it, and start no kernel.
_NO_KERNEL = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
    "set_", "lift_fresh", "_reshape_alias", "_unsafe_view", "detach", "detach_", "record_stream", "_local_scalar_dense",
}  # fmt: skip
# Operators that write an argument without reading it.
_OVERWRITTEN = {
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_",
    "_foreach_zero_", "_foreach_copy_",
}  # fmt: skip
# Only some rows of these arguments (by position) are read: as many bytes as are returned.
ROWS_READ = {
    "embedding": (0,), "index": (0,), "index_select": (0,), "gather": (0,), "take": (0,), "nll_loss_forward": (0,),
    "nll_loss2d_forward": (0,), "nll_loss_backward": (1,), "nll_loss2d_backward": (1,),
}  # fmt: skip
# Only some rows of the written argument are read and written: as many bytes as the values.
_ROWS_WRITTEN = {"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_", "put_"}
# These read their inputs twice: for statistics, then for the result. In evaluation they compute no statistics.
READ_TWICE = {
    "native_batch_norm", "cudnn_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm_backward",
    "native_group_norm", "native_group_norm_backward", "_native_batch_norm_legit",
}  # fmt: skip


def _kernels_of_group_norm(operator, args, kwargs, outputs) -> int:
    """Counts the kernels of group_norm_kernel.cu: moments, a scale and shift per channel if there are any, the
    result.
    """
    affine = any(arguments.given(operator, name, args, kwargs) is not None for name in ("weight", "bias"))
    return 3 if affine and arguments.given(operator, "HxW", args, kwargs) > 1 else 2


def _kernels_of_group_norm_backward(operator, args, kwargs, outputs) -> int:
    """Counts backward's kernels in that file: two sums and a factor per channel, the sums per group, the gradients."""
    pixels = arguments.given(operator, "HxW", args, kwargs) > 1
    scaled = arguments.given(operator, "weight", args, kwargs) is not None
    kernels = 1 if pixels else 0
    kernels += 2 + (pixels and scaled) if outputs[0] is not None else 0
    return kernels + any(one is not None for one in outputs[1:])


# Operators with more than one kernel in PyTorch's CUDA code: a number, or a function of the call.
_KERNELS = {
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2, "native_batch_norm": 2, "cudnn_batch_norm": 2,
    "native_batch_norm_backward": 2, "cudnn_batch_norm_backward": 2, "native_group_norm": _kernels_of_group_norm,
    "native_group_norm_backward": _kernels_of_group_norm_backward, "slice_backward": 2, "select_backward": 2,
    "mse_loss": 2, "nll_loss_backward": 2,
    "embedding_dense_backward": 2, "index_put": 2, "index_add": 2, "scatter": 2, "scatter_add": 2, "sort": 8,
    "_scaled_dot_product_flash_attention_backward": 3, "_scaled_dot_product_efficient_attention_backward": 2,
    "_scaled_dot_product_cudnn_attention_backward": 3,
}  # fmt: skip

# Decomposed operators (see ops/op_call.py) with one kernel that is not an operator and appears as an empty tensor.
mark("convolution convolution_backward", kernel_among_others=True)
mark("_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward", kernel_among_others=True)

_PRODUCTS = {
    _aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addmm_, _aten.baddbmm_, _aten._addmm_activation,
    _aten._int_mm, _aten._scaled_mm,
}  # fmt: skip
_COUNTED_AS = {
    _aten.addmm_: _aten.addmm, _aten.baddbmm_: _aten.baddbmm, _aten._addmm_activation: _aten.addmm,
    _aten._int_mm: _aten.mm,
}  # fmt: skip
_EXTRA = kernel_work.PRODUCTS | kernel_work.FACTORIZATIONS
_REAL = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}


class Plan:
    """Holds what is the same for every call of an operator.

    `roles` gives (position, name, how often its bytes are moved) of each argument that may hold tensors. `makes_new`
    says whether a result is a new tensor, and `launches` is the kernels per call. `training` is position and name of
    the argument that requests statistics, or None. `written` holds the positions of the arguments that are written to.
    `own` says whether `extra_flops` counts its operations, `factorizes` whether they are a factorization's, and `sorts`
    whether the module `sorts` counts its bytes.
    """

    __slots__ = (
        "attention", "causal", "factorizes", "flops", "free", "launches", "lists", "makes_new", "name", "own",
        "product", "roles", "sorts", "training", "written",
    )  # fmt: skip

    def __init__(self, operator):
        packet, schema = operator.overloadpacket, operator._schema
        self.name = name = schema.name.removeprefix("aten::")
        self.free = name in _NO_KERNEL
        self.lists = name.startswith(("_foreach_", "_fused_", "_amp_foreach"))
        self.launches = _KERNELS.get(name, 1)
        self.product = packet in _PRODUCTS
        self.attention = "attention" in name
        self.sorts = name in kernel_work.OPERATORS
        self.own = packet in _EXTRA
        self.factorizes = packet in kernel_work.FACTORIZATIONS
        self.flops = _EXTRA[packet] if self.own else flop_registry.get(_COUNTED_AS.get(packet, packet))
        self.causal = arguments.has(operator, "is_causal")
        self.roles = []
        self.written = set()
        for position, argument in enumerate(schema.arguments):
            if "Tensor" not in str(argument.type) or position in ROWS_READ.get(name, ()):
                continue
            role = READ
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.written.add(position)
                if name in _ROWS_WRITTEN:
                    continue
                role = WRITTEN if name in _OVERWRITTEN or argument.is_out else BOTH
                if name.startswith("_fused_") and argument.name == "grads":
                    role = READ  # written only to remove a GradScaler's factor
            self.roles.append((position, argument.name, role * (2 if name in READ_TWICE else 1)))
        self.makes_new = any(one.alias_info is None for one in schema.returns)
        named = [(place, one.name) for place, one in enumerate(schema.arguments) if one.name in ("training", "train")]
        self.training = named[0] if named and name in READ_TWICE else None

    def evaluates(self, args, kwargs) -> bool:
        """Returns whether the call is a norm's with given statistics."""
        if self.training is None:
            return False
        position, name = self.training
        return not (args[position] if position < len(args) else kwargs[name])


plan_of = per_op_cache(Plan)


def size(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements, counting expanded ones once."""
    if tensor.is_contiguous():
        return tensor.nbytes
    return tensor.element_size() * _places(tensor.shape, tensor.stride())


@lru_cache(maxsize=4096)
def _places(shape, strides) -> int:
    return prod(length for length, stride in zip(shape, strides, strict=True) if stride)


def _sizes(argument) -> int:
    if isinstance(argument, torch.Tensor):
        return size(argument)
    return sum(map(_sizes, argument)) if isinstance(argument, (list, tuple)) else 0


def traffic(plan: Plan, args, kwargs, outputs) -> int:
    """Returns the bytes that a call reads and writes."""
    total = 0
    given = len(args)
    once = plan.evaluates(args, kwargs)
    for position, name, role in plan.roles:
        argument = args[position] if position < given else kwargs.get(name)
        if once:
            role = READ
        if argument is not None:
            if isinstance(argument, torch.Tensor):
                total += role * size(argument)
            else:
                total += role * (sum(map(size, argument)) if plan.lists else _sizes(argument))
    new = 0
    if plan.makes_new:
        for output in outputs:
            if output is not None:
                new += _sizes(output)
    if plan.name in ROWS_READ:
        new *= 2 if not plan.name.startswith("nll_loss") else 1
    elif plan.name in _ROWS_WRITTEN:
        total *= 2
    return total + new


def precision(spec: Spec, dtype: torch.dtype, convolution: bool = False) -> str:
    """Returns the key of `Spec.peak_flops` for matmuls of this dtype: "tf32" for float32 if that is allowed.

    torch.backends.cuda.matmul and torch.backends.cudnn say what is allowed; for convolutions it is by default.
    """
    if dtype == torch.float32 or dtype == torch.complex64:
        allowed = torch._C._get_fp32_precision_getter("cuda", "conv" if convolution else "matmul") == "tf32"
        return "tf32" if allowed and "tf32" in spec.peak_flops else "float32"
    return _of_type(spec, dtype)


def _of_type(spec: Spec, dtype: torch.dtype) -> str:
    """Returns the key for a dtype without tf32. Complex numbers are multiplied as real ones of half their size."""
    name = str(dtype).removeprefix("torch.")
    name = achieved_rates.FLOAT8 if name.startswith("float8") else _REAL.get(name, name)
    return name if achieved_rates.known(spec, name) else "float32"


def _of_convolution(spec: Spec, args, kwargs) -> str:
    """Returns the precision of a convolution, by its first tensor."""
    first = next(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    return precision(spec, first.dtype, convolution=True)


@lru_cache(maxsize=4096)
def filled(batch: int, rows: int, columns: int, depth: int, multiprocessors: int) -> float:
    """Returns the share of the multiprocessors' work that goes into a matmul's result; 1 is all of it.

    The rest is lost in tiles that extend beyond the result, and in the last wave, which occupies few multiprocessors.
    If there are fewer tiles than multiprocessors, they are split along the sum, into the number of parts that loses
    least, even if the parts need more than one wave. So twice the rows never take more than twice the time.
    """
    tiles = batch * ceil(rows / rates.TILE) * ceil(columns / rates.TILE)
    useful = batch * rows * columns / (tiles * rates.TILE**2)
    most = max(1, depth // rates.SPLIT) if tiles < multiprocessors else 1
    blocks = (tiles * parts for parts in range(1, most + 1))
    return useful * max(one / (ceil(one / multiprocessors) * multiprocessors) for one in blocks)


def _in_order(operator, args, kwargs):
    """Returns a call's arguments by position as far as possible, because flop_counter has other names for them; and the
    rest.
    """
    schema = operator._schema.arguments
    named = [place for place, one in enumerate(schema) if one.name in kwargs and not one.kwarg_only]
    if not named:
        return args, kwargs
    names = [one.name for one in schema[: named[-1] + 1]]
    rest = {name: value for name, value in kwargs.items() if name not in names}
    return tuple(arguments.given(operator, name, args, kwargs) for name in names), rest


def _of_convolution_backward(grad, given, weight, transposed, outputs) -> int:
    """Counts as many operations per gradient as forward has.

    flop_counter 2.13 ignores the groups in the gradient of the weight.
    """
    forward = conv_flop_count(list(given.shape), list(weight.shape), list(grad.shape), transposed)
    return forward * sum(one is not None for one in outputs[:2])


def _counted(plan, args, kwargs, outputs) -> int:
    """Returns the operations that flop_counter counts.

    It knows only an operator's usual shapes. If it fails, this returns 0 and adds the operator to `unread`, because an
    estimate of time must not end the program.
    """
    result = outputs[0] if len(outputs) == 1 else tuple(outputs)
    try:
        if plan.own:
            return plan.flops(args, outputs)
        if plan.product:
            return plan.flops(*(one for one in args if isinstance(one, torch.Tensor)), out_val=result)
        if plan.name == "convolution_backward":
            return _of_convolution_backward(args[0], args[1], args[2], args[7], outputs)
        return plan.flops(*args, **{"out_val": result} | {name: kwargs[name] for name in kwargs if name != "out"})
    except Exception:
        unread.add(plan.name)
        return 0


def operations(operator, args, kwargs, outputs) -> int:
    """Returns a call's operations, as torch.utils.flop_counter and `extra_flops` count them; 0 if neither knows it."""
    plan = plan_of(operator)
    if plan.flops is None:
        return 0
    args, kwargs = _in_order(operator, args, kwargs)
    found = _counted(plan, args, kwargs, outputs)
    if plan.attention and plan.causal and arguments.given(operator, "is_causal", args, kwargs):
        return found // 2  # the counter counts the masked half too
    return found


def _compute_seconds(spec: Spec, plan: Plan, operator, args, kwargs, outputs) -> float:
    flops = operations(operator, args, kwargs, outputs)
    if not flops:
        return 0.0
    first = next(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    if plan.product:
        output = outputs[0]
        *batches, rows, columns = output.shape
        batch = batches[0] if batches else 1
        depth = flops // (2 * batch * rows * columns)
        rate = achieved_rates.rate(spec, precision(spec, first.dtype))
        rate *= filled(batch, rows, columns, depth, spec.multiprocessors)
    elif plan.attention:
        rate = _attention_rate(spec, first.dtype)
    elif plan.own:
        rate = achieved_rates.rate(
            spec, _of_type(spec, first.dtype) if plan.factorizes else precision(spec, first.dtype)
        )
    else:
        key = _of_convolution(spec, args, kwargs)
        in_groups = kernel_work.seconds(spec, operator, args, kwargs, outputs, flops, key)
        if in_groups is not None:
            return in_groups
        rate = achieved_rates.rate(spec, key)
    return flops / (rate * (0.25 if first.dtype.is_complex else 1))


def _attention_rate(spec: Spec, dtype: torch.dtype) -> float:
    """Returns the FLOP/s of fused attention: a share of the datasheet's rate, and at most what large matmuls reach."""
    key = precision(spec, dtype)
    rate, most = spec.peak_flops.get(key, spec.peak_flops["float32"]), achieved_rates.rate(spec, key)
    if dtype == torch.float32 and "tf32" in spec.peak_flops:
        # mem_eff_attention computes float32 with three tf32 matmuls (OpMultiplyAddFastF32) from capability 8.0 on
        rate = max(rate, spec.peak_flops["tf32"] / 3)
        most = max(most, achieved_rates.rate(spec, "tf32") / 3)
    return min(rates.ATTENTION * rate, most)


# The most tensors per launch, by the number of lists, and the most thread blocks (MultiTensorApply.cuh).
_MOST_TENSORS = (110, 64, 48, 36, 30)
_MOST_BLOCKS = 320


def _lists(args) -> list:
    """Returns the lists of tensors among the arguments."""
    return [one for one in args if isinstance(one, (list, tuple)) and one and isinstance(one[0], torch.Tensor)]


def launches(args, outputs) -> int:
    """Counts the launches of an operator on lists of tensors, each of which has a limit of tensors and of chunks."""
    lists = _lists(args)
    if not lists:
        return 1
    depth = len(lists) + (len(outputs) == len(lists[0]))
    chunks = sum([-(-tensor.numel() // CHUNK) for tensor in lists[0]])
    tensors = _MOST_TENSORS[min(depth, len(_MOST_TENSORS)) - 1]
    return max(1, ceil(len(lists[0]) / tensors), ceil(chunks / _MOST_BLOCKS))


def cost(spec: Spec, operator, args, kwargs, outputs, compiled: bool = False) -> tuple[int, float]:
    """Returns the number of kernels that a call starts, and the seconds of the GPU's work without their fixed cost.

    `compiled` says that the call is part of a compiled model, for which inductor converts convolutions to channels
    last.
    """
    plan = plan_of(operator)
    if plan.free:
        return 0, 0.0
    if plan.flops is not None:
        return _cost_of_counted(spec, plan, operator, args, kwargs, outputs, compiled)
    if plan.sorts:
        moved = kernel_work.moved(spec, plan.name, operator, args, kwargs, outputs)
    else:
        moved = traffic(plan, args, kwargs, outputs)
    work = moved / achieved_rates.bandwidth(spec)
    if plan.evaluates(args, kwargs):
        return 1, work
    if plan.lists:
        return launches(args, outputs), work
    kernels = plan.launches
    return kernels if kernels.__class__ is int else kernels(operator, args, kwargs, outputs), work


LIMIT = 20_000  # calls whose cost is cached; beyond that the cache is cleared
_costs: dict[tuple, tuple[Spec, int, float]] = {}

unread: set[str] = set()
"""Operators with a call that flop_counter could not read; the time of such a call is that of its memory traffic."""


def forget() -> None:
    """Clears the cached costs, because they may differ on a different simulated GPU."""
    _costs.clear()


def _signature(value):
    """Returns everything in one argument that a cost may depend on, hashable."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return value


def _cost_of_counted(spec: Spec, plan: Plan, operator, args, kwargs, outputs, compiled) -> tuple[int, float]:
    """Returns the cost of an operator whose operations are counted; cached, because models repeat such calls."""
    convolves = not (plan.product or plan.attention or plan.own)
    allowed = torch._C._get_fp32_precision_getter("cuda", "conv" if convolves else "matmul")
    signature = (id(spec), plan, allowed, compiled, torch.backends.cudnn.enabled, *map(_signature, args))
    if kwargs:
        signature += tuple((name, _signature(value)) for name, value in kwargs.items())
    known = _costs.get(signature)
    if known is None:
        work = traffic(plan, args, kwargs, outputs) / achieved_rates.bandwidth(spec)
        work = max(work, _compute_seconds(spec, plan, operator, args, kwargs, outputs))
        kernels = plan.launches
        if plan.name == "convolution_backward":
            kernels = sum(output is not None for output in outputs[:2])
        if convolves and not compiled:
            key = _of_convolution(spec, args, kwargs)
            in_hardware = key in spec.peak_flops  # and is not emulated, as bfloat16 is on a T4
            changed = kernel_work.changed(operator, args, kwargs, outputs, key) if in_hardware else []
            kernels += len(changed)
            work += 2 * sum(map(size, changed)) / achieved_rates.bandwidth(spec)
        if len(_costs) >= LIMIT:
            _costs.clear()
        known = _costs[signature] = spec, kernels, work  # keeping `spec` alive reserves its id
    return known[1:]


def issue(machine, operator, args, kwargs, outputs) -> None:
    """Adds a call of an operator to the clock of `machine`, on its current stream."""
    if operator is _COPY:
        destination, source, non_blocking = (
            arguments.given(operator, name, args, kwargs) for name in ("self", "src", "non_blocking")
        )
        if _crosses(destination, source):
            return cross(machine, destination, source, non_blocking)
    clock = machine.clock
    kernels, work = cost(machine.spec, operator, args, kwargs, outputs, clock.region is not None)
    if clock.region is not None and clock.region.takes(operator, args, kwargs, outputs, kernels, work):
        return
    if kernels:
        plan, overhead = plan_of(operator), rates.OPERATOR
        if plan.lists:
            lists = _lists(args)
            overhead += rates.TENSOR * (len(lists[0]) if lists else 0)
        clock.launch(machine.stream, work, kernels, overhead, plan.name)
    else:
        clock.view()


def _crosses(destination, source) -> bool:
    return storage_map.on_gpu(destination) != storage_map.on_gpu(source)


def cross(machine, destination, source, non_blocking: bool) -> None:
    """Adds a copy between host and GPU to the clock, with the kernels that convert it or make it contiguous."""
    to_gpu = storage_map.on_gpu(destination)
    clock, here = machine.clock, destination if to_gpu else source
    extra = len(temporaries(destination, source, to_gpu, non_blocking))
    work = 2 * size(here) / achieved_rates.bandwidth(machine.spec)
    # `temporaries` decides where a conversion runs, so the bytes on the link are those of one side or the other.
    carried = source if to_gpu == non_blocking else destination
    nbytes = destination.numel() * carried.element_size()
    pinned = storage_map.is_pinned((source if to_gpu else destination).untyped_storage())
    machine.host_copy(pinned, non_blocking)
    for _ in range(0 if to_gpu else extra):
        clock.launch(machine.stream, work)
    clock.copy(machine.stream, nbytes, TO_GPU if to_gpu else TO_HOST, pinned=pinned, blocking=not non_blocking)
    for _ in range(extra if to_gpu else 0):
        clock.launch(machine.stream, work)
