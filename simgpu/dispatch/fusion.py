"""Estimates a compiled function's kernels: which operators inductor would fuse, and what each kernel reads and writes.

The operators run as they are written and allocate accordingly; only their time differs. They are collected until a time
is needed, at the latest until the function returns, and then added to the clock in groups (torch/_inductor/scheduler.py
fuses in this way, as far as it can):

- matmuls, convolutions, attention, sorting and so on are library kernels, and stay as they are;
- elementwise operators and reductions that feed each other, with no library kernel between them, are one kernel. It
  reads what comes from outside the group and writes what is read outside, each once;
- a reduction over dims other than the last ones begins a new kernel, because it ends the group's loop.

What only backward needs of a group is recomputed there from what the group has read, if that is not more bytes.
AOTAutograd's min-cut partitioner (torch/_functorch/partitioners.py) decides this over the whole graph, but here each
group decides separately. Each kernel costs the host as much as an operator. Checking guards and compiling cost nothing.
"""

from __future__ import annotations

import torch

from simgpu.clock import achieved_rates, rates
from simgpu.dispatch import costs
from simgpu.storage import storage_map

# Operators that inductor generates kernels for, in addition to those tagged as pointwise or reduction.
_GENERATED = {
    "_to_copy", "copy_", "copy", "cat", "stack", "native_dropout", "bernoulli", "bernoulli_", "rand", "randn",
    "rand_like", "randn_like", "arange", "fill_", "zero_", "fill", "zeros", "ones", "full", "zeros_like", "ones_like",
    "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "embedding", "index", "index_select", "gather",
    "constant_pad_nd", "slice_backward", "select_backward", "slice_scatter", "select_scatter", "tril", "triu",
    "repeat", "roll", "flip", "upsample_nearest2d", "upsample_bilinear2d", "avg_pool2d", "max_pool2d_with_indices",
    "_adaptive_avg_pool2d", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "native_batch_norm", "cudnn_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward", "nll_loss_forward", "nll_loss_backward", "mse_loss",
    "mse_loss_backward", "huber_loss", "smooth_l1_loss", "l1_loss", "masked_fill", "masked_fill_", "addcmul_",
    "addcdiv_", "lerp_", "var", "var_mean", "std", "sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin",
    "max", "min", "linalg_vector_norm", "norm", "_safe_softmax",
}  # fmt: skip


def _is_generated(operator, name: str) -> bool:
    tags = operator.tags
    return torch.Tag.pointwise in tags or torch.Tag.reduction in tags or name in _GENERATED


def _across(operator, args) -> bool:
    """Returns whether it reduces dims other than the last ones, which needs a loop different from its inputs'."""
    if torch.Tag.reduction not in operator.tags or not args or not isinstance(args[0], torch.Tensor):
        return False
    dims = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple, int)) else None
    if dims is None or isinstance(dims, bool):
        return False
    rank = args[0].dim()
    wanted = sorted(dim % rank for dim in ([dims] if isinstance(dims, int) else dims)) if rank else []
    return bool(wanted) and wanted != list(range(rank - len(wanted), rank))


class _Node:
    """One operator: what it reads and writes, as bytes by storage and offset, and its kernels if it is not fused."""

    __slots__ = ("alone", "fused", "group", "kernels", "level", "name", "new", "reads", "twice", "work", "writes")

    def __init__(self, name, fused, alone, kernels, work, reads, writes, new):
        self.name, self.fused, self.alone, self.kernels, self.work = name, fused, alone, kernels, work
        self.reads, self.writes, self.new = reads, writes, new
        self.twice = kernels > 1 and name in costs.READ_TWICE
        self.level = 0
        self.group: list[_Node] = [self]


Bytes = dict[tuple[storage_map.StorageEntry, int], int]
"""Bytes by storage, and by the offset in the storage at which the tensor begins."""


class Call:
    """Holds what one call of a compiled function leaves for its backward: by storage, what it is recomputed from."""

    def __init__(self) -> None:
        self.again: dict[storage_map.StorageEntry, Bytes] = {}


