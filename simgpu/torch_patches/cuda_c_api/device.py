"""Bindings for the device, its streams and libraries' settings, and functions that check the device of tensors."""

import torch

from simgpu.device import streams
from simgpu.device.machine import Machine
from simgpu.errors import NotModelledError
from simgpu.gpus.specs import cublas_workspace_bytes
from simgpu.ops import attention
from simgpu.storage.storage_map import device_of, on_gpu
from simgpu.torch_patches import build
from simgpu.torch_patches.cuda_c_api.base import Bindings, only_device

# Bindings for the device, its streams, and the settings of CUDA's libraries (cuBLAS, TunableOp).

CUDA_DEVICE_TYPE = 1  # c10::DeviceType::CUDA
MODES = {"default": 0, "warn": 1, "error": 2}


class Device(Bindings):
    """Functions of torch.cuda, torch.accelerator and torch.backends about the device, streams and libraries."""

    def _cuda_setDevice(self, index):
        only_device(index)
        self.machine.initialize()

    def _cuda_exchangeDevice(self, index):
        only_device(index)
        self.machine.initialize()
        return self.machine.index if index >= 0 else -1

    # Each name has a function of its own, because torch._dynamo registers one handler for each function.

    def _cuda_maybeExchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _accelerator_exchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _accelerator_maybeExchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _accelerator_setDeviceIndex(self, index):
        self._cuda_setDevice(index)

    def _cuda_hasPrimaryContext(self, index):
        only_device(index)
        return self.machine.has_context

    def _cuda_getCompiledVersion(self):
        major, minor = map(int, build.CUDA.split("."))
        return 1000 * major + 10 * minor

    def _accelerator_getDeviceIndex(self):
        self.machine.initialize()
        return self.machine.index

    def _accelerator_synchronizeDevice(self, index):
        only_device(index)
        self.machine.synchronize()

    def _accelerator_getDeviceCapability(self, index):
        raise RuntimeError("Backend doesn't support getting device capabilities.")

    def _cuda_getCurrentStream(self, index):
        only_device(index)
        self.machine.initialize()
        return self.machine.stream, self.machine.index, CUDA_DEVICE_TYPE

    def _cuda_getCurrentRawStream(self, index):
        only_device(index)
        return self.machine.stream

    def _cuda_getDefaultStream(self, index):
        only_device(index)
        self.machine.initialize()
        return 0, self.machine.index, CUDA_DEVICE_TYPE

    def _cuda_getStreamFromExternal(self, pointer, index):
        only_device(index)
        return pointer, self.machine.index, CUDA_DEVICE_TYPE

    def _cuda_setStream(self, stream_id=0, device_index=0, device_type=CUDA_DEVICE_TYPE):
        self.machine.stream = stream_id

    def _cuda_set_sync_debug_mode(self, mode):
        """Sets the reaction when the host waits implicitly for the device: nothing (0), a warning (1), an error (2)."""
        if mode not in MODES.values():
            raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
        self.machine.sync_debug_mode = int(mode)

    def _accelerator_getStream(self, index):
        only_device(index)
        self.machine.initialize()
        return streams.Stream(stream_id=self.machine.stream)

    def _accelerator_setStream(self, stream):
        if torch.device(stream.device).type != "cuda":
            raise RuntimeError(f"stream's device type {stream.device.type} doesn't match the current accelerator cuda.")
        self.machine.stream = stream.stream_id

    def _nccl_version(self):
        major, minor, patch = build.NCCL
        return major << 32 | minor << 16 | patch

    def _cuda_getCublasWorkspaceSize(self):
        spec, version = self.machine.spec, self.machine.torch_version
        environ = self.machine.blas_environment
        return cublas_workspace_bytes(spec.compute_capability, torch_version=version, environ=environ)

    def _cuda_tunableop_enable(self, value=True):
        if value:
            raise NotModelledError(
                "torch.cuda.tunable.enable() lets PyTorch try several kernels for a matmul and keep the fastest, but "
                "the simulated GPU runs no kernels: leave it disabled"
            )

    def _cuda_record_untuned_enable(self, value=True):
        if value:
            raise NotModelledError("torch.cuda.tunable.record_untuned_enable() is not modelled by the simulated GPU")


# Bindings for functions of torch._C that take tensors and check their device.


class Tensors(Bindings):
    """Functions for grouping, scattering and gathering, and for the choice of attention."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.group = torch._C._group_tensors_by_device_and_dtype

    def _group_tensors_by_device_and_dtype(self, tensor_lists, with_indices=False):
        """Groups tensors by the device that simulated tensors report: the GPU, or the host for those without values."""
        groups = {}
        for (device, dtype), found in self.group(tensor_lists, with_indices).items():
            first = found[0][0][0]
            groups[device if first is None else device_of(first), dtype] = found
        return groups

    def _scatter(self, tensor, devices, chunk_sizes=None, dim=0, side=None):
        """Copies the whole input to the one GPU, on a separate stream, for nn.DataParallel
        (torch/csrc/cuda/comm.cpp).
        """
        if devices != [self.machine.index]:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        with torch.cuda.stream(side[0] if side else None):
            return [tensor.to(self.machine.cuda, non_blocking=True)]

    def _broadcast(self, tensor, devices):
        """Copies the tensor to the one GPU; returns it unchanged if it is there."""
        if set(devices) != {self.machine.index}:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        return [tensor if on_gpu(tensor) else tensor.to(self.machine.cuda, non_blocking=True) for _ in devices]

    def _broadcast_coalesced(self, tensors, devices, buffer_size=10485760):
        return [list(part) for part in zip(*(self._broadcast(tensor, devices) for tensor in tensors), strict=True)]

    def _gather(self, tensors, dim, destination=None):
        """Concatenates the parts, as the gradient of a scattered input is gathered (torch/csrc/cuda/comm.cpp)."""
        shape = list(tensors[0].shape)
        shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
        result = torch.empty(shape, dtype=tensors[0].dtype, device="cpu" if destination == -1 else self.machine.cuda)
        for part, tensor in zip(result.split([tensor.shape[dim] for tensor in tensors], dim), tensors, strict=True):
            part.copy_(tensor, non_blocking=destination != -1)
        return result

    def _can_use_flash_attention(self, params, debug=False):
        return attention.fits(attention.SDPBackend.FLASH_ATTENTION, _call(params), self.machine)

    def _can_use_mem_efficient_attention(self, params, debug=False):
        return attention.fits(attention.SDPBackend.EFFICIENT_ATTENTION, _call(params), self.machine)

    def _can_use_cudnn_attention(self, params, debug=False):
        return attention.fits(attention.SDPBackend.CUDNN_ATTENTION, _call(params), self.machine)


def _call(params) -> attention.Call:
    """Returns the call that an SDPAParams describes."""
    given = params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal
    return attention.Call(*given, params.enable_gqa)
