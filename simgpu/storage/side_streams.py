"""Runs backward on the streams of forward, because autograd's engine runs a node on the stream of its operator.

So the node allocates from that stream's free blocks, and a gradient for a node of a different stream is recorded as
used there (torch/csrc/autograd/engine.cpp, evaluate_function; input_buffer.cpp, add). The engine sees no streams of
meta tensors, so nodes of operators that ran on a stream other than the default one get hooks that switch streams.
"""

from functools import partial

import torch

from simgpu.device import machine as machines
from simgpu.storage import storage_map

_STREAM = "stream of the simulated GPU"  # the key in a node's metadata


def note(stream: int, given, results) -> None:
    """Records that the nodes of a call's `results` ran on `stream`, except for those of `given`."""
    before = {tensor.grad_fn for tensor in given if tensor.grad_fn is not None}
    ahead = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    new = []
    while ahead:
        node = ahead.pop()
        if node in before or _STREAM in node.metadata:
            continue
        node.metadata[_STREAM] = stream
        new.append(node)
        ahead += [follower for follower, _ in node.next_functions if follower is not None]
    for node in new:
        streams = [None if one is None else one.metadata.get(_STREAM, 0) for one, _ in node.next_functions]
        outer: list[int] = []
        last = node.register_hook(partial(_leave, stream, outer, streams))
        node.register_prehook(partial(_enter, stream, outer, last))


def _enter(stream: int, outer: list[int], last, gradients) -> None:
    machine = machines.on()
    hooks = last.hooks_dict_ref()
    if hooks is not None:
        # the program's own hooks run on the stream, too, such as FSDP1's of AccumulateGrad
        hooks[last.id] = hooks.pop(last.id)
    outer.append(machine.stream)
    machine.stream = stream
    _used(gradients, [stream] * len(gradients), machine)


def _leave(stream: int, outer: list[int], streams, results, gradients) -> None:
    machine = machines.on()
    machine.stream = outer.pop()
    _used(results, streams, machine)


def _used(gradients, streams, machine) -> None:
    for gradient, stream in zip(gradients, streams, strict=False):
        place = storage_map.of(gradient) if isinstance(gradient, torch.Tensor) and stream is not None else None
        if place is not None and place.block is not None:
            machine.allocator.record_stream(place.block, stream)


def as_it_was(run):
    """Wraps torch.autograd._engine_run_backward, so that the current stream is restored afterwards.

    This also holds after an error in a node of a different stream.
    """

    def run_backward(*args, **kwargs):
        machine = machines.current()
        if machine is None:
            return run(*args, **kwargs)
        stream = machine.stream
        try:
            return run(*args, **kwargs)
        finally:
            machine.stream = stream

    return run_backward
