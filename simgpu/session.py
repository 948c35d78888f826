"""Switching a simulated GPU on and off."""

import sys

import torch

from labkit.simulator import (  # noqa: F401  (readout registers what it holds)
    attributes,
    autocast,
    autograd,
    cuda,
    dispatcher,
    metas,
    nvml,
    readout,
)
from labkit.simulator.facade import FunctionMode, means_gpu
from labkit.simulator.machine import Machine
from labkit.simulator.patches import Patches
from labkit.simulator.specs import Spec
from labkit.simulator.tensors import DispatchMode
from labkit.simulator.tracebacks import PATHS


def installed_torch() -> tuple[int, int]:
    """Major and minor version of the PyTorch that runs."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def python_frames(limit: int = 64) -> list[dict]:
    """The Python stack at an allocation, innermost first, as torch.cuda.memory._snapshot() holds it."""
    frames, frame = [], sys._getframe(1)
    while frame is not None and len(frames) < limit:
        code = frame.f_code
        if not code.co_filename.startswith(PATHS):
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
        self._default_device = None

    def start(self) -> None:
        """Makes "cuda" mean this GPU."""
        self._default_device = torch.utils._device.CURRENT_DEVICE
        autograd.prepare()
        metas.prepare()
        self.machine.activate()
        dispatcher.hold(autocast.register)
        try:
            cuda.patch(self._patches, self.machine)
            nvml.patch(self._patches, self.machine)
            autocast.patch(self._patches)
            dispatch = DispatchMode(self.machine)
            functions = FunctionMode(dispatch)
            attributes.patch(self._patches, functions)
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
        default = torch.utils._device.CURRENT_DEVICE
        if default != self._default_device and means_gpu(default):
            torch.set_default_device(self._default_device)
        self._patches.undo()
        autocast.stop()
        dispatcher.let_go()
        self.machine.deactivate()
