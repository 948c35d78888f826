"""Backward formulas of autograd that are operators themselves, as CUDA runs them.

Each calls `areAnyTensorSubclassLike`. Under a dispatch mode it therefore allocates a tensor, but on CUDA it writes into
one that it has just allocated. Formulas that are not operators are in `autograd/formulas.py`.
"""

from functools import wraps

import torch
from torch._functorch import eager_transforms

from simgpu.autograd import accumulation
from simgpu.device import machine as machines
from simgpu.handlers import handles
from simgpu.ops import dispatcher
from simgpu.storage import storage_map, values

_aten = torch.ops.aten


@handles(torch._make_dual)  # pyright: ignore[reportAttributeAccessIssue]
def make_dual(mode, function, args, kwargs):
    """Wraps torch._make_dual of torch.autograd.forward_ad, so that the gap in forward mode is reported.

    The forward-mode formulas of softmax, norms and matmuls also call `areAnyTensorSubclassLike`, and this module does
    not correct them. In jvp of torch.func PyTorch's tensors are wrappers, for which CUDA does the same as the
    simulator.
    """
    if eager_transforms.JVP_NESTING == 0 and storage_map.on_gpu(args[0]):
        mode.dispatch.machine.unmodeled.add(
            "torch.autograd.forward_ad",
            "the memory of forward-mode derivatives of softmax, normalization, matmuls, and what linearize() folds",
            lower_bound=False,
        )
    return function(*args, **kwargs)


def cuda_gradient(name: str):
    """Registers CUDA's decomposition of a backward formula, except in the transforms of torch.func.

    In these transforms CUDA does the same as PyTorch does on the simulated GPU.
    """
    operator = getattr(_aten, name).default

    def register(formula):
        @wraps(formula)
        def gradient(*args):
            if accumulation.transformed():
                return dispatcher.decomposed(operator, args, {})
            return formula(*args)

        return dispatcher.cuda_composite(name)(gradient)

    return register


@cuda_gradient("index_select_backward")
def index_select_backward(grad, self_sizes, dim, index):
    """Adds the gradient into new zeros at `index` (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    return grad.new_zeros(self_sizes).index_add_(dim, index, grad)


@cuda_gradient("gather_backward")
def gather_backward(grad, self, dim, index, sparse_grad):
    """Adds the gradient into new zeros at `index`, or returns a sparse one (TensorAdvancedIndexing.cpp)."""
    if sparse_grad:
        return _aten._gather_sparse_backward(self, dim, index, grad)
    return grad.new_zeros(self.shape).scatter_add_(dim, index, grad)


@cuda_gradient("masked_select_backward")
def masked_select_backward(grad, input, mask):
    """Copies the gradient into new zeros at the positions of `mask` (TensorAdvancedIndexing.cpp)."""
    shape = torch.broadcast_shapes(input.shape, mask.shape)
    return torch.zeros_like(input.expand(shape), memory_format=torch.preserve_format).masked_scatter_(mask, grad)


@cuda_gradient("value_selecting_reduction_backward")
def value_selecting_reduction_backward(grad, dim, indices, sizes, keepdim):
    """Scatters the gradient of max, min, sort, topk and similar operators along a dim into new zeros.

    (aten/src/ATen/native/ReduceOps.cpp)
    """
    if not keepdim and len(sizes):
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return torch.zeros(sizes, dtype=grad.dtype, device=grad.device).scatter_(dim, indices, grad)


@cuda_gradient("cummaxmin_backward")
def cummaxmin_backward(grad, input, indices, dim):
    """Adds the gradient into new zeros at `indices` (ReduceOps.cpp)."""
    if input.numel() == 0:
        return input
    return torch.zeros(input.shape, dtype=input.dtype, device=input.device).scatter_add_(dim, indices, grad)


@cuda_gradient("trace_backward")
def trace_backward(grad, sizes):
    """Fills the diagonal of new zeros by an index per diagonal element.

    Up to torch 2.11 the indices continue as if the diagonal reached the last row
    (aten/src/ATen/native/TriangularOps.cpp).
    """
    if len(sizes) != 2:
        raise RuntimeError("expected matrix input")
    flat = torch.zeros(sizes[0] * sizes[1], dtype=grad.dtype, device=grad.device)
    end = min(sizes) * (sizes[1] + 1) if machines.on().torch_version >= (2, 12) else flat.numel()
    indices = torch.arange(0, end, sizes[1] + 1, dtype=torch.int64, device=grad.device)
    return flat.index_fill_(0, indices, grad).view(sizes)


@cuda_gradient("cumprod_backward")
def cumprod_backward(grad, input, dim, output):
    """Decomposes cumprod_backward; CUDA reads whether an element is 0 (ReduceOps.cpp).

    If that is not known, no element is taken to be 0, as in `dispatch/assume_finite`, and this is reported.
    """
    if input.numel() <= 1:
        return grad
    dim = dim % input.dim()
    if input.shape[dim] == 1:
        return grad
    product = output.conj() * grad
    is_zero = input == 0
    found = is_zero.any()
    if values.of(found) is None:
        machines.on().unmodeled.say(
            "sound run of cumprod",
            "simulated tensors have no values: the gradient of cumprod is computed as where no factor is 0, in less "
            "memory",
        )
    elif found.item():
        if torch.is_grad_enabled():  # the formula for second derivatives, which a mode does not change
            return dispatcher.decomposed(_aten.cumprod_backward.default, (grad, input, dim, output), {})
        del found
        result = _cumprod_backward_with_zeros(grad, input.conj(), dim, output.conj(), product, is_zero)
        del is_zero, product
        return result
    del found
    summed = _reversed_cumsum(product, dim)
    result = summed.div(input.conj())
    del summed, is_zero, product
    return result


def _cumprod_backward_with_zeros(grad, input, dim, output, product, is_zero):
    """Returns the gradient if there are zeros: before the first zero of a row, at it, and 0 after it.

    The order is that of the requests in the oracle (torch 2.13).
    """
    result = torch.zeros(input.shape, dtype=grad.dtype, device=grad.device)
    count = is_zero.cumsum(dim)
    mask = count == 0
    later = ~mask
    filled = product.masked_fill(later, 0.0)
    before = _reversed_cumsum(filled, dim).div_(input)
    del filled, later
    result = torch.where(mask, before, result)
    mask = count == 1
    first = _indices(mask.max(dim, keepdim=True))
    at_first = torch.zeros_like(mask).scatter_(dim, first, 1).logical_and_(mask)
    mask &= ~at_first
    others = ~mask
    factors = input.masked_fill(others, 1.0)
    factors = factors.cumprod(dim)
    del others
    wanted = grad.masked_fill(count != 1, 0.0)
    factors.mul_(wanted)
    place = first - 1
    start = torch.gather(output, dim, place.relu_()).masked_fill_(first == 0, 1.0)
    del place
    total = factors.sum(dim, keepdim=True)
    del factors
    result = torch.where(at_first, total.mul_(start), result)
    del start, wanted, total, at_first, first, before, mask, count
    return result


def _indices(found):
    return found.indices


def _reversed_cumsum(tensor, dim):
    reversed_ = tensor.flip(dim)
    summed = reversed_.cumsum(dim)
    result = summed.flip(dim)
    del summed, reversed_
    return result
