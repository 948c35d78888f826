"""Answers operators of torch.distributed that reach the dispatcher (namespace c10d), by the group's methods.

Python calls a group's methods, and so does most C++ code. The dispatcher receives what C++ calls on a group that Python
cannot answer in every version (torch/csrc/distributed/c10d/Ops.cpp).
"""

import torch

from simgpu.op_info.per_op_cache import per_op_cache

# The group's method, and its arguments by their names in the operator's schema.
_METHODS = {
    "allreduce_": ("allreduce", "tensors", "reduce_op"),
    "allreduce_coalesced_": ("allreduce_coalesced", "tensors", "reduce_op"),
    "broadcast_": ("broadcast", "tensors"),
    "allgather_": ("allgather", "output_tensors", "input_tensors"),
    "_allgather_base_": ("all_gather_single", "output_tensor", "input_tensor"),
    "allgather_coalesced_": ("allgather_coalesced", "output_lists", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather_single_coalesced", "outputs", "inputs"),
    "reduce_scatter_": ("reduce_scatter", "output_tensors", "input_tensors", "reduce_op"),
    "_reduce_scatter_base_": ("reduce_scatter_single", "output_tensor", "input_tensor", "reduce_op"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_single_coalesced", "outputs", "inputs", "reduce_op"),
    "reduce_": ("reduce", "tensors", "root_rank", "reduce_op"),
    "gather_": ("gather", "output_tensors", "input_tensors", "root_rank"),
    "scatter_": ("scatter", "output_tensors", "input_tensors", "root_rank"),
    "alltoall_": ("alltoall", "output_tensors", "input_tensors"),
    "alltoall_base_": ("all_to_all_single", "output", "input", "output_split_sizes", "input_split_sizes"),
    "send": ("send", "tensors", "dst", "tag"),
    "recv_": ("recv", "tensors", "src", "tag"),
    "recv_any_source_": ("recv_anysource", "tensors", "tag"),
    "barrier": ("barrier",),
}


@per_op_cache
def _names(operator) -> list[str]:
    return [argument.name for argument in operator._schema.arguments]


def group_of(arguments):
    """Returns the process group among an operator's arguments, or None."""
    for one in arguments:
        if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type()):
            return torch.distributed.ProcessGroup.unbox(one)
    return None


def is_rank(group) -> bool:
    """Returns whether a process group is a RankGroup (group.py)."""
    return getattr(group, "is_simulated_rank", False)


def run(group, operator, args, kwargs):
    """Returns the operator's results after `group` has answered: the tensors that it wrote, and a finished work."""
    given = {**dict(zip(_names(operator), args, strict=False)), **kwargs}
    method, *names = _METHODS[operator._schema.name.removeprefix("c10d::")]
    getattr(group, method)(*(_plain(given[name]) for name in names))
    future = torch.futures.Future()
    future.set_result(None)
    work = torch._C._distributed_c10d._create_work_from_future(future).boxed()  # pyright: ignore[reportAttributeAccessIssue]
    results = [given[one] for one in names[:1]] if len(operator._schema.returns) > 1 else []
    return (*results, work) if results else work


def _plain(value):
    if isinstance(value, torch.ScriptObject) and "ReduceOp" in str(value._type()):
        return torch.distributed.ReduceOp.unbox(value)  # pyright: ignore[reportAttributeAccessIssue]
    return value
