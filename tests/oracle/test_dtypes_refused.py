"""Dtypes that CUDA refuses or treats otherwise: errors and events are PyTorch 2.13's CUDA host code's, under stub
libraries."""

import gzip
import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu
from simgpu.checks import dtypes
from simgpu.recording.trace import LETTERS
from tests.pinned import of_pinned_torch
from tools.oracle import cases
from tools.oracle.dtypes import calls, snippets

KEPT = Path(__file__).parents[1] / "data" / "oracle_dtypes.json.gz"


def ones(*shape, dtype="float32"):
    return torch.ones(shape, device="cuda", dtype=getattr(torch, dtype))


IMAGE = (1, 2, 8, 8)
REFUSED = {
    "Boolean inputs not supported for relu": lambda: F.relu(ones(3, 3, dtype="bool")),
    "\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Long'": lambda: F.max_pool2d(
        ones(*IMAGE, dtype="int64"), 2
    ),
    "\"avg_pool2d_out_cuda_frame\" not implemented for 'Long'": lambda: F.avg_pool2d(ones(*IMAGE, dtype="int64"), 2),
    "\"adaptive_max_pool2d_cuda\" not implemented for 'Long'": lambda: F.adaptive_max_pool2d(
        ones(*IMAGE, dtype="int64"), 2
    ),
    "\"upsample_nearest2d_out_frame\" not implemented for 'Long'": lambda: F.interpolate(
        ones(*IMAGE, dtype="int64"), scale_factor=2
    ),
    "std and var only support floating point and complex dtypes": lambda: ones(4, dtype="int64").std(),
    "\"bitwise_and_cuda\" not implemented for 'Float'": lambda: ones(4) & ones(4),
    "\"bitwise_and_cuda\" not implemented for 'Half'": lambda: ones(4, dtype="int32") & ones(4, dtype="float16"),
    "\"gcd_cuda\" not implemented for 'Float'": lambda: torch.gcd(ones(4), ones(4)),
    "masked_fill only supports boolean masks, but got dtype Float": lambda: ones(4).masked_fill(ones(4), 0.0),
    "masked_fill only supports boolean masks, but got dtype Byte": lambda: ones(4).masked_fill_(
        ones(4, dtype="uint8"), 0.0
    ),
    "Expected object of scalar type Float but got scalar type Double for second argument": lambda: torch.complex(
        ones(4), ones(4, dtype="float64")
    ),
    "Expected object of scalar type Double but got scalar type Float for second argument": lambda: torch.polar(
        ones(4, dtype="float64"), ones(4)
    ),
    "Expected both inputs to be Half, Float or Double tensors but got BFloat16 and BFloat16": lambda: torch.complex(
        ones(4, dtype="bfloat16"), ones(4, dtype="bfloat16")
    ),
    "Found dtype Half but expected Float": lambda: torch.linalg.cross(ones(4, 3), ones(4, 3, dtype="float16")),
    "\"embedding_renorm_cuda_\" not implemented for 'Long'": lambda: torch.embedding_renorm_(
        ones(5, 3, dtype="int64"), ones(2, dtype="int64"), 1.0, 2.0
    ),
    "\"nll_loss_forward_no_reduce_cuda_kernel\" not implemented for 'Int'": lambda: F.nll_loss(
        ones(5, 3, dtype="int32"), ones(5, dtype="int64"), reduction="none"
    ),
    "\"cumsum_cuda\" not implemented for 'Bool'": lambda: torch.cumsum(
        ones(3, dtype="bool"), 0, out=ones(3, dtype="bool")
    ),
    "to - 1 is out of bounds for unsigned char": lambda: torch.randint(
        high=300, size=(3,), dtype=torch.uint8, device="cuda", generator=torch.Generator("cuda")
    ),
    "\"silu_cuda\" not implemented for 'Long'": lambda: F.silu(ones(0, 3, dtype="int64")),
}


FLOAT8, UNSIGNED = "Float8_e4m3fn", "UInt32"
OF_SELDOM = {
    "ufunc_add_CUDA": lambda x: x + x,
    "mul_cuda": lambda x: x * x,
    "abs_cuda": lambda x: x.abs(),
    "clamp_scalar_cuda": lambda x: x.clamp(0, 1),
    "sortKeyValueInplace": lambda x: x.sort(),
    "sort": lambda x: x.new_empty(5000).sort(),
    "rshift_cuda": lambda x: x >> 1,
    "host_softmax": lambda x: x.softmax(0),
    "cumsum_cuda": lambda x: x.cumsum(0, dtype=x.dtype),
    "neg_cuda": lambda x: -x,
}


@pytest.mark.parametrize("kernel", OF_SELDOM)
@pytest.mark.parametrize("dtype", [FLOAT8, UNSIGNED])
def test_dtypes_that_few_kernels_take(kernel, dtype):
    with simgpu.simulated_gpu("H100"), pytest.raises(NotImplementedError) as raised:
        OF_SELDOM[kernel](torch.zeros(3, 4, device="cuda", dtype=getattr(torch, dtype.lower())))
    assert str(raised.value) == f"\"{kernel}\" not implemented for '{dtype}'"


def test_what_takes_these_dtypes():
    with simgpu.simulated_gpu("H100"):
        for dtype in (torch.float8_e4m3fn, torch.uint32):
            x = torch.zeros(16, 16, device="cuda", dtype=dtype)
            made = [x[0], x.float(), x.clone(), torch.cat([x, x]), x.fill_(1), x.to(torch.bfloat16), x == x]
            made += [torch.where(x == x, x, x), torch.stack([x, x]), x.copy_(x), x.t().contiguous()]
            assert all(one.device.type == "cuda" for one in made)
        assert (x * 2.5).dtype == torch.float32
        with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64 types is not supported"):
            torch.where(x == x, x, x.long())


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("gpu", ["T4", "H100"])
def test_refused(text, gpu):
    with simgpu.simulated_gpu(gpu), pytest.raises(RuntimeError) as raised:
        REFUSED[text]()
    assert str(raised.value) == text


