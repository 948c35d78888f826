"""Computes what the other ranks would send, as far as it is known: every rank has this rank's values.

So a gather repeats this rank's tensor, a sum multiplies it by the number of ranks, and an average or a maximum leaves
it unchanged. This covers known small values (sizes and flags), and with values=True all of them. What cannot be known
is marked as unknown.
"""

import torch
from torch.distributed import ReduceOp
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.cpu_reference import execute
from simgpu.device import machine as machines
from simgpu.storage import storage_map, values

_aten = torch.ops.aten
_SAME = (ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.BAND, ReduceOp.BOR)


def copy(outputs, inputs) -> None:
    """Copies the values of each input to its output."""
    for output, given in zip(outputs, inputs, strict=False):
        _run(_aten.copy_.default, output, given)


def copy_alike(outputs, given: torch.Tensor) -> None:
    """Copies the values of `given` to the outputs of its shape. What ranks give in a different shape is unknown."""
    alike = [one for one in outputs if one.shape == given.shape]
    copy(alike, [given] * len(alike))
    forget([one for one in outputs if one.shape != given.shape])


def repeat(output: torch.Tensor, given: torch.Tensor, ranks: int) -> None:
    """Writes the values of `given` to `output`, `ranks` times."""
    flat = _flat(output)
    for part in flat.chunk(ranks) if flat.numel() else ():
        _run(_aten.copy_.default, part, _flat(given))


def reduce(output: torch.Tensor, given: torch.Tensor, operation, ranks: int) -> None:
    """Writes the reduction of `ranks` tensors like `given` to `output`."""
    if output is not given:
        _run(_aten.copy_.default, output, given)
    kind = _kind(operation)
    if kind in _SAME or ranks == 1:
        return
    if kind == ReduceOp.SUM:
        _run(_aten.mul_.Scalar, output, ranks)
    elif kind == ReduceOp.PRODUCT:
        _run(_aten.pow_.Scalar, output, ranks)
    elif kind == ReduceOp.BXOR and ranks % 2 == 0:
        _run(_aten.zero_.default, output)
    elif kind != ReduceOp.BXOR:
        forget([output])


def reduce_part(output: torch.Tensor, given: torch.Tensor, operation, rank: int, ranks: int) -> None:
    """Writes part `rank` of the reduction of `ranks` tensors like `given` to `output`."""
    part = _flat(given).narrow(0, rank * output.numel(), output.numel())
    reduce(_flat(output), part, operation, ranks)


def exchange(output, given, output_sizes, input_sizes, rank: int, ranks: int) -> None:
    """Writes to `output` the part of each rank that is for this one, which equals the part that this rank has for
    itself.
    """
    if output_sizes or input_sizes:
        sizes = input_sizes or [given.shape[0] // ranks] * ranks
        mine = given.narrow(0, sum(sizes[:rank]), sizes[rank])
        wanted = output_sizes or [output.shape[0] // ranks] * ranks
        start = 0
        for size in wanted:
            part = output.narrow(0, start, size)
            start += size
            _run(_aten.copy_.default, part, mine) if size == sizes[rank] else forget([part])
        return
    parts, mine = _flat(output).chunk(ranks), _flat(given).chunk(ranks)[rank]
    for part in parts:
        _run(_aten.copy_.default, part, mine)


def forget(tensors) -> None:
    """Marks the values of these tensors as unknown."""
    for tensor in tensors:
        place = storage_map.of(tensor)
        if place is not None and place.machine.host_memory is None:
            place.values = None


def _kind(operation):
    return ReduceOp.SUM if operation is None else getattr(operation, "op", operation)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        return tensor.detach().view(-1)


def _run(operator, output: torch.Tensor, *others) -> None:
    """Runs an operator that writes to `output` on values only, without memory or time of the GPU."""
    place = storage_map.of(output)
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        if place is None:
            if not output.is_meta:
                operator(output, *(_of_host(one) for one in others))
            return
        machine = machines.on()
        if machine.host_memory is not None:
            execute.follow(machine, operator, (output.detach(), *others), {}, (output.detach(),))
            return
        if place.values is None and output.nbytes < place.nbytes:
            if not _known(others):
                return
            _blank(output, place)
        values.follow(operator, (output.detach(), *others), {}, (output.detach(),))


def _of_host(one):
    return values.of(one) if isinstance(one, torch.Tensor) and one.is_meta else one


def _known(others) -> bool:
    found = [one for one in others if isinstance(one, torch.Tensor)]
    return all(not one.is_meta or values.of(one) is not None for one in found)


def _blank(output: torch.Tensor, place) -> None:
    """Fills unwritten memory with zeros, so that parts of it can be known."""
    if place.nbytes > values.LIMIT:
        return
    whole = torch.empty(0, dtype=torch.uint8, device="meta").set_(output.untyped_storage())
    values.keep(whole, torch.zeros(place.nbytes, dtype=torch.uint8, device="cpu"))
