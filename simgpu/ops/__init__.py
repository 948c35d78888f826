"""Rules for what CUDA's operators allocate from the caching allocator in addition to their outputs.

PyTorch shows a dispatch mode each operator's outputs. What the operator's CUDA code allocates internally, and in which
order, is a rule in this package. A rule is a function of one `OpCall`, registered for operators by name:

    @rule("native_dropout")
    def mask_first(call):
        output, mask = call.outputs
        call.allocate_outputs(mask, output)

An operator without a rule allocates its outputs in order and nothing else. Each rule names its source (a file of
PyTorch, or a trace of the oracle) and has a test.
"""

from simgpu.ops import (  # noqa: F401  (they register their rules)
    attention_scratch,
    batch_norm,
    convolution,
    ctc,
    distances,
    distinct,
    elementwise,
    embedding_bag,
    foreach,
    gemm,
    group_norm,
    grouped_mm,
    indexing,
    losses,
    norms,
    packing,
    reductions,
    refused_calls,
    refused_types,
    resampling,
    rnn,
    sampling,
    searching,
    segments,
    selection,
    softmax,
    sorting,
    transfer,
    triangular,
    windows,
)
from simgpu.ops.op_call import OpCall, decomposition_of, has_decomposition, rule, rule_for

__all__ = ["OpCall", "decomposition_of", "has_decomposition", "rule", "rule_for"]
