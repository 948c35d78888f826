"""Operators that only the CPU has, which CUDA refuses although meta tensors would accept them.

A build without CUDA does not show which these are. They are the aten overloads for which PyTorch 2.13's CUDA build has
a CPU kernel and no CUDA kernel (`_dispatch_has_computed_kernel_for_dispatch_key`, read with the oracle).
"""

_NAMES = """
    _add_relu.Scalar _add_relu.Tensor _add_relu.out _add_relu_.Scalar _add_relu_.Tensor
    _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight
    _functional_assert_async.msg _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward _spdiags
    _upsample_lanczos2d_aa.out _upsample_lanczos2d_aa_backward.grad_input _weight_int4pack_mm_for_cpu
    histogram.bin_ct histogram.bin_ct_out histogram.bins_tensor histogram.bins_tensor_out mkldnn_rnn_layer
    mkldnn_rnn_layer_backward narrow_copy.out quantize_per_tensor.tensors slow_conv3d_forward slow_conv3d_forward.output
    to_mkldnn
"""
# Operators that PyTorch decomposes into an operator without a CUDA kernel.
_CALLING = {
    "_upsample_lanczos2d_aa": "_upsample_lanczos2d_aa.out",
    "_upsample_lanczos2d_aa_backward": "_upsample_lanczos2d_aa_backward.grad_input",
}
_MISSING = {f"aten::{name}": f"aten::{name}" for name in _NAMES.split()}
_MISSING |= {f"aten::{name}": f"aten::{called}" for name, called in _CALLING.items()}


def missing(operator) -> str | None:
    """Returns the name of the overload without a CUDA kernel because of which CUDA cannot run `operator`, or None."""
    return _MISSING.get(operator.name())


def error(name: str) -> NotImplementedError:
    """Returns PyTorch's error for an overload without a CUDA kernel, with only the first entry of its list of
    backends.
    """
    return NotImplementedError(
        f"Could not run '{name}' with arguments from the 'CUDA' backend. This could be because the operator doesn't "
        "exist for this backend, or was omitted during the selective/custom build process (if using custom build). If "
        "you are a Facebook employee using PyTorch on mobile, please visit https://fburl.com/ptmfixes for possible "
        f"resolutions. '{name}' is only available for these backends: [CPU, ...]."
    )