class Region:
    """Collects the operators of a compiled function on `machine`, between its first and its last.

    `call` is shared by the forward and the backward of one call. `graphs` says whether CUDA graphs replay its kernels.
    """

    def __init__(self, machine, call: Call, graphs: bool, backward: bool = False) -> None:
        self.machine, self.call, self.graphs, self.backward = machine, call, graphs, backward
        self._nodes: list[_Node] = []

    def takes(self, operator, args, kwargs, outputs, kernels: int, work: float) -> bool:
        """Collects an operator in place of adding it to the clock; returns False once the function's backward has
        ended.
        """
        if self.over():
            self.end()
            return False
        if kernels:
            self._add(costs.plan_of(operator), operator, args, kwargs, outputs, kernels, work)
        return True

    def over(self) -> bool:
        """Returns whether it belongs to a backward that autograd has ended, normally or by an error."""
        return self.backward and torch._C._current_graph_task_id() == -1

    def end(self, returned: frozenset = frozenset()) -> None:
        """Ends the function, which returns these storages."""
        if self.machine.clock.region is self:
            self.machine.clock.region = None
            self.flush(returned)

    def _add(self, plan: costs.Plan, operator, args, kwargs, outputs, kernels: int, work: float) -> None:
        reads, writes = _touched(plan, args, kwargs)
        new = {}
        for output in outputs if plan.makes_new else ():
            if isinstance(output, torch.Tensor):
                place = storage_map.find(output.untyped_storage())
                if place is not None:
                    new[place, int(output.storage_offset())] = costs.size(output)
        for position in costs.ROWS_READ.get(plan.name, ()):
            place = storage_map.of(args[position]) if position < len(args) else None
            if place is not None:
                reads[place, 0] = sum(new.values())
        fused = _is_generated(operator, plan.name) and not plan.lists
        alone = fused and _across(operator, args)
        self._nodes.append(
            _Node(plan.name, fused, alone, kernels, work, reads, {**writes, **new}, {place for place, _ in new})
        )

    def flush(self, returned: frozenset | None = None) -> None:
        """Adds what was collected to the clock. `returned` holds the storages that the function returns, if it has
        ended.
        """
        nodes, self._nodes = self._nodes, []
        if not nodes:
            return
        self._join(nodes)
        kernels: list[tuple[str, int, float]] = []
        for group in _in_order(nodes):
            kernels += self._cost(group, nodes, returned)
        clock, stream = self.machine.clock, self.machine.stream
        if self.graphs and kernels:
            work = sum(work for _, _, work in kernels)
            rest = (sum(count for _, count, _ in kernels) - 1) * rates.KERNEL
            clock.launch(stream, work + rest, overhead=rates.CALL, name="CUDA graph")
            return
        for name, count, work in kernels:
            clock.launch(stream, work, count, name=name)

    def _join(self, nodes: list[_Node]) -> None:
        """Finds the groups. A kernel that is not part of a group is a step: groups lie before or after it."""
        made: dict[storage_map.StorageEntry, _Node] = {}
        for node in nodes:
            parts = list(node.reads)
            parts += node.writes
            feeding = [made[part[0]] for part in dict.fromkeys(parts) if part[0] in made]
            for other in feeding:
                node.level = max(node.level, other.level + (not other.fused or other.alone or node.alone))
            if node.fused and not node.alone:
                for other in feeding:
                    if other.fused and not other.alone and other.level == node.level and other.group is not node.group:
                        _unite(other, node)
            for place, _ in node.writes:
                made[place] = node

    def _cost(self, group: list[_Node], nodes: list[_Node], returned) -> list[tuple[str, int, float]]:
        """Returns name, kernels and seconds of a group."""
        first = group[0]
        if not first.fused:
            extra = self._anew(first.reads)
            return [(first.name, first.kernels, first.work + _seconds(self.machine, extra))]
        members = set(map(id, group))
        written: Bytes = {}
        reads: Bytes = {}
        inside: set = set()
        for node in group:
            for part, nbytes in node.reads.items():
                if part[0] not in inside:
                    reads[part] = max(nbytes, reads.get(part, 0))
            inside |= node.new
            written.update(node.writes)
        elsewhere = {place for node in nodes if id(node) not in members for place, _ in node.reads}
        outside, nbytes = 0, self._moved(reads)
        for (place, _), size in written.items():
            if place not in inside or place in elsewhere or self._is_kept(place, size, reads, returned):
                outside += size
        more = sum(node.kernels - 1 for node in group)
        name = "+".join(dict.fromkeys(node.name for node in group))
        again = max((sum(node.reads.values()) for node in group if node.twice), default=0)
        return [(name[:60], 1 + min(more, 2), _seconds(self.machine, nbytes + outside + again))]

    def _is_kept(self, place, size: int, reads, returned) -> bool:
        """Returns whether a storage that nothing in this region reads is written, because it is returned or saved for
        backward.
        """
        if place() is None:
            return False  # it was freed
        if returned is None or self.backward or place in returned or not torch.is_grad_enabled():
            return True
        if sum(reads.values()) > size:
            return True
        self.call.again[place] = dict(reads)
        return False

    def _moved(self, reads) -> int:
        """Returns the bytes that a group reads, where some of its inputs are recomputed."""
        found = {}
        for part, nbytes in reads.items():
            found.update(self.call.again.get(part[0], {part: nbytes}) if self.backward else {part: nbytes})
        return sum(found.values())

    def _anew(self, reads) -> int:
        """Returns the bytes moved to recompute what a library kernel needs in memory."""
        if not self.backward:
            return 0
        total = 0
        for (place, _), nbytes in reads.items():
            made_of = self.call.again.pop(place, None)
            if made_of is not None:
                total += nbytes + sum(made_of.values())
        return total


def _seconds(machine, nbytes: int) -> float:
    return nbytes / achieved_rates.bandwidth(machine.spec)


def _unite(first: _Node, second: _Node) -> None:
    group = first.group
    for node in second.group:
        node.group = group
        group.append(node)


def _in_order(nodes: list[_Node]) -> list[list[_Node]]:
    """Returns each group once, as early as its inputs allow."""
    groups = {id(node.group): node.group for node in nodes}
    place = {id(node): at for at, node in enumerate(nodes)}
    for group in groups.values():
        group.sort(key=lambda node: place[id(node)])
    return sorted(groups.values(), key=lambda group: place[id(group[-1])])


def _touched(plan: costs.Plan, args, kwargs) -> tuple[Bytes, Bytes]:
    """Returns the bytes read from and written to existing storages."""
    reads: Bytes = {}
    writes: Bytes = {}
    for position, name, role in plan.roles:
        argument = args[position] if position < len(args) else kwargs.get(name)
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_meta:
                continue
            place = storage_map.find(tensor.untyped_storage())
            if place is None:
                continue
            nbytes, part = costs.size(tensor), (place, int(tensor.storage_offset()))
            if position in plan.written:
                writes[part] = nbytes
                if role == costs.WRITTEN:
                    continue
            reads[part] = max(nbytes, reads.get(part, 0))
    return reads, writes
