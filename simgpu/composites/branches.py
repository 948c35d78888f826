"""The branches that PyTorch's C++ takes where is_cuda(), for operators that are made of others on a meta tensor."""

import torch
from torch._prims_common import suggest_memory_format

from simgpu import machine as machines
from simgpu.handlers import handles
from simgpu.kernels.launch import made_of_others
from simgpu.tensors import residence, values
from simgpu.tensors.registry import branch, decomposed, simulated


@branch("dropout")
def dropout(input, p, train):
    """aten/src/ATen/native/Dropout.cpp: on CUDA the fused kernel, which keeps a mask of 1 B an element."""
    if not train or not 0 < p < 1 or input.numel() == 0:
        return decomposed(torch.ops.aten.dropout.default, (input, p, train), {})
    return torch.native_dropout(input, p, True)[0]


@handles(torch.dropout)
def transformed_dropout(mode, function, args, kwargs):
    """torch.func's transforms ask for no kernel of autograd's, so the branch is taken before they begin."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    if transformed and simulated((*args, *kwargs.values())):
        return dropout(*args, **kwargs)
    return function(*args, **kwargs)


@branch("linear")
def linear(input, weight, bias=None):
    """aten/src/ATen/native/Linear.cpp: adds a bias that addmm cannot take in place, as it does not under a mode."""
    if bias is None or input.dim() == 2 or (bias.is_contiguous() and input.is_contiguous()):
        return decomposed(torch.ops.aten.linear.default, (input, weight, bias), {})
    return torch.matmul(input, weight.t()).add_(bias)


_MEAN = 1  # at::Reduction


def _smoothed(scores, target, weight, ignore_index, label_smoothing):
    """The same where the targets are known, a mean by weights."""
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


@branch("cross_entropy_loss")
def cross_entropy(input, target, weight=None, reduction=_MEAN, ignore_index=-100, label_smoothing=0.0):
    """aten/src/ATen/native/LossNLL.cpp, cross_entropy_loss_label_smoothing: a weighted mean selects the targets that
    are not ignored, and on meta tensors it fills those that are."""
    if weight is not None and reduction == _MEAN and label_smoothing > 0 and input.shape != target.shape:
        if values.of(target) is not None:
            return _smoothed(input, target, weight, ignore_index, label_smoothing)
        machines.on().left_out.add(
            "cross_entropy with weights and label smoothing",
            "the targets that are not ignored (how many they are only their values tell)",
            lower_bound=False,
        )
    arguments = (input, target, weight, reduction, ignore_index, label_smoothing)
    return decomposed(torch.ops.aten.cross_entropy_loss.default, arguments, {})


def _converts_inside(tensor, dtype) -> bool:
    return tensor.dtype == torch.float16 and dtype == torch.float32


@branch("one_hot")
def one_hot(indices, num_classes=-1):
    """aten/src/ATen/native/Onehot.cpp: zeros that ones are scattered into, where a meta tensor compares with an
    arange."""
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


@branch("softmax.int")
def softmax(tensor, dim, dtype=None):
    """aten/src/ATen/native/SoftMax.cpp: from half precision to single in the one kernel, bfloat16 not."""
    inside = _converts_inside(tensor, dtype)
    return torch._softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)


@branch("log_softmax.int")
def log_softmax(tensor, dim, dtype=None):
    """aten/src/ATen/native/SoftMax.cpp: as softmax."""
    inside = _converts_inside(tensor, dtype)
    return torch._log_softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)


def _cudnn_takes(tensor, weight, bias, mean, variance, training, enabled) -> bool:
    """aten/src/ATen/native/Normalization.cpp, _select_batch_norm_backend"""
    if not enabled or weight is None or bias is None or tensor.dim() < 3 or tensor.numel() >= 2**31 - 1:
        return False
    if torch.bfloat16 in (tensor.dtype, weight.dtype) or (tensor.dtype, weight.dtype) == (torch.float16,) * 2:
        return False
    if (mean is None) != (variance is None) or (mean is None and not training):
        return False
    return tensor.shape[0] <= (880801 if training else 65535)


def _of_no_elements(tensor, weight, bias):
    """The same file, _batch_norm_impl_index: a copy, which the first weight and bias take part in. The statistics are
    single precision's on CUDA, double's on any other device."""
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
    """The same file, check_dims_match_num_input_features: RuntimeError where one has another number of elements than
    the input has channels."""
    given = {"running_mean": mean, "running_var": variance, "weight": weight, "bias": bias}
    for name, one in given.items():
        if one is not None and one.numel() != wanted:
            raise RuntimeError(f"{name} should contain {wanted} elements not {one.numel()}")


@branch("batch_norm")
def batch_norm(tensor, weight, bias, mean, variance, training, momentum, eps, cudnn_enabled):
    """The same file: cuDNN's where it takes the tensor, laid out as it suggests. The space that cuDNN reserves in
    training for the backward pass, and its workspaces, only a GPU can tell: they are not here."""
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


@made_of_others("_batch_norm_with_update.default")
def batch_norm_with_update(tensor, weight, bias, mean, variance, momentum, eps):
    """aten/src/ATen/native/cuda/Normalization.cu, _batch_norm_with_update_cuda: cuDNN's or PyTorch's own, training."""
    given = (tensor, weight, bias, mean, variance)
    if _cudnn_takes(*given, True, torch.backends.cudnn.enabled):
        return torch.ops.aten.cudnn_batch_norm(*given, True, momentum, eps)
    outputs = torch.ops.aten.native_batch_norm(*given, True, momentum, eps)
    return (*outputs, torch.empty(0, dtype=torch.uint8, device=tensor.device))


@made_of_others("batch_norm_backward.default")
def batch_norm_backward(grad, tensor, weight, mean, variance, saved_mean, saved, update, eps, mask, reserve):
    """The same file, _new_batch_norm_backward_cuda: in training by whichever went forward."""
    if _cudnn_takes(tensor, weight, weight, mean, variance, True, torch.backends.cudnn.enabled):
        grad = grad.contiguous(memory_format=suggest_memory_format(tensor))
        given = (tensor, grad, weight, mean, variance, saved_mean, saved, eps, reserve)
        return torch.ops.aten.cudnn_batch_norm_backward(*given)
    given = (grad, tensor, weight, mean, variance, saved_mean, saved, update, eps, mask)
    return torch.ops.aten.native_batch_norm_backward(*given)


@branch("isclose")
def isclose(self, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """aten/src/ATen/native/TensorCompare.cpp: where both are NaN is found in place, as it is not under a mode."""
    if not equal_nan or not self.is_floating_point() or self.dtype != other.dtype or self.shape != other.shape:
        return decomposed(torch.ops.aten.isclose.default, (self, other, rtol, atol, equal_nan), {})
    close = self == other
    close |= self.isnan().__iand__(other.isnan())
    if rtol == 0 and atol == 0:
        return close
    scaled = rtol * other
    size = scaled.abs()
    allowed = atol + size
    del size, scaled  # C++ holds the parts of an expression to its end
    difference = self - other
    error = difference.abs()
    del difference
    close |= error.isfinite().__iand__(error <= allowed)
    return close


@branch("tensor_split.tensor_indices_or_sections")
def tensor_split(self, tensor_indices_or_sections, dim=0):
    """aten/src/ATen/native/TensorShape.cpp: the places are read on the host."""
    if residence.device_of(tensor_indices_or_sections).type != "cpu":
        where = residence.device_of(tensor_indices_or_sections)
        raise RuntimeError(f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {where}")
    name = torch.ops.aten.tensor_split.tensor_indices_or_sections
    return decomposed(name, (self, tensor_indices_or_sections, dim), {})
