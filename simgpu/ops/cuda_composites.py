"""The branches that PyTorch's C++ takes if is_cuda(), for operators that are decomposed on a meta tensor."""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.device import machine as machines
from simgpu.handlers import handles
from simgpu.ops.dispatcher import cuda_composite, decomposed, simulated
from simgpu.ops.op_call import decomposition
from simgpu.storage import storage_map, values


@cuda_composite("dropout")
def dropout(input, p, train):
    """Decomposes dropout into CUDA's fused kernel, which saves a mask of 1 B per element.

    (aten/src/ATen/native/Dropout.cpp)
    """
    if not train or not 0 < p < 1 or input.numel() == 0:
        return decomposed(torch.ops.aten.dropout.default, (input, p, train), {})
    return torch.native_dropout(input, p, True)[0]


@handles(torch.dropout)
def transformed_dropout(mode, function, args, kwargs):
    """Wraps torch.dropout, so that the branch is taken before the transforms of torch.func.

    These transforms do not call the kernel at autograd's key.
    """
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    if transformed and simulated((*args, *kwargs.values())):
        return dropout(*args, **kwargs)
    return function(*args, **kwargs)


@cuda_composite("linear")
def linear(input, weight, bias=None):
    """Decomposes linear; adds a bias separately if addmm cannot fuse it, in place, which a dispatch mode prevents.

    (aten/src/ATen/native/Linear.cpp)
    """
    if bias is None or input.dim() == 2 or (bias.is_contiguous() and input.is_contiguous()):
        return decomposed(torch.ops.aten.linear.default, (input, weight, bias), {})
    return torch.matmul(input, weight.t()).add_(bias)


_MEAN = 1  # at::Reduction


def _smoothed(scores, target, weight, ignore_index, label_smoothing):
    """Returns the weighted mean with label smoothing if the values of the targets are known."""
    dim = 0 if scores.dim() == 1 else 1
    scores = torch.log_softmax(scores, dim, scores.dtype)
    loss = torch.nn.functional.nll_loss(scores, target, weight, ignore_index=ignore_index)
    shape = [1] * scores.dim()
    shape[dim] = weight.shape[0]
    weighted = scores * weight.view(shape)
    summed = weighted.sum(dim)
    smooth = -summed
    del summed, weighted
    ignored = target == ignore_index
    smooth.masked_fill_(ignored, 0.0)
    others = ~ignored
    targets = target.masked_select(others).flatten()
    chosen = weight.gather(0, targets)
    total = chosen.sum()
    whole = smooth.sum()
    mean = whole / total
    del whole, total, chosen, targets, others
    of_all = torch.ops.aten.mul.Scalar(mean, label_smoothing / scores.shape[dim])
    of_targets = torch.ops.aten.mul.Scalar(loss, 1 - label_smoothing)
    result = of_targets + of_all
    del of_targets, of_all, mean, ignored, smooth, loss
    return result


@cuda_composite("cross_entropy_loss")
def cross_entropy(input, target, weight=None, reduction=_MEAN, ignore_index=-100, label_smoothing=0.0):
    """Decomposes cross_entropy; a weighted mean with label smoothing selects the targets that are not ignored.

    On meta tensors PyTorch instead fills those that are ignored (aten/src/ATen/native/LossNLL.cpp,
    cross_entropy_loss_label_smoothing).
    """
    if weight is not None and reduction == _MEAN and label_smoothing > 0 and input.shape != target.shape:
        if values.of(target) is not None:
            return _smoothed(input, target, weight, ignore_index, label_smoothing)
        machines.on().unmodeled.add(
            "cross_entropy with weights and label smoothing",
            "the targets that are not ignored (how many they are only their values tell)",
            lower_bound=False,
        )
    arguments = (input, target, weight, reduction, ignore_index, label_smoothing)
    return decomposed(torch.ops.aten.cross_entropy_loss.default, arguments, {})


def _converts_inside(tensor, dtype) -> bool:
    return tensor.dtype == torch.float16 and dtype == torch.float32


@cuda_composite("one_hot")
def one_hot(indices, num_classes=-1):
    """Decomposes one_hot into zeros and a scatter of ones; a meta tensor would compare with an arange.

    (aten/src/ATen/native/Onehot.cpp)
    """
    if indices.dtype != torch.int64:
        return decomposed(torch.ops.aten.one_hot.default, (indices, num_classes), {})  # the error
    if indices.numel() == 0:
        if num_classes < 1:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return indices.new_empty(*indices.shape, num_classes)
    if num_classes == -1:
        num_classes = _largest(indices) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    return indices.new_zeros(*indices.shape, num_classes).scatter_(-1, indices.unsqueeze(-1), 1)


def _largest(indices) -> int:
    unknown = (
        "one_hot() without num_classes takes it from the largest index, and a simulated tensor has no values: say how "
        "many classes there are"
    )
    return int(values.deciding(indices.max(), "one_hot", unknown).item())


@cuda_composite("softmax.int")
def softmax(tensor, dim, dtype=None):
    """Decomposes softmax: the kernel itself converts float16 to float32, but not bfloat16.

    (aten/src/ATen/native/SoftMax.cpp)
    """
    inside = _converts_inside(tensor, dtype)
    return torch._softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)


@cuda_composite("log_softmax.int")
def log_softmax(tensor, dim, dtype=None):
    """Decomposes log_softmax as softmax (aten/src/ATen/native/SoftMax.cpp)."""
    inside = _converts_inside(tensor, dtype)
    return torch._log_softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)


