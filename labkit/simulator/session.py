"""Switching a simulated GPU on and off."""

import sys

import torch

from labkit.simulator import autocast, autograd, cuda, dispatcher, metas, nvml
from labkit.simulator.errors import naming_cuda_types
from labkit.simulator.facade import (
    FunctionMode,
    drawn_at_once,
    pin_memory,
    record_stream,
    resized_storage,
    seen_by,
    storage_address,
)
from labkit.simulator.machine import Machine
from labkit.simulator.patches import Patches
from labkit.simulator.specs import Spec
from labkit.simulator.tensors import DispatchMode


def installed_torch() -> tuple[int, int]:
    """Major and minor version of the PyTorch that runs."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def python_frames(limit: int = 64) -> list[dict]:
    """The Python stack at an allocation, innermost first, as torch.cuda.memory._snapshot() holds it."""
    frames, frame = [], sys._getframe(1)
    while frame is not None and len(frames) < limit:
        code = frame.f_code
        if "simulator" not in code.co_filename:
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


class Session:
    """A simulated GPU that is switched on between `start` and `stop`.

    `stop` leaves torch, torch.cuda and pynvml as `start` found them. Tensors that are still alive then have no
    device any more: they become PyTorch's own meta tensors.
    """

    def __init__(self, spec: Spec):
        self.machine = Machine(spec, installed_torch(), frames=python_frames)
        self._patches = Patches()
        self._modes = []

    def start(self) -> None:
        """Makes "cuda" mean this GPU."""
        autograd.prepare()
        metas.prepare()
        self.machine.activate()
        dispatcher.hold(autocast.register)
        try:
            cuda.patch(self._patches, self.machine)
            nvml.patch(self._patches, self.machine)
            autocast.patch(self._patches)
            self._patches.apply(torch.Tensor, "record_stream", record_stream)
            self._patches.apply(torch.Tensor, "pin_memory", pin_memory)
            self._patches.apply(torch.UntypedStorage, "resize_", resized_storage(torch.UntypedStorage.resize_))
            self._patches.apply(torch.UntypedStorage, "data_ptr", storage_address(torch.UntypedStorage.data_ptr))
            run_backward = naming_cuda_types(autograd.letting_go(torch.autograd._engine_run_backward))
            self._patches.apply(torch.autograd, "_engine_run_backward", run_backward)
            dispatch = DispatchMode(self.machine)
            functions = FunctionMode(dispatch)
            push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
            self._patches.apply(
                torch._C._autograd,
                "_push_saved_tensors_default_hooks",
                lambda pack, unpack: push_hooks(seen_by(functions, pack), seen_by(functions, unpack)),
            )
            draw = torch.nn.init._no_grad_trunc_normal_
            self._patches.apply(torch.nn.init, "_no_grad_trunc_normal_", drawn_at_once(functions, draw))
            for mode in (dispatch, functions):
                mode.__enter__()
                self._modes.append(mode)
            autocast.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Puts torch back."""
        while self._modes:
            self._modes.pop().__exit__(None, None, None)
        self._patches.undo()
        autocast.stop()
        dispatcher.let_go()
        self.machine.deactivate()
