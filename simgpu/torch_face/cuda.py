"""torch.cuda and torch.accelerator as they are on the simulated GPU.

Most of torch.cuda is Python over functions of `torch._C` that exist in CUDA builds only. Those are supplied here, so
that memory_stats, memory_summary, memory_snapshot and their kin are PyTorch's own code on the simulated allocator.
"""

import sys
import types
import uuid

import torch
import torch.overrides

from simgpu import streams
from simgpu.errors import NotModelledError
from simgpu.machine import Machine
from simgpu.memory.out_of_memory import OutOfMemory
from simgpu.patches import Patches
from simgpu.tensors.residence import on_gpu

CUDA_DEVICE_TYPE = 1  # c10::DeviceType::CUDA


def patch(patches: Patches, machine: Machine) -> None:
    """Puts the faces of `machine` into torch."""
    for name, function in _bindings(machine).items():
        patches.apply(torch._C, name, function)
    for name, value in _names(machine).items():
        patches.apply(torch.cuda, name, value)
    patches.apply(torch.cuda.nvtx, "_nvtx", _marks())
    for name in ("Generator", "Stream", "Event"):
        patches.apply(torch, name, getattr(streams, f"Any{name}"))
    for name in ("Stream", "Event"):
        patches.apply(torch.cuda.streams, name, getattr(streams, name))
    _let_functions_be_seen(patches)


def _bindings(machine: Machine) -> dict:
    """The functions of torch._C that a CUDA build has."""
    allocator, device = machine.allocator, machine.device

    def ignore(*args, **kwargs):
        return None

    def answer(value):
        return lambda *args, **kwargs: value

    def reset_peak(index=0):
        allocator.reset_peak_stats()

    def snapshot(mempool_id=None):
        return allocator.snapshot()

    def record(enabled, context="all", stacks="all", max_entries=sys.maxsize, clear_history=False, *rest, **more):
        allocator.record_history(enabled, max_entries=max_entries, clear_history=clear_history)

    def synchronize(index=0):
        machine.touch()
        allocator.synchronize()
        machine.clock.synchronize()

    def memory_info(index=0):
        machine.touch()
        return device.mem_get_info()

    def current_stream(index=0):
        return machine.stream, 0, CUDA_DEVICE_TYPE

    def raw_alloc(nbytes, stream):
        try:
            return machine.raw_alloc(nbytes, stream)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def set_stream(stream_id=0, device_index=0, device_type=CUDA_DEVICE_TYPE):
        machine.stream = stream_id

    def set_device(index):
        if index != 0:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")

    return {
        "_group_tensors_by_device_and_dtype": _grouped(torch._C._group_tensors_by_device_and_dtype),
        "_cuda_init": ignore,
        "_cuda_isInBadFork": answer(False),
        "_cuda_getDeviceCount": answer(1),
        "_cuda_getDevice": answer(0),
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": answer(0),
        "_cuda_maybeExchangeDevice": answer(0),
        "_cuda_hasPrimaryContext": answer(True),
        "_cuda_isCurrentStreamCapturing": answer(False),
        "_cuda_synchronize": synchronize,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": answer((0, 0, CUDA_DEVICE_TYPE)),
        "_cuda_setStream": set_stream,
        "_cuda_memoryStats": lambda index=0: allocator.stats(),
        "_cuda_resetPeakMemoryStats": reset_peak,
        "_cuda_resetAccumulatedMemoryStats": lambda index=0: allocator.reset_accumulated_stats(),
        "_cuda_emptyCache": allocator.empty_cache,
        "_cuda_setMemoryFraction": lambda fraction, index=0: allocator.set_memory_fraction(fraction),
        "_cuda_getMemoryFraction": lambda index=0: allocator.memory_fraction,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": record,
        "_cuda_isHistoryEnabled": lambda: allocator.recording,
        "_cuda_getAllocatorBackend": answer("native"),
        "_cuda_clearCublasWorkspaces": machine.clear_blas_workspaces,
        "_cuda_getArchFlags": answer(" ".join(f"sm_{cc}" for cc in (75, 80, 86, 90, 100, 120))),
        "_cuda_sleep": ignore,
        "_cuda_ipc_collect": ignore,
        "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": machine.raw_delete,
        "_gather": _gather,
        "_scatter": _scatter,
        "_accelerator_getAccelerator": answer(torch.device("cuda")),
        "_accelerator_isAllocatorInitialized": answer(True),
        "_accelerator_emptyCache": allocator.empty_cache,
        "_accelerator_getDeviceStats": lambda index=0: allocator.stats(),
        "_accelerator_resetAccumulatedStats": lambda index=0: allocator.reset_accumulated_stats(),
        "_accelerator_resetPeakStats": reset_peak,
        "_accelerator_getMemoryInfo": memory_info,
        "_accelerator_getDeviceIndex": answer(0),
        "_accelerator_setDeviceIndex": set_device,
        "_accelerator_exchangeDevice": answer(0),
        "_accelerator_maybeExchangeDevice": answer(0),
        "_accelerator_synchronizeDevice": synchronize,
        "_accelerator_getStream": lambda index=0: streams.Stream(stream_id=machine.stream),
        "_accelerator_setStream": lambda stream: set_stream(stream.stream_id),
    }


