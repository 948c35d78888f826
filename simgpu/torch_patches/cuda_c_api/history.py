"""Bindings for the allocator's history, its snapshots, and out-of-memory observers."""

from simgpu.allocator.event_log import ACTIONS
from simgpu.errors import NotModelledError
from simgpu.torch_patches.cuda_c_api.base import Bindings

STACKS = ("python", "all")
SINCE_2_14 = ", arg8: bool, arg9: bool"  # record_pinned_host_memory, record_cuda


class History(Bindings):
    """Functions behind torch.cuda.memory._record_memory_history and _snapshot."""

    def _cuda_record_memory_history(
        self,
        enabled,
        context,
        stacks,
        max_entries,
        clear_history,
        compile_context=False,
        global_record_annotations=False,
        skip_actions=(),
        *since_2_14,
    ):
        """Checks its arguments as torch/csrc/cuda/memory_snapshot.cpp does. Stacks are Python's, whatever `stacks`
        says.
        """
        newer = self.machine.torch_version >= (2, 14)
        _check_types(enabled, context, stacks, max_entries, skip_actions, since_2_14, newer)
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in (None, "state", "alloc", "all"):
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in STACKS:
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        for action in skip_actions:
            if action not in ACTIONS:
                raise RuntimeError(f"Unknown TraceEntry action: {action}")
        self.machine.allocator.read_settings()
        self.machine.allocator.record_history(
            enabled if _of_the_gpu(*since_2_14) else None,
            context=context,
            max_entries=max_entries,
            clear_history=clear_history,
            skip_actions=skip_actions,
        )

    def _cuda_record_memory_history_legacy(
        self,
        enabled,
        record_context=True,
        trace_alloc_max_entries=1,
        trace_alloc_record_context=False,
        record_context_cpp=False,
        clear_history=False,
        compile_context=False,
        global_record_annotations=False,
        skip_actions=(),
        *since_2_14,
    ):
        """Implements _record_memory_history(True) or (False): records frames of living blocks, and of events if
        requested.
        """
        self.machine.allocator.record_history(
            "all" if enabled and _of_the_gpu(*since_2_14) else None,
            context=("alloc" if trace_alloc_record_context else "state") if record_context else None,
            max_entries=trace_alloc_max_entries,
            clear_history=clear_history,
            skip_actions=skip_actions,
        )

    def _cuda_memorySnapshot(self, selection=None):
        """Returns a snapshot.

        `selection` is None for everything, or (the two numbers of a pool's id, whether events are included); (0, 0) is
        all pools.
        """
        self.machine.allocator.read_settings()
        if selection is None:
            return self.machine.allocator.snapshot()
        *pool, with_events = selection if len(selection) == 3 else (*selection, True)
        return self.machine.allocator.snapshot(tuple(pool), with_events)

    def _cuda_attach_out_of_memory_observer(self, observer):
        """Registers `observer(device, bytes requested from the device, bytes allowed, bytes free)`, called before the
        error.
        """
        self.machine.allocator.read_settings()
        self.machine.allocator.observers.append(self.machine.allocator_lock.outside(observer))


def _of_the_gpu(record_pinned_host_memory: bool = False, record_cuda: bool = True) -> bool:
    """Returns whether the GPU's allocator is recorded; torch 2.14 has these two arguments.

    Raises NotModelledError if the allocator of pinned memory is to be recorded.
    """
    if record_pinned_host_memory:
        raise NotModelledError(
            "torch.cuda.memory._record_memory_history(record_pinned_host_memory=True) is not modelled: the simulated "
            "GPU does not count pinned memory of the host. Record the GPU's memory alone."
        )
    return record_cuda


def _check_types(enabled, context, stacks, max_entries, skip_actions, since_2_14: tuple, newer: bool) -> None:
    right = (
        all(text is None or isinstance(text, str) for text in (enabled, context))
        and isinstance(stacks, str)
        and isinstance(max_entries, int)
        and max_entries >= 0
        and not isinstance(skip_actions, str)
        and all(isinstance(action, str) for action in skip_actions)
        and len(since_2_14) in (0, 2 * newer)
    )
    if not right:
        raise TypeError(
            "_cuda_record_memory_history(): incompatible function arguments. The following argument types are "
            "supported:\n"
            "    1. (arg0: str | None, arg1: str | None, arg2: str, arg3: typing.SupportsInt | typing.SupportsIndex, "
            f"arg4: bool, arg5: bool, arg6: bool, arg7: collections.abc.Sequence[str]{SINCE_2_14 * newer}) -> None"
        )
