"""Computes what copies between the host and the device allocate there in addition to source and destination."""

from simgpu.checks import overlaps
from simgpu.checks.devices import device_of
from simgpu.device import machine as machines
from simgpu.errors import NoValueError
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.storage import values
from simgpu.storage.layout import is_dense


def _one_to_one(destination, source) -> bool:
    """Returns whether both hold the same elements in the same order, so that the bytes are copied directly."""
    if destination.dtype != source.dtype or destination.shape != source.shape:
        return False
    if destination.is_contiguous() and source.is_contiguous():
        return True
    strides = zip(destination.shape, destination.stride(), source.stride(), strict=True)
    return is_dense(destination) and all(a == b for size, a, b in strides if size != 1)


def temporaries(destination, source, to_gpu: bool, non_blocking: bool = False) -> list[int]:
    """Returns the bytes of the copies made on the device, in order.

    (aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda) Only contiguous tensors of one dtype are transferred.
    Conversions run on the host, or for a non-blocking copy on the device. A tensor that is not contiguous is made so on
    its own side.
    """
    count = destination.numel()
    if count == 0 or _one_to_one(destination, source):
        return []
    if to_gpu:
        as_it_is = destination.is_contiguous() and (not non_blocking or destination.dtype == source.dtype)
        return [] if as_it_is else [count * (source if non_blocking else destination).element_size()]
    sizes, element = [], source.element_size()
    contiguous = source.is_contiguous()
    if non_blocking and source.dtype != destination.dtype:
        element = destination.element_size()
        sizes.append(source.numel() * element)
        contiguous = contiguous or not is_dense(source)  # the converted one is contiguous, unless it keeps its strides
    if not contiguous or source.shape != destination.shape:
        sizes.append(count * element)
    return sizes


def take(call: OpCall, destination, source, non_blocking: bool) -> None:
    """Allocates and frees the temporaries of a copy between devices."""
    places = device_of(destination), device_of(source)
    if places[0] != places[1]:
        sizes = temporaries(destination, source, places[1] == "cpu", non_blocking)
        blocks = [call.scratch(size) for size in sizes]
        call.release(*blocks)


@rule("copy_.default")
def copy(call: OpCall) -> None:
    """Rule of copy_: the temporaries of a copy between host and GPU; a copy within the GPU allocates nothing."""
    destination, source = call["self", "src"]
    take(call, destination, source, bool(call["non_blocking"]))


# With a real host tensor among them, one by one.
decomposition("_foreach_copy_.default", when=lambda destinations, sources, *_: not all(t.is_meta for t in destinations))


@rule("_foreach_copy_.default")
def copy_lists(call: OpCall) -> None:
    """Rule of _foreach_copy_: the temporaries of each pair of tensors."""
    destinations, sources = call["self", "src"]
    for destination, source in zip(destinations, sources, strict=True):
        overlaps.refuse_within(destination)
        take(call, destination, source, bool(call["non_blocking"]))


def crossed(machine, destination, source, to_gpu: bool, non_blocking: bool) -> None:
    """Allocates and frees the temporaries of a copy without an operator: Tensor.to, Tensor.cuda, Tensor.cpu."""
    sizes = temporaries(destination, source, to_gpu, non_blocking)
    blocks = [machine.allocator.malloc(size, machine.stream) for size in sizes]
    for block in blocks:
        machine.allocator.free(block)


def write(destination, source) -> None:
    """Fills a real host tensor with the known values of a simulated one, else with nan.

    Unknown integers have no such value: with placeholder values they are 0, else NoValueError is raised.
    """
    known, placeholder_values = values.of(source), machines.on().placeholder_values
    if known is not None:
        destination.copy_(known)
    elif destination.dtype.is_floating_point or destination.dtype.is_complex:
        destination.fill_(float("nan"))
    elif placeholder_values is not None:
        placeholder_values.note("copy_()")
        destination.zero_()
    else:
        raise NoValueError(
            f"copy_() writes the values of a simulated {source.dtype} tensor of shape {tuple(source.shape)} to the "
            f"host, and it has none: the simulated GPU computes memory, not values. {machines.remedy()}."
        )