def _grouped(group):
    """torch._C._group_tensors_by_device_and_dtype, `group`, with the device that simulated tensors report."""

    def grouped(tensor_lists, with_indices=False):
        groups = {}
        for (device, dtype), found in group(tensor_lists, with_indices).items():
            first = found[0][0][0]
            groups[streams.CUDA if on_gpu(first) else device, dtype] = found
        return groups

    return grouped


def _names(machine: Machine) -> dict:
    """What torch.cuda holds that is made when CUDA is initialised, or would look for a driver."""
    bindings = _bindings(machine)

    class StreamContext:
        """torch.cuda.stream(stream): the stream is current inside."""

        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            if self.stream is not None:
                self.stream.__enter__()

        def __exit__(self, *exception):
            if self.stream is not None:
                self.stream.__exit__(*exception)

    def not_modelled(name):
        def refuse(*args, **kwargs):
            raise NotModelledError(f"torch.cuda.{name} is not modelled by the simulated GPU")

        return type(name, (), {"__new__": refuse})  # a class, since type annotations name these

    runtime = types.SimpleNamespace(
        cudaMemGetInfo=bindings["_accelerator_getMemoryInfo"], cudaError=types.SimpleNamespace(success=0)
    )
    return {
        "_initialized": True,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda callable, **kwargs: callable(),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "_get_device_properties": lambda index: properties(machine.spec),
        "_exchange_device": bindings["_cuda_exchangeDevice"],
        "_maybe_exchange_device": bindings["_cuda_maybeExchangeDevice"],
        "default_generators": (streams.Generator("cuda:0"),),
        "cudart": lambda: runtime,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "current_stream": lambda device=None: streams.Stream(stream_id=machine.stream),
        "default_stream": lambda device=None: streams.Stream(stream_id=0),
        "set_stream": lambda stream: bindings["_cuda_setStream"](stream.stream_id),
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or machine.spec.compute_capability >= (8, 0)
        ),
        **{name: not_modelled(name) for name in ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle")},
    }


def _marks():
    """torch._C._nvtx: marks for NVIDIA's profilers, and what its functions return where none is attached."""
    no_tracking = -2  # NVTX_NO_PUSH_POP_TRACKING
    return types.SimpleNamespace(
        rangePushA=lambda message: no_tracking,
        rangePop=lambda: no_tracking,
        rangeStartA=lambda message: 0,
        rangeEnd=lambda handle: None,
        markA=lambda message: None,
    )


def _scatter(tensor, devices, chunk_sizes=None, dim=0, side=None):
    """torch._C._scatter for the one GPU: nn.DataParallel brings its whole input there, on a stream of its own
    (torch/csrc/cuda/comm.cpp)."""
    if devices != [0]:
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    with torch.cuda.stream(side[0] if side else None):
        return [tensor.to(streams.CUDA, non_blocking=True)]


def _gather(tensors, dim, destination=None):
    """torch._C._gather, by which the gradient of that input goes back (the same file)."""
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    result = torch.empty(shape, dtype=tensors[0].dtype, device="cpu" if destination == -1 else streams.CUDA)
    for part, tensor in zip(result.split([tensor.shape[dim] for tensor in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=destination != -1)
    return result


class _CudaDeviceProperties(types.SimpleNamespace):
    def __repr__(self):
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def properties(spec):
    """torch.cuda.get_device_properties(): the fields of _CudaDeviceProperties that a Spec knows."""
    major, minor = spec.compute_capability
    return _CudaDeviceProperties(
        name=spec.name,
        major=major,
        minor=minor,
        total_memory=spec.total_memory,
        multi_processor_count=spec.multiprocessors,
        max_threads_per_multi_processor=spec.max_threads_per_multiprocessor,
        warp_size=32,
        L2_cache_size=spec.l2_cache,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName=spec.name,
        uuid=uuid.uuid5(uuid.NAMESPACE_DNS, spec.key),
    )


def _is_overridden(argument) -> bool:
    """Whether an argument is of a tensor subclass with a __torch_function__ of its own, and those are not off."""
    if not torch._C._is_torch_function_enabled():
        return False
    function = getattr(type(argument), "__torch_function__", None)
    if function is None or function is torch._C._disabled_torch_function_impl:
        return False
    return type(argument) is not torch.Tensor and getattr(function, "__func__", function) is not (
        torch.Tensor.__torch_function__.__func__
    )


def _let_functions_be_seen(patches: Patches) -> None:
    """Makes PyTorch's functions that are written in Python run with the function mode on.

    Each asks has_torch_function first and, under a mode, is handed to it whole; the mode is off while it runs, and
    the calls inside it (F.scaled_dot_product_attention in F.multi_head_attention_forward, dropout, .device) would go
    unseen. Here they ask for subclasses only, so that their bodies run and their calls are seen one by one.
    torch.Tensor's own methods keep the question, since the mode answers for backward() and repr().
    """
    replacements = {
        "has_torch_function": lambda arguments: any(map(_is_overridden, arguments)),
        "has_torch_function_unary": _is_overridden,
        "has_torch_function_variadic": lambda *arguments: any(map(_is_overridden, arguments)),
    }
    originals = {asked: getattr(torch.overrides, asked) for asked in replacements}
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not name.startswith("torch") or name in ("torch._tensor", "torch._C"):
            continue
        for asked, replacement in replacements.items():
            if vars(module).get(asked) is originals[asked]:
                patches.apply(module, asked, replacement)
