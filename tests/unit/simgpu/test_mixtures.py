"""Tensors on different devices, and of different dtypes, refused in CUDA's words (as the oracle has them)."""

import pytest
import torch
import torch.nn.functional as F

import labkit

SAME = "Expected all tensors to be on the same device, but "
TWO = SAME + "found at least two devices, cuda:0 and cpu!"


def named(argument, device, others, wrapper):
    return (
        f"{SAME}got {argument} is on {device}, different from other tensors on {others} (when checking argument in "
        f"method wrapper_CUDA_{wrapper})"
    )


def zeros(*shape, device="cuda", dtype=torch.float32):
    return torch.zeros(*shape, device=device, dtype=dtype)


def on_cpu(*shape, dtype=torch.float32):
    return zeros(*shape, device="cpu", dtype=dtype)


CASES = {
    "add": (lambda: zeros(3) + on_cpu(3), TWO),
    "add_": (lambda: on_cpu(3).add_(zeros(3)), TWO),
    "mse_loss": (lambda: F.mse_loss(zeros(3), on_cpu(3)), TWO),
    "foreach": (lambda: torch._foreach_add([zeros(2)], [on_cpu(2)]), TWO),
    "mm": (lambda: zeros(2, 3) @ on_cpu(3, 3), named("mat2", "cpu", "cuda:0", "mm")),
    "mm on the CPU": (lambda: on_cpu(2, 3) @ zeros(3, 3), named("mat2", "cuda:0", "cpu", "mm")),
    "mv": (lambda: zeros(2, 3) @ on_cpu(3), named("mat", "cuda:0", "cpu", "addmv_")),
    "dot": (lambda: zeros(3) @ on_cpu(3), named("tensor", "cpu", "cuda:0", "_dot")),
    "linear": (lambda: F.linear(on_cpu(2, 3), zeros(4, 3), zeros(4)), named("mat1", "cpu", "cuda:0", "addmm")),
    "bmm": (lambda: torch.bmm(on_cpu(2, 3, 3), zeros(2, 3, 3)), named("mat2", "cuda:0", "cpu", "bmm")),
    "cat": (lambda: torch.cat([on_cpu(3), zeros(3)]), named("tensors", "cuda:0", "cpu", "cat")),
    "stack": (lambda: torch.stack([zeros(3), on_cpu(3)]), named("tensors", "cpu", "cuda:0", "cat")),
    "embedding": (
        lambda: F.embedding(on_cpu(3, dtype=torch.int64), zeros(5, 3)),
        named("index", "cpu", "cuda:0", "_index_select"),
    ),
    "layer_norm": (
        lambda: F.layer_norm(zeros(3, 4), (4,), on_cpu(4)),
        named("weight", "cpu", "cuda:0", "_native_layer_norm"),
    ),
    "cross_entropy": (
        lambda: F.cross_entropy(zeros(3, 4), on_cpu(3, dtype=torch.int64)),
        named("target", "cpu", "cuda:0", "nll_loss_forward"),
    ),
    "gather": (
        lambda: zeros(3, 3).gather(0, on_cpu(2, 3, dtype=torch.int64)),
        named("index", "cpu", "cuda:0", "gather"),
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(zeros(1, 2, 3, 8), on_cpu(1, 2, 3, 8), zeros(1, 2, 3, 8)),
        "Expected query, key, and value to have the same device type, but got query.device: cuda:0 key.device: cpu "
        "and value.device: cuda:0 instead.",
    ),
    "index": (
        lambda: on_cpu(3)[zeros(2, dtype=torch.int64)],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "masked_fill": (
        lambda: zeros(3).masked_fill(on_cpu(3) > 0, 0.0),
        "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
    ),
    "conv2d": (
        lambda: F.conv2d(zeros(1, 2, 4, 4), on_cpu(3, 2, 3, 3)),
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    ),
    "conv2d, half": (
        lambda: F.conv2d(zeros(1, 2, 4, 4, dtype=torch.half), zeros(3, 2, 3, 3)),
        "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
    "conv2d, channels": (
        lambda: F.conv2d(zeros(1, 3, 4, 4), zeros(3, 2, 3, 3)),
        "Given groups=1, weight of size [3, 2, 3, 3], expected input[1, 3, 4, 4] to have 2 channels, but got 3 "
        "channels instead",
    ),
    "conv2d, size": (
        lambda: F.conv2d(zeros(1, 2, 2, 2), zeros(3, 2, 3, 3)),
        "Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel size can't be greater than "
        "actual input size",
    ),
    "mm, dtypes": (
        lambda: zeros(3, 3, dtype=torch.half) @ zeros(3, 3),
        "expected mat1 and mat2 to have the same dtype, but got: c10::Half != float",
    ),
    "bmm, dtypes": (
        lambda: torch.bmm(zeros(3, 3, 3, dtype=torch.half), zeros(3, 3, 3)),
        "expected scalar type Half but found Float",
    ),
    "mm, integers": (
        lambda: zeros(3, 3, dtype=torch.int64) @ zeros(3, 3, dtype=torch.int64),
        "\"addmm_cuda\" not implemented for 'Long'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_words(case):
    run, words = CASES[case]
    with labkit.simulated_gpu("A100-80GB"), pytest.raises(RuntimeError) as raised:
        run()
    assert str(raised.value) == words


def test_scalars_of_the_host_are_taken():
    with labkit.simulated_gpu("A100-80GB"):
        for result in (zeros(3) + on_cpu(()), zeros(3).masked_fill(zeros(3) > 0, on_cpu(()))):
            assert result.device.type == "cuda"


def test_numpy():
    with labkit.simulated_gpu("A100-80GB"), pytest.raises(TypeError, match="can't convert cuda:0 device type tensor"):
        zeros(3).numpy()
