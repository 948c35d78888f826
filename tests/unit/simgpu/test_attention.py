"""Which attention CUDA chooses on each GPU, and how `sdpa_kernel` and the switches change it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import labkit
from simgpu.device import machine
from simgpu.ops import attention

MATH, FLASH, EFFICIENT, CUDNN = (
    SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION,
)  # fmt: skip
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# The oracle's answers (torch 2.13.0), which the snippets of rules/attention repeat at random for the A100 and H100.
CHOICES = [
    # case, T4, A100 (and L4), H100, B200
    ({"dtype": torch.bfloat16}, MATH, FLASH, CUDNN, CUDNN),
    ({"dtype": torch.float16}, EFFICIENT, FLASH, CUDNN, CUDNN),
    ({"dtype": torch.float32}, EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    ({"dtype": torch.float64}, MATH, MATH, MATH, MATH),
    ({"dtype": torch.float16, "mask": torch.bool}, EFFICIENT, EFFICIENT, CUDNN, CUDNN),
    ({"dtype": torch.float16, "mask": torch.float16, "mask_grad": True}, EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    ({"dtype": torch.float16, "dropout": 0.125}, EFFICIENT, FLASH, CUDNN, CUDNN),
    ({"dtype": torch.float16, "size": 36}, MATH, FLASH, FLASH, FLASH),
    ({"dtype": torch.float16, "size": 192}, EFFICIENT, FLASH, CUDNN, FLASH),
    ({"dtype": torch.float16, "size": 512}, EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    ({"dtype": torch.float16, "size": 192, "value_size": 128}, EFFICIENT, EFFICIENT, CUDNN, CUDNN),
    ({"dtype": torch.float16, "keys": 100, "causal": True}, EFFICIENT, EFFICIENT, CUDNN, CUDNN),
    ({"dtype": torch.float32, "size": 33}, EFFICIENT, MATH, MATH, MATH),
]


def inputs(dtype=torch.float16, size=64, value_size=None, length=512, keys=None, mask=None, mask_grad=False, **rest):
    options = {"dtype": dtype, "device": "cuda", "requires_grad": True}
    query = torch.zeros(2, 8, length, size, **options)
    key = torch.zeros(2, 8, keys or length, size, **options)
    value = torch.zeros(2, 8, keys or length, value_size or size, **options)
    if mask is not None:
        mask = torch.zeros(2, 1, length, keys or length, dtype=mask, device="cuda", requires_grad=mask_grad)
    return query, key, value, mask


def chosen(dropout=0.0, causal=False, **case):
    with torch._C.DisableTorchFunction():
        return attention.choose(attention.Call(*inputs(**case), dropout, causal, False), machine.current())


@pytest.mark.skipif(VERSION != (2, 13), reason="the oracle's answers are those of torch 2.13")
@pytest.mark.parametrize("case, t4, a100, h100, b200", CHOICES)
def test_choice(case, t4, a100, h100, b200):
    for gpu, expected in {"T4": t4, "A100-80GB": a100, "L4": a100, "H100": h100, "B200": b200}.items():
        with labkit.simulated_gpu(gpu):
            assert chosen_on_current(case) == expected, gpu


def chosen_on_current(case):
    query, key, value, mask = inputs(**case)
    number = torch._fused_sdp_choice(query, key, value, mask, case.get("dropout", 0.0), case.get("causal", False))
    return SDPBackend(number)


def test_training_on_gpus_with_little_shared_memory():
    """sm86, sm89: flash attention's backward fits no head between 192 and 224, and none above with dropout."""
    with labkit.simulated_gpu("L4"):
        case = {"dtype": torch.float16, "size": 224}
        assert chosen_on_current(case) == EFFICIENT
        with torch.no_grad():
            assert chosen_on_current(case) == FLASH


def test_sdpa_kernel_and_switches(monkeypatch):
    with labkit.simulated_gpu("H100"):
        case = {"dtype": torch.bfloat16}
        for backend in (MATH, FLASH, EFFICIENT, CUDNN):
            with sdpa_kernel(backend):
                assert chosen_on_current(case) == backend
        with sdpa_kernel([EFFICIENT, FLASH], set_priority=True):
            assert chosen_on_current(case) == EFFICIENT
        monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
        assert chosen_on_current(case) == FLASH


