"""Replaces torch.cuda and torch.accelerator while a simulated GPU is on."""

import sys
import types
from collections.abc import Sequence
from functools import lru_cache, wraps

import torch
import torch.overrides

from simgpu.device import streams
from simgpu.device.machine import Machine
from simgpu.errors import NotModelledError
from simgpu.patches import Patches
from simgpu.torch_patches import build, cuda_c_api
from simgpu.torch_patches.cuda_c_api.answers import refusal
from simgpu.torch_patches.cuda_c_api.graphs import Graph
from simgpu.torch_patches.cuda_c_api.memory import POOLS, MemPool
from simgpu.torch_patches.properties import CudaDeviceProperties, properties
from simgpu.torch_patches.rebased import rebased


def patch(patches: Patches, machine: Machine) -> None:
    """Puts the functions and classes for `machine` into torch."""
    machine.generator = streams.Generator("cuda:0")
    # a torch.manual_seed before CUDA is initialised also applies to CUDA
    machine.generator.manual_seed(torch.initial_seed())
    functions = cuda_c_api.functions(machine)
    for name, function in functions.items():
        patches.apply(torch._C, name, function, new=build.OF_CUDA)
    for owner, names in _names(machine, functions).items():
        for name, value in names.items():
            patches.apply(owner, name, value, new=build.OF_CUDA if name in _OF_CUDA else "")
    for name in ("Generator", "Stream", "Event"):
        patches.apply(torch, name, getattr(streams, f"Any{name}"))
    set_state = _taking_states_of_the_gpu(torch.random.set_rng_state)
    for owner in (torch, torch.random):
        patches.apply(owner, "set_rng_state", set_state)
    _let_functions_be_seen(patches)


def _taking_states_of_the_gpu(set_state):
    """Wraps set_rng_state (`set_state`), so that it accepts states that come from the simulated GPU."""

    @wraps(set_state)
    def set_rng_state(new_state):
        set_state(streams.on_host(new_state))

    return set_rng_state


# What C++ puts into torch._C and torch.cuda in a build for CUDA, the last when CUDA is initialised.
_OF_CUDA = {"_cudart", "_nvtx", "_CudaDeviceProperties", "_get_device_properties"}


def _names(machine: Machine, functions: dict) -> dict:
    """Returns replacements, by module, for what is made when CUDA is initialised or would look for a driver."""

    initialize = machine.initialize

    def cudart():
        initialize()
        return torch.cuda._cudart

    def call(queued, **kwargs):
        with machine.as_it_is():  # PyTorch queues it until CUDA is initialised
            queued()

    def cudnn_version():
        if machine.count:
            initialize()
        return build.CUDNN

    stream_classes = {name: getattr(streams, name) for name in ("Stream", "Event", "ExternalStream")}
    cuda = {
        "_initialized": True,
        "_cached_device_count": None,  # device_count, as torch.cuda.random imports it, caches its result there
        "is_initialized": lambda: machine.initialized,
        "init": initialize,
        "_lazy_init": initialize,
        "_lazy_call": call,
        "is_available": lambda: machine.count > 0,
        "device_count": lambda: machine.count,
        "_get_device_properties": lambda index: properties(machine.spec),
        "_exchange_device": functions["_cuda_exchangeDevice"],
        "_maybe_exchange_device": functions["_cuda_maybeExchangeDevice"],
        "default_generators": _Generators(machine),
        "_cudart": _Runtime(functions),
        "cudart": cudart,
        # PyTorch makes a tensor to find out, once per process; here once per GPU
        "_check_bf16_tensor_supported": lru_cache(torch.cuda._check_bf16_tensor_supported.__wrapped__),
        "has_magma": True,
        "CUDAGraph": rebased(torch.cuda.CUDAGraph, Graph),
        "MemPool": rebased(torch.cuda.MemPool, MemPool),
        **stream_classes,
    }
    return {
        torch._C: {"_cudart": cuda["_cudart"], "_nvtx": _marks(), "_CudaDeviceProperties": CudaDeviceProperties},
        torch.cuda: cuda,
        torch.cuda.memory: {
            "_lazy_init": initialize,
            "is_initialized": cuda["is_initialized"],
            "MemPool": cuda["MemPool"],
            **{name: functions[name] for name in POOLS},
        },
        torch.cuda.random: {"_lazy_init": initialize, "_lazy_call": call, "device_count": cuda["device_count"]},
        torch.cuda.streams: stream_classes,
        torch.cuda.nvtx: {"_nvtx": _marks()},
        torch.cuda.gds: {"GdsFile": _refused_class("torch.cuda.gds.GdsFile")},
        torch.cuda.green_contexts.GreenContext: {
            name: staticmethod(refusal(f"torch.cuda.green_contexts.GreenContext.{name}", "Use the whole GPU."))
            for name in ("create", "max_workqueue_concurrency")  # torch 2.11 lacks the second
            if name == "create" or hasattr(torch.cuda.green_contexts.GreenContext, name)
        },
        torch.cuda.graphs: {
            "_cuda_isCurrentStreamCapturing": functions["_cuda_isCurrentStreamCapturing"],
            "_graph_pool_handle": functions["_graph_pool_handle"],
            "CUDAGraph": cuda["CUDAGraph"],
        },
        torch.cuda.graphs.graph: {"default_capture_stream": None},
        **{place: {"Graph": _NoGraph} for place in _accelerator_graphs()},
        torch.backends.cuda: {"is_built": lambda: True},
        torch.backends.cuda.cuFFTPlanCache: _fft_plans(machine.library_settings),
        vars(torch.backends.cudnn)["m"]: {
            "version": cudnn_version,
            "is_available": lambda: True,
            "is_acceptable": cudnn_accepts,
            "_init": lambda: True,
        },
        type(torch.backends.cudnn): {
            "benchmark_limit": torch.backends.ContextProp(
                functions["_cuda_get_cudnn_benchmark_limit"], functions["_cuda_set_cudnn_benchmark_limit"]
            )
        },
    }


