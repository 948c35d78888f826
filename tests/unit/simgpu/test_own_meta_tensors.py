"""PyTorch's own meta tensors stay what they are while a simulated GPU is on: what a call on them makes is meta too, it
takes no memory, and errors have the same words."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import simgpu


def meta(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


def of_module(make, *given):
    def call():
        with torch.device("meta"):
            module = make()
        return module(*given)

    return call


def backward_of(call):
    def backward():
        x = meta(4, 8, requires_grad=True)
        call(x).sum().backward()
        return x.grad

    return backward


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


def in_autocast():
    with torch.autocast("cuda", torch.bfloat16):
        return meta(4, 4) @ meta(4, 4)


q, x, image = meta(1, 2, 4, 4), meta(4, 8), meta(2, 3, 8, 8)
CALLS = {
    "sdpa": lambda: F.scaled_dot_product_attention(q, q, q),
    "sdpa causal": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    "sdpa mask": lambda: F.scaled_dot_product_attention(q, q, q, meta(4, 4, dtype=torch.bool), 0.5),
    "sdpa grouped": lambda: F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], is_causal=True, enable_gqa=True),
    "attention": of_module(lambda: nn.MultiheadAttention(8, 2), x, x, x),
    "transformer": of_module(lambda: nn.TransformerEncoderLayer(8, 2), x),
    "lstm": of_module(lambda: nn.LSTM(8, 4, 2, dropout=0.5), meta(3, 4, 8)),
    "gru": of_module(lambda: nn.GRU(8, 4, bidirectional=True), meta(3, 4, 8)),
    "dropout": lambda: F.dropout(x, 0.5),
    "batch norm": of_module(lambda: nn.BatchNorm2d(3), image),
    "convolution": of_module(lambda: nn.Conv2d(3, 4, 3, padding=1), image),
    "embedding bag": of_module(lambda: nn.EmbeddingBag(10, 4), meta(3, 4, dtype=torch.long)),
    "cross entropy": lambda: F.cross_entropy(x, meta(4, dtype=torch.long), meta(8), label_smoothing=0.1),
    "ctc": lambda: F.ctc_loss(meta(5, 2, 4), meta(2, 3, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([3, 3])),
    "one hot": lambda: F.one_hot(meta(4, dtype=torch.long), 5),
    "pad": lambda: F.pad(x, (1, 2)),
    "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bicubic"),
    "einsum": lambda: torch.einsum("ij,kj->ik", x, x),
    "block diagonal": lambda: torch.block_diag(x, x),
    "outer": lambda: torch.cartesian_prod(meta(3), meta(4)),
    "like": lambda: [torch.zeros_like(x), torch.randn_like(x), x.new_zeros(3), x.new_tensor(0.0)],
    "window": lambda: torch.stft(meta(64), 16, return_complex=True),
    "tril": lambda: torch.tril_indices(3, 3, device="meta"),
    "arange": lambda: torch.arange(5, device="meta"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="meta"),
    "inverse": lambda: torch.linalg.inv(meta(3, 3)),
    "sort": lambda: x.sort(),
    "unique": lambda: x.unique(),
    "nonzero": lambda: x.nonzero(),
    "mask": lambda: x[x > 0],
    "item": lambda: x[0, 0].item(),
    "bool": lambda: bool(x[0, 0]),
    "list": lambda: x.tolist(),
    "numpy": lambda: x.numpy(),
    "to the host": lambda: x.cpu(),
    "to the host by name": lambda: x.to("cpu"),
    "to a dtype": lambda: x.to(torch.float16),
    "type": lambda: x.type(),
    "repr": lambda: repr(x),
    "device": lambda: (x.device, x.is_cuda, x.is_meta, x.get_device()),
    "address": lambda: x.data_ptr(),
    "storage": lambda: (x.untyped_storage().nbytes(), x.untyped_storage().device),
    "copy": lambda: copy.deepcopy(nn.Parameter(x)),
    "file": lambda: saved(x),
    "autocast": in_autocast,
    "backward": backward_of(lambda x: F.gelu(x) @ x.t()),
    "backward of sdpa": backward_of(lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])),
    "backward of an index": backward_of(lambda x: x[1]),
    "backward of a maximum": backward_of(lambda x: x.max(1).values),
    "gradient": lambda: torch.autograd.grad((y := meta(3, requires_grad=True)).prod(), y),
    "jacobian": lambda: torch.func.jacrev(lambda y: y.sin())(meta(3)),
    "checkpoint": backward_of(lambda x: checkpoint(F.relu, x, use_reentrant=False)),
    "optimizer": lambda: torch.optim.AdamW([nn.Parameter(x)]).step(),
}


def told(call):
    """What it gives: tensors as where they are, their shape, strides and dtype; an error as its first line."""
    try:
        result = call()
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return tree_map(
        lambda one: (
            (one.device, one.shape, one.stride(), one.dtype, one.requires_grad, type(one))
            if isinstance(one, torch.Tensor)
            else one
        ),
        result,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_them(name):
    wanted = told(CALLS[name])
    with simgpu.simulated_gpu("H100"):
        assert told(CALLS[name]) == wanted
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0


def test_between_calls_on_simulated_tensors():
    with simgpu.simulated_gpu("H100"):
        on_gpu = torch.randn(1, 2, 4, 4, device="cuda", dtype=torch.float16)
        for _ in range(2):
            assert F.scaled_dot_product_attention(q, q, q, is_causal=True).is_meta
            assert F.scaled_dot_product_attention(on_gpu, on_gpu, on_gpu, is_causal=True).is_cuda
