"""Bindings for streams, and for the mode that reports when the host waits."""

import torch

from simgpu.device import streams
from simgpu.torch_patches.cuda_c_api.base import Bindings, only_device

CUDA_DEVICE_TYPE = 1  # c10::DeviceType::CUDA
MODES = {"default": 0, "warn": 1, "error": 2}


class Streams(Bindings):
    """Functions of torch.cuda and torch.accelerator about streams."""

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