def _cudnn_takes(tensor, weight, bias, mean, variance, training, enabled) -> bool:
    """Returns whether cuDNN computes this batch norm (Normalization.cpp, _select_batch_norm_backend)."""
    if not enabled or weight is None or bias is None or tensor.dim() < 3 or tensor.numel() >= 2**31 - 1:
        return False
    if torch.bfloat16 in (tensor.dtype, weight.dtype) or (tensor.dtype, weight.dtype) == (torch.float16,) * 2:
        return False
    if (mean is None) != (variance is None) or (mean is None and not training):
        return False
    return tensor.shape[0] <= (880801 if training else 65535)


def _of_no_elements(tensor, weight, bias):
    """Returns the result for an input without elements: a copy, combined with the first weight and bias.

    Here the statistics are fp32 on CUDA and fp64 on any other device (Normalization.cpp, _batch_norm_impl_index).
    """
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    saved = [torch.empty(tensor.shape[1], dtype=dtype, device=tensor.device) for _ in range(2)]
    output = tensor.clone()
    if weight is not None:
        output = output * weight[0]
    if bias is not None:
        output = output + bias[0]
    del saved
    return output


def _check_features(wanted: int, mean, variance, weight, bias) -> None:
    """Raises RuntimeError if an argument does not have one element per input channel.

    (Normalization.cpp, check_dims_match_num_input_features)
    """
    given = {"running_mean": mean, "running_var": variance, "weight": weight, "bias": bias}
    for name, one in given.items():
        if one is not None and one.numel() != wanted:
            raise RuntimeError(f"{name} should contain {wanted} elements not {one.numel()}")


@cuda_composite("batch_norm")
def batch_norm(tensor, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled):
    """Decomposes batch_norm: cuDNN's if it accepts the tensor, with the memory format it suggests.

    Two sizes are known only on a GPU and are not modelled: what cuDNN reserves in training for the backward pass, and
    its workspaces (Normalization.cpp).
    """
    given = (tensor, weight, bias, mean, variance)
    if tensor.numel() == 0 and tensor.dim() > 1 and all(one is None or one.numel() for one in given[1:]):
        return _of_no_elements(tensor, weight, bias)
    if not _cudnn_takes(*given, training, cudnn_enabled):
        options = (training, momentum, eps, cudnn_enabled)
        return decomposed(torch.ops.aten.batch_norm.default, (*given, *options), {})
    _check_features(tensor.shape[1], mean, variance, weight, bias)
    tensor = tensor.contiguous(memory_format=suggest_memory_format(tensor))
    bias, mean, variance = (None if one is None else one.contiguous() for one in given[2:])
    return torch.cudnn_batch_norm(tensor, weight.contiguous(), bias, mean, variance, training, momentum, eps)[0]


@decomposition("_batch_norm_with_update.default")
def batch_norm_with_update(tensor, weight, bias, mean, variance, momentum, eps):
    """Decomposes _batch_norm_with_update into the training kernel of cuDNN or of PyTorch.

    (aten/src/ATen/native/cuda/Normalization.cu, _batch_norm_with_update_cuda)
    """
    given = (tensor, weight, bias, mean, variance)
    if _cudnn_takes(*given, True, torch.backends.cudnn.enabled):
        return torch.ops.aten.cudnn_batch_norm(*given, True, momentum, eps)
    outputs = torch.ops.aten.native_batch_norm(*given, True, momentum, eps)
    return (*outputs, torch.empty(0, dtype=torch.uint8, device=tensor.device))


@decomposition("batch_norm_backward.default")
def batch_norm_backward(grad, tensor, weight, mean, variance, saved_mean, saved, update, eps, mask, reserve):
    """Decomposes batch_norm_backward: in training into the backward of the kernel that ran forward.

    (aten/src/ATen/native/cuda/Normalization.cu, _new_batch_norm_backward_cuda)
    """
    if _cudnn_takes(tensor, weight, weight, mean, variance, True, torch.backends.cudnn.enabled):
        grad = grad.contiguous(memory_format=suggest_memory_format(tensor))
        given = (tensor, grad, weight, mean, variance, saved_mean, saved, eps, reserve)
        return torch.ops.aten.cudnn_batch_norm_backward(*given)
    given = (grad, tensor, weight, mean, variance, saved_mean, saved, update, eps, mask)
    return torch.ops.aten.native_batch_norm_backward(*given)


@cuda_composite("isclose")
def isclose(self, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Decomposes isclose; positions with NaN in both are computed in place, which a dispatch mode prevents.

    (aten/src/ATen/native/TensorCompare.cpp)
    """
    if not equal_nan or not self.is_floating_point() or self.dtype != other.dtype or self.shape != other.shape:
        return decomposed(torch.ops.aten.isclose.default, (self, other, rtol, atol, equal_nan), {})
    close = self == other
    close |= self.isnan().__iand__(other.isnan())
    if rtol == 0 and atol == 0:
        return close
    scaled = rtol * other
    size = scaled.abs()
    allowed = atol + size
    del size, scaled  # C++ keeps the parts of an expression until its end
    difference = self - other
    error = difference.abs()
    del difference
    close |= error.isfinite().__iand__(error <= allowed)
    return close


@cuda_composite("tensor_split.tensor_indices_or_sections")
def tensor_split(self, tensor_indices_or_sections, dim=0):
    """Decomposes tensor_split, which reads the split positions on the host.

    Raises RuntimeError if they are not on the CPU (aten/src/ATen/native/TensorShape.cpp).
    """
    if storage_map.device_of(tensor_indices_or_sections).type != "cpu":
        where = storage_map.device_of(tensor_indices_or_sections)
        raise RuntimeError(f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {where}")
    name = torch.ops.aten.tensor_split.tensor_indices_or_sections
    return decomposed(name, (self, tensor_indices_or_sections, dim), {})
