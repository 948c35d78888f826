"""What does not run on the stub engine: timing of kernels, and printing of a tensor's values.

A kernel takes no time here, so a choice between kernels by time would be made by chance. The first candidate is taken,
and nothing is allocated for timing. On a GPU a run with a cold cache also holds a buffer of the L2 cache's size, and
copies of a kernel's arguments, while kernels are timed. Triton's compiler releases the script's tensors at once, too.
So a run gives the same bytes with a cold cache and with a warm one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_EQUAL = 1.0  # milliseconds that each candidate is said to take


def metadata_only(torch: ModuleType) -> None:
    """Makes the text of a tensor on the GPU give its size and not its values, which are zeros.

    Inductor prints whole tensors, which would take long. A single value is printed from a copy on the CPU. On the GPU
    PyTorch counts the nonzero ones to choose a format, and this would be taken for a size that depends on values.
    """
    real = torch._tensor_str._tensor_str

    def _tensor_str(self, indent):
        if self.is_cuda:
            if self.numel() > 1:
                return f"..., size={tuple(self.shape)}"
            self = self.cpu()
        return real(self, indent)

    torch._tensor_str._tensor_str = _tensor_str


def _inductor_kernels(module: ModuleType) -> None:
    autotuner = module.CachingAutotuner

    def benchmark_all_configs(self, *args, **kwargs):
        return dict.fromkeys(self.launchers, _EQUAL)

    if hasattr(autotuner, "benchmark_all_configs"):
        autotuner.benchmark_all_configs = benchmark_all_configs

    def coordinate_descent_tuning(self, launcher, *args, **kwargs):
        launcher.config.found_by_coordesc = True  # none of its neighbours is quicker, so they are not compiled
        return launcher

    if hasattr(autotuner, "coordinate_descent_tuning"):
        autotuner.coordinate_descent_tuning = coordinate_descent_tuning


def _inductor_choices(module: ModuleType) -> None:
    selection = module.AlgorithmSelectorCache

    def equal(*args, **kwargs):
        choices = next(one for one in args if isinstance(one, (list, tuple)))
        return dict.fromkeys(choices, _EQUAL)

    for name in ("benchmark_in_current_process", "benchmark_in_sub_process", "benchmark_choices"):
        if hasattr(selection, name):
            setattr(selection, name, classmethod(equal))


def _inductor_benchmarks(module: ModuleType) -> None:
    def equal(self, *args, **kwargs) -> float:
        return _EQUAL

    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__name__.endswith("Benchmarker"):
            for name in ("benchmark", "benchmark_gpu", "benchmark_gpu_with_cuda_graph"):
                if name in vars(kind):
                    setattr(kind, name, equal)


def _triton_autotuner(module: ModuleType) -> None:
    def _bench(self, *args, config, **meta):
        return [_EQUAL] * 3

    module.Autotuner._bench = _bench


def _triton_compiler(module: Any) -> None:
    """Empties Triton's code generators when they are done, because reference cycles keep them until the next garbage
    collection, and with them the global variables of the kernel's module.
    """
    generator, real = module.CodeGenerator, module.ast_to_ttir
    begin, made = generator.__init__, []

    def __init__(self, *args, **kwargs):
        made.append(self)
        begin(self, *args, **kwargs)

    def ast_to_ttir(*args, **kwargs):
        try:
            return real(*args, **kwargs)
        finally:
            for one in made:
                vars(one).clear()
            made.clear()

    generator.__init__, module.ast_to_ttir = __init__, ast_to_ttir


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch._inductor.runtime.triton_heuristics": _inductor_kernels,
    "torch._inductor.select_algorithm": _inductor_choices,
    "torch._inductor.runtime.benchmarking": _inductor_benchmarks,
    "triton.runtime.autotuner": _triton_autotuner,
    "triton.compiler.code_generator": _triton_compiler,
}
"""By module: what is replaced once it has been imported."""
