"""Bindings for the settings of CUDA's libraries (cuBLAS, cuDNN, TunableOp)."""

from simgpu.errors import NotModelledError
from simgpu.gpus.specs import cublas_workspace_bytes
from simgpu.torch_patches import build
from simgpu.torch_patches.cuda_c_api.base import Bindings


class Libraries(Bindings):
    """Functions that torch.backends.cuda, torch.backends.cudnn, torch.cuda.tunable and torch.cuda.nccl call."""

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