def test_nothing_is_taken_from_programs_that_run():
    """Numbers and tensors of several dtypes, which TensorIterator promotes, and results of another dtype."""
    with simgpu.simulated_gpu("H100"):
        assert (ones(4, dtype="int64") & 3).dtype == torch.int64
        assert (ones(4, dtype="bool") | ones(4, dtype="uint8")).dtype == torch.uint8
        assert torch.atan2(ones(4, dtype="int64"), ones(4, dtype="int32")).dtype == torch.float32
        assert ones(4, dtype="int64").sum(dtype=torch.float16).dtype == torch.float16
        assert ones(4, dtype="complex64").cumsum(0).dtype == torch.complex64
        assert F.relu(ones(4, dtype="int8")).dtype == torch.int8
        assert ones(0, dtype="int64").float().std().dtype == torch.float32


@of_pinned_torch
def test_calls_that_the_table_was_not_made_from():
    """Of drawn dtypes: what the oracle runs runs, what it refuses is refused in its words."""
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    assert len(kept) > 1000 and sum(one["answer"] != "ok" for one in kept) > 500
    enabled = torch.backends.cudnn.enabled
    torch._C._set_cudnn_enabled(False)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with simgpu.simulated_gpu("A100-80GB"):
            wrong = [one for one in kept if calls.answer(one["call"]) != one["answer"]]
    finally:
        torch._C._set_cudnn_enabled(enabled)  # pyright: ignore[reportAttributeAccessIssue]
    assert wrong == []


def test_the_overload_with_out_is_checked_as_the_one_without():
    assert dtypes.checks_of(torch.ops.aten.bitwise_xor.Tensor_out) is not None
    with simgpu.simulated_gpu("H100"), pytest.raises(NotImplementedError, match="bitwise_xor_cuda"):
        torch.bitwise_xor(ones(4), ones(4), out=ones(4))


def events(run, gpu="H100"):
    """What `run` does to the allocator, as "a16 f16"; `run` is given a function by which it starts to count."""
    with simgpu.simulated_gpu(gpu):
        found = []

        def start():
            torch.cuda.memory._record_memory_history(clear_history=True, context=None)

        kept = run(start)
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] in ("alloc", "free_completed"):
                found.append(f"{LETTERS[event['action']]}{event['size']}")
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
        return " ".join(found)


def test_where_takes_bytes_and_warns():
    def run(start):
        mask, x = ones(4, dtype="uint8"), ones(4)
        start()
        with pytest.warns(UserWarning, match="where received a uint8 condition tensor"):
            return torch.where(mask, x, 0.0 * x.new_zeros(())), mask, x

    assert "a4" in events(run).split()  # the mask as truth values
    with simgpu.simulated_gpu("H100"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.where(ones(4, 1, dtype="uint8"), ones(3), 0.0).shape == (4, 3)
        with pytest.raises(RuntimeError, match="where expected condition to be a boolean tensor"):
            torch.where(ones(4, dtype="int64"), ones(4), ones(4))


def test_equal_of_two_dtypes_is_compared():
    def run(start):
        first, second = ones(4), ones(4, dtype="float64")
        start()
        return torch.equal(first, second), first, second

    assert events(run) == "a4 a1 f1 f4"


def test_isin_of_a_number_is_one_comparison():
    def run(start):
        x = ones(40, dtype="int64")
        start()
        return torch.isin(x, 3), x

    assert events(run) == "a40"


def test_binary_cross_entropy_is_of_its_input_s_dtype():
    def run(start):
        x, t, w = ones(4, 3), ones(4, 3), ones(4, 3, dtype="float64")
        start()
        return F.binary_cross_entropy(x, t, w), x, t, w

    assert events(run) == "a48 a4 f4"


@pytest.mark.parametrize(("width", "dtype"), [(16, "float32"), (24, "bfloat16")])
def test_attention_of_small_heads_is_fused(width, dtype):
    """Heads of 4 numbers: in single precision as they are, in half precision padded to 8, which lives to the end."""

    def run(start):
        module = nn.MultiheadAttention(width, width // 4, batch_first=True, device="cuda", dtype=getattr(torch, dtype))
        x = torch.ones(2, 5, width, device="cuda", dtype=getattr(torch, dtype))
        module.eval()
        with torch.inference_mode():
            start()
            return module(x, x, x, need_weights=False), x, module

    found = events(run).split()
    packed, result = (f"{2 * 5 * width * part * getattr(torch, dtype).itemsize}" for part in (3, 1))
    assert f"a{packed}" in found and found[-1] == f"f{packed}"
    assert f"a{result}" in found and f"a{2 * (width // 4) * 5 * 5 * 4}" not in found  # no scores


def test_lines_as_people_write_them():
    """What the oracle raises, or how its result lies, of each line in each dtype."""
    kept = json.loads(gzip.decompress(snippets.KEPT.read_bytes()))["agreed"]
    assert len(kept) > 1400 and sum(error is not None for _, error, _ in kept) > 300
    found = cases.on_simulated([code for code, _, _ in kept], snippets.GPU)
    different = [
        (case.code, said, snippets.said(case))
        for case, (_, *said) in zip(found, kept, strict=True)
        if snippets.said(case) != said
    ]
    assert different == []