def test_nothing_fits():
    with (
        labkit.simulated_gpu("A100-80GB"),
        sdpa_kernel(FLASH),
        pytest.raises(RuntimeError, match=r"No available kernel. Aborting execution."),
    ):
        query, key, value, _ = inputs(dtype=torch.float32)
        F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mask": torch.bool, "is_causal": True}, "Explicit attn_mask should not be set when is_causal=True"),
        ({"mask": torch.float64}, "Expected attn_mask dtype to be bool or float or to match query dtype"),
    ],
)
def test_what_pytorch_refuses(options, message):
    causal = options.pop("is_causal", False)
    with labkit.simulated_gpu("A100-80GB"), pytest.raises(RuntimeError, match=message):
        query, key, value, mask = inputs(**options)
        F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)


def test_what_each_backend_keeps_for_backward():
    """FACTS of the kernels: flash a number a row and its random state, memory-efficient rows rounded up to 32, math
    the weights, twice in fp32 where the inputs are half precision (with and without the mask of dropout)."""
    rows = 2 * 8 * 500
    with labkit.simulated_gpu("A100-80GB"):
        kept = {}
        for backend in (FLASH, EFFICIENT):
            query, key, value, _ = inputs(length=500)
            before = torch.cuda.memory_allocated()
            with sdpa_kernel(backend):
                output = F.scaled_dot_product_attention(query, key, value)
            kept[backend] = torch.cuda.memory_allocated() - before - output.nbytes
            del query, key, value, output
    assert kept[FLASH] == -(-rows * 4 // 512) * 512 + 2 * 512
    assert kept[EFFICIENT] == 2 * 8 * 512 * 4


@pytest.mark.parametrize(
    ("grad", "copied"),
    [
        ("torch.ones(2, 256, 8, 64, device='cuda', dtype=torch.bfloat16).transpose(1, 2)", False),
        ("torch.ones(1, 8, 256, 64, device='cuda', dtype=torch.bfloat16).expand(2, 8, 256, 64)", False),
        ("torch.ones(2, 8, 256, 128, device='cuda', dtype=torch.bfloat16)[..., :64]", False),
        ("torch.ones(2, 8, 256, 128, device='cuda', dtype=torch.bfloat16)[..., ::2]", True),
        ("torch.ones(2, 8, 64, 256, device='cuda', dtype=torch.bfloat16).mT", True),
    ],
)
def test_cudnn_copies_a_gradient_whose_last_dim_is_not_dense(grad, copied):
    """Which of them PyTorch's CUDA host code under stub libraries copies on an H100, torch 2.13.0."""
    with labkit.simulated_gpu("H100"):
        q, k, v = (torch.ones(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        output, gradient = F.scaled_dot_product_attention(q, k, v), eval(grad)
        before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        output.backward(gradient)
        taken = torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
    sums = (2 * 8 * 256 * 64 + 2 * 8 * 256) * 4
    assert taken == (3 + copied) * 524_288 + sums


@pytest.mark.filterwarnings("ignore:simulated A100-80GB")
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("tokens", "told"),
    [([[3, 4, 0, 0], [3, 4, 5, 6]], True), ([[0, 0, 3, 4], [3, 4, 5, 6]], False), (None, True)],
)
def test_an_encoder_in_evaluation_keeps_the_padding_and_says_where_cuda_drops_it(values, tokens, told):
    """nn.TransformerEncoder as it is by default, with a padding mask: on the right, on the left, or not known."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    with labkit.simulated_gpu("A100-80GB", values=values) as gpu, torch.no_grad():
        encoder.cuda()
        padded = torch.randn(2, 4, device="cuda") < 9 if tokens is None else torch.tensor(tokens, device="cuda") == 0
        assert encoder(torch.zeros(2, 4, 64, device="cuda"), src_key_padding_mask=padded).shape == (2, 4, 64)
        if not (values and tokens is None):  # then every token is padding, and CUDA refuses
            assert ("nn.TransformerEncoder (that CUDA drops the padding" in str(gpu.unmodeled)) == told
