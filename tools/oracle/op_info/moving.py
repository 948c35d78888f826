"""Moves a sample from the host to "cuda" as it lies there, and says what a tensor is in one line."""

from __future__ import annotations

from collections.abc import Iterator

import torch

LETTERS = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
}  # fmt: skip


def to_cuda(value, moved: dict | None = None):
    """The same value with its tensors on "cuda", strides and gaps included; a tensor that is there twice stays one.

    Their values are all 0, as which the oracle reads whatever is on the GPU: so both sides decide alike.
    """
    moved = {} if moved is None else moved
    if isinstance(value, torch.Tensor):
        if id(value) not in moved:
            moved[id(value)] = _moved(value)
        return moved[id(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_cuda(one, moved) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_cuda(one, moved) for one in value)
    if isinstance(value, dict):
        return {key: to_cuda(one, moved) for key, one in value.items()}
    if isinstance(value, torch.device) or value == "cpu":
        return "cuda"
    return value


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    there = tensor.detach()
    if tensor.layout is torch.strided and not _is_dense(tensor):
        base = torch.empty(0, dtype=tensor.dtype).set_(there.untyped_storage())
        there = torch.zeros_like(base).to("cuda").as_strided(there.shape, there.stride(), there.storage_offset())
    elif tensor.layout is torch.strided and not tensor.is_quantized:
        there = torch.zeros_like(there).to("cuda")
    else:
        there = there.to("cuda")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(there, tensor.requires_grad)
    return there.requires_grad_(tensor.requires_grad)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_quantized or torch.ops.aten.is_non_overlapping_and_dense.default(tensor)


def tensors_in(value) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)


def described(value) -> str:
    """A tensor's dtype, shape, strides, "g" if it wants a gradient, and device; of anything else its type."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return f"{value.layout}{list(value.shape)}"
        kind = LETTERS.get(value.dtype, str(value.dtype))
        shape, stride = (",".join(map(str, numbers)) for numbers in (value.shape, value.stride()))
        return f"{kind}[{shape}]({stride}){'g' if value.requires_grad else ''}@{value.device}"
    if isinstance(value, (list, tuple)):
        return f"({' '.join(map(described, value))})"
    if isinstance(value, dict):
        return f"{{{' '.join(f'{key}:{described(one)}' for key, one in value.items())}}}"
    return type(value).__name__


def text_of(value) -> str:
    """What a sample on the host is, numbers included: the same text, the same sample, but for the tensors' values."""
    if isinstance(value, torch.Tensor):
        return described(value)
    if isinstance(value, (list, tuple)):
        return f"({' '.join(map(text_of, value))})"
    if isinstance(value, dict):
        return f"{{{' '.join(f'{key}:{text_of(one)}' for key, one in value.items())}}}"
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device)):
        return str(value)
    return type(value).__name__
