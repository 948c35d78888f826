"""Bindings for functions of torch._C that take tensors and check their device."""

import torch

from simgpu.device.machine import Machine
from simgpu.ops import sdpa
from simgpu.storage.storage_map import device_of, on_gpu
from simgpu.torch_patches.cuda_c_api.base import Bindings


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
        return sdpa.fits(sdpa.SDPBackend.FLASH_ATTENTION, _call(params), self.machine)

    def _can_use_mem_efficient_attention(self, params, debug=False):
        return sdpa.fits(sdpa.SDPBackend.EFFICIENT_ATTENTION, _call(params), self.machine)

    def _can_use_cudnn_attention(self, params, debug=False):
        return sdpa.fits(sdpa.SDPBackend.CUDNN_ATTENTION, _call(params), self.machine)


def _call(params) -> sdpa.Call:
    """Returns the call that an SDPAParams describes."""
    given = params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal
    return sdpa.Call(*given, params.enable_gqa)
