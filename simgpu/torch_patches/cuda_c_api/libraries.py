"""Bindings for the settings of CUDA's libraries (cuBLAS, cuDNN, TunableOp)."""

import torch

from simgpu.errors import NotModelledError
from simgpu.gpus.specs import cublas_workspace_bytes
from simgpu.torch_patches import build
from simgpu.torch_patches.cuda_c_api.base import Bindings


class Libraries(Bindings):
    """Functions that torch.backends.cuda, torch.backends.cudnn, torch.cuda.tunable and torch.cuda.nccl call."""

    def _nccl_version(self):
        major, minor, patch = build.NCCL
        return major << 32 | minor << 16 | patch

    def _nccl_version_suffix(self):
        return b""

    def _get_linalg_preferred_backend(self):
        return self.machine.library_settings.get("linalg", torch._C._LinalgBackend.Default)

    def _set_linalg_preferred_backend(self, backend):
        self.machine.library_settings["linalg"] = backend

    def _cuda_clearCublasWorkspaces(self):
        self.machine.clear_blas_workspaces()

    def _cuda_getCurrentBlasHandle(self):
        """Returns a number that is not a real handle, so it cannot be used in calls."""
        return id(self.machine)

    def _cuda_getCublasWorkspaceSize(self):
        spec, version = self.machine.spec, self.machine.torch_version
        environ = self.machine.blas_environment
        return cublas_workspace_bytes(spec.compute_capability, torch_version=version, environ=environ)

    def _cuda_get_cudnn_benchmark_limit(self):
        return self.machine.library_settings.get("cudnn_benchmark_limit", 10)

    def _cuda_set_cudnn_benchmark_limit(self, limit):
        self.machine.library_settings["cudnn_benchmark_limit"] = limit

    def _cuda_tunableop_is_enabled(self):
        return False

    def _cuda_tunableop_enable(self, value=True):
        if value:
            raise NotModelledError(
                "torch.cuda.tunable.enable() lets PyTorch try several kernels for a matmul and keep the fastest, but "
                "the simulated GPU runs no kernels: leave it disabled"
            )

    def _cuda_tunableop_tuning_is_enabled(self):
        return self.machine.library_settings.get("tuning", True)

    def _cuda_tunableop_tuning_enable(self, value=True):
        self.machine.library_settings["tuning"] = bool(value)

    def _cuda_record_untuned_is_enabled(self):
        return False

    def _cuda_record_untuned_enable(self, value=True):
        if value:
            raise NotModelledError("torch.cuda.tunable.record_untuned_enable() is not modelled by the simulated GPU")

    def _is_flash_attention_available(self):
        return True
