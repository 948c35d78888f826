"""Rules for what CUDA's operators allocate from the caching allocator in addition to their outputs.

PyTorch shows a dispatch mode each operator's outputs. What the operator's CUDA code allocates internally, and in which
order, is a rule in this package. A rule is a function of one `OpCall`, registered for operators by name:

    @rule("native_dropout")
    def mask_first(call):
        output, mask = call.outputs
        call.allocate_outputs(mask, output)

An operator without a rule allocates its outputs in order and nothing else. Each rule names its source (a file of
PyTorch, or a trace of the oracle) and has a test. A file named without its folder is in aten/src/ATen/native, or in a
folder there, such as cuda.
"""

import importlib
import pkgutil

from simgpu.ops.op_call import OpCall, decomposition_of, has_decomposition, rule, rule_for

__all__ = ["OpCall", "decomposition_of", "has_decomposition", "rule", "rule_for"]

for _module in pkgutil.iter_modules(__path__):  # each registers what it holds
    importlib.import_module(f"{__name__}.{_module.name}")
