"""Operators that only CUDA has, or whose results it lays out differently, as the CPU computes them."""

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl

# Matmuls with half-precision inputs and fp32 results, which only CUDA has (aten/src/ATen/native/cuda/Blas.cpp).


def _result(call: Call, product: torch.Tensor):
    """Returns the result of a matmul, or copies it into the call's `out` and returns that."""
    return call["out"].copy_(product) if call.operator._overloadname.endswith("out") else product


@cpu_impl("mm.dtype", "mm.dtype_out", "bmm.dtype", "bmm.dtype_out")
def product(call: Call):
    """Returns a matmul, or a batched one, in `out_dtype`."""
    left, right = (one.to(call["out_dtype"]) for one in call["self", "mat2"])
    return _result(call, left @ right)


@cpu_impl("addmm.dtype", "addmm.dtype_out")
def sum_and_product(call: Call):
    """Returns a matrix plus a matmul of two, in `out_dtype`."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "mat1", "mat2"]]
    return _result(call, torch.addmm(*wide, beta=call["beta"], alpha=call["alpha"]))


@cpu_impl("baddbmm.dtype", "baddbmm.dtype_out")
def sum_and_products(call: Call):
    """Returns a batch of matrices plus a batched matmul, in `out_dtype`."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "batch1", "batch2"]]
    return _result(call, torch.baddbmm(*wide, beta=call["beta"], alpha=call["alpha"]))


# Softmax from half precision to fp32 in one kernel, which only CUDA has (aten/src/ATen/native/cuda/SoftMax.cu).


@cpu_impl("_softmax.default", "_log_softmax.default")
def softmax(call: Call):
    """Returns the result, in fp32 if `half_to_float`."""
    tensor, dim, to_single = call["self", "dim", "half_to_float"]
    return call.operator(tensor.float() if to_single else tensor, dim, False)


@cpu_impl("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def softmax_backward(call: Call):
    """Returns the gradient, in the dtype of the input."""
    grad, output, dim = call["grad_output", "output", "dim"]
    return call.operator(grad, output, dim, torch.promote_types(grad.dtype, output.dtype))


# Histograms of integers, which only CUDA computes (aten/src/ATen/native/cuda/SummaryOps.cu).


@cpu_impl("histc.default", "histc.out")
def histogram(call: Call):
    """Returns the histogram; integers are binned with integer arithmetic, floats by the CPU's own operator.

    (_histc_cuda_template)
    """
    given = call["self"]
    if given.dtype.is_floating_point:
        return call.operator(*call.args, **call.kwargs)
    counts = _counts(given.flatten().long(), call["bins"], int(call["min"]), int(call["max"])).to(given.dtype)
    return call["out"].copy_(counts) if call.operator._overloadname == "out" else counts


def _counts(given: torch.Tensor, bins: int, least: int, most: int) -> torch.Tensor:
    """Counts the values in each of `bins` between `least` and `most`, both included; equal limits mean the values'
    range.
    """
    if least == most and given.numel():
        least, most = (int(one) for one in given.aminmax())
    if least == most:
        least, most = least - 1, most + 1
    inside = given[(given >= least) & (given <= most)]
    return ((inside - least) * bins // (most - least)).clamp(max=bins - 1).bincount(minlength=bins)


# Embedding bags, with what CUDA saves about each index and each bag (aten/src/ATen/native/cuda/EmbeddingBag.cu).


@cpu_impl("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call):
    """Returns the bags, the bag of each index, the number of indices per bag, and the indices of the maxima."""
    if not call.outputs[0].numel():
        return [None] * 4  # without offsets the CPU's kernel reads past the end
    names = "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights"
    found = call.operator(*call[names], *call["include_last_offset", "padding_idx"])
    indices, offsets = call["indices", "offsets"]
    bags = offsets[:-1] if call["include_last_offset"] else offsets
    places = torch.arange(indices.numel(), dtype=bags.dtype, device="cpu")
    bag_of_each = torch.searchsorted(bags.contiguous(), places, right=True) - 1
    counted = bag_of_each[indices != call["padding_idx"]]
    sizes = torch.bincount(counted, minlength=offsets.numel())
    return [found[0], bag_of_each, sizes, found[3] if call["mode"] == 2 else None]