def _accelerator_graphs() -> list:
    """Returns the modules that hold torch.accelerator.Graph, which torch 2.11 lacks."""
    return [torch.accelerator, torch.accelerator.graphs] if hasattr(torch.accelerator, "graphs") else []


class _Generators(Sequence):
    """torch.cuda.default_generators: one entry per GPU that the process sees, each the one GPU's generator."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __len__(self) -> int:
        return self.machine.count

    def __getitem__(self, index):
        return ((self.machine.generator,) * len(self))[index]


class _Runtime:
    """torch.cuda.cudart(), the CUDA runtime."""

    cudaError = types.SimpleNamespace(success=0)

    def __init__(self, functions: dict) -> None:
        self.cudaMemGetInfo = functions["_accelerator_getMemoryInfo"]

    @staticmethod
    def cudaGetErrorString(error) -> str:
        return "no error" if error == 0 else f"error {int(error)}"

    @staticmethod
    def cudaProfilerStart() -> int:
        """Does nothing, because none of NVIDIA's profilers is attached."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    def __getattr__(self, name):
        raise NotModelledError(f"torch.cuda.cudart().{name} is not modelled by the simulated GPU")


class _NoGraph:
    """torch.accelerator.Graph, which does not exist for CUDA either (torch 2.13)."""

    def __new__(cls, *args, **kwargs):
        raise RuntimeError("Graph is not supported on device type: cuda")


def cudnn_accepts(tensor: torch.Tensor) -> bool:
    """Implements torch.backends.cudnn.is_acceptable() as with cuDNN installed, which a CPU build of PyTorch lacks."""
    enabled = torch._C._get_cudnn_enabled()
    return enabled and tensor.device.type == "cuda" and tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


def _fft_plans(settings: dict) -> dict:
    """Returns the attributes of torch.backends.cuda.cuFFTPlanCache, which holds no plan but remembers its limit."""
    limit = "fft_plans"  # initially 4096 (aten/src/ATen/native/cuda/CuFFTPlanCache.h)

    def set_limit(cache, value):
        settings[limit] = value

    def no_size(cache, value):
        raise RuntimeError(
            ".size is a read-only property showing the number of plans currently in the cache. To change the cache "
            "capacity, set cufft_plan_cache.max_size."
        )

    return {
        "size": property(lambda cache: 0, no_size),
        "max_size": property(lambda cache: settings.get(limit, 4096), set_limit),
        "clear": lambda cache: None,
    }


def _refused_class(name: str) -> type:
    """Returns a class of this name that can be used in annotations but not instantiated."""

    def refuse(cls, *args, **kwargs):
        raise NotModelledError(f"{name} is not modelled by the simulated GPU")

    return type(name.rpartition(".")[2], (), {"__new__": refuse})


def _marks():
    """Returns torch._C._nvtx: marks for NVIDIA's profilers, with the results of its functions if none is attached."""
    no_tracking = -2  # NVTX_NO_PUSH_POP_TRACKING
    return types.SimpleNamespace(
        rangePushA=lambda message: no_tracking,
        rangePop=lambda: no_tracking,
        rangeStartA=lambda message: 0,
        rangeEnd=lambda handle: None,
        markA=lambda message: None,
    )


def _is_overridden(argument) -> bool:
    """Returns whether an argument's tensor subclass has its own __torch_function__, and those are enabled."""
    if not torch._C._is_torch_function_enabled():
        return False
    function = getattr(type(argument), "__torch_function__", None)
    if function is None or function is torch._C._disabled_torch_function_impl:
        return False
    inherited = getattr(function, "__func__", function) is torch.Tensor.__torch_function__.__func__
    return type(argument) is not torch.Tensor and not inherited and torch._C._is_torch_function_enabled()


_ASK_SUBCLASSES = {
    "has_torch_function": lambda arguments: any(map(_is_overridden, arguments)),
    "has_torch_function_unary": _is_overridden,
    "has_torch_function_variadic": lambda *arguments: any(map(_is_overridden, arguments)),
}


def _let_functions_be_seen(patches: Patches) -> None:
    """Makes PyTorch's functions that are written in Python run with the function mode on.

    Each calls has_torch_function first and, under a mode, is passed to it as a whole. The mode is off while it runs, so
    the calls inside it would not be seen (F.scaled_dot_product_attention in F.multi_head_attention_forward, dropout,
    .device). Here they check for subclasses only, so that their bodies run and their calls are seen one by one.
    torch.Tensor's own methods keep the check, because the mode handles backward() and repr().
    """
    originals = {asked: getattr(torch.overrides, asked) for asked in _ASK_SUBCLASSES}
    for name, module in list(sys.modules.items()):  # under the names they have here, since there are thousands
        if not name.startswith("torch") or name in ("torch._tensor", "torch._C"):
            continue
        has = getattr(module, "__dict__", {})
        for asked, original in originals.items():
            if asked in has and has[asked] is original:
                patches.apply(module, asked, _ASK_SUBCLASSES[asked])
