"""Layouts, errors, scratch memory and values of single operators."""

import pytest
import torch

import simgpu
from simgpu.errors import NotModelledError
from simgpu.ops import reductions, sorting
from simgpu.storage import storage_map


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_number_less_a_tensor_lies_as_on_the_host(gpu, dtype):
    def layouts(device):
        one = torch.ones((), dtype=dtype, device=device)
        shapes = one.expand(100, 7), torch.ones(7, 100, dtype=dtype, device=device).t(), one.expand(4, 1, 3)
        return [(1 - x).stride() for x in shapes]

    assert layouts("cuda") == layouts("cpu")


@pytest.mark.parametrize(
    ("targets", "lengths", "said"),
    [
        (torch.ones(5), (2, 2), "Expected tensor to have size 4 at dimension 0, but got size 5"),
        (torch.ones(3), (2, 2), "Expected tensor to have size 4 at dimension 0, but got size 3"),
        (torch.ones(2, 2), (3, 1), "Expected tensor to have size at least 3 at dimension 1, but got size 2"),
        (torch.ones(2, 3), (2, 1), ""),
        (torch.ones(4), (2, 2), ""),
    ],
)
def test_targets_of_ctc_that_the_lengths_do_not_fit(gpu, targets, lengths, said):
    scores = torch.randn(6, 2, 5, device="cuda").log_softmax(-1)
    with torch.backends.cudnn.flags(enabled=False):
        arguments = scores, targets.long().cuda(), (6, 6), lengths
        if not said:
            assert torch.nn.functional.ctc_loss(*arguments).shape == ()
            return
        with pytest.raises(RuntimeError, match=said):
            torch.nn.functional.ctc_loss(*arguments)


def test_what_the_cpu_lacks_in_half_precision_is_computed_in_single():
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 4.0], [2.0, 2.0]], dtype=torch.float16)
    targets = torch.tensor([0, 1, 1, 0])
    with pytest.raises(NotImplementedError):
        torch.nn.functional.multi_margin_loss(x, targets)
    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = torch.nn.functional.multi_margin_loss(x.cuda(), targets.cuda())
        assert (found.dtype, found.shape) == (torch.float16, ())
        assert torch.equal(found.cpu(), torch.nn.functional.multi_margin_loss(x.float(), targets).half())


def test_kernels_are_not_tuned(gpu):
    assert torch.cuda.tunable.is_enabled() is False
    torch.cuda.tunable.enable(False)
    with pytest.raises(NotModelledError, match=r"torch\.cuda\.tunable\.enable"):
        torch.cuda.tunable.enable()


def test_a_storage_goes_to_the_host_and_to_the_gpu_and_nowhere_else(gpu):
    storage = torch.zeros(4, device="cuda").untyped_storage()
    assert storage.to(device="cpu").device.type == "cpu"
    assert storage.to(device="cuda:0").data_ptr() == storage.data_ptr()
    with pytest.raises(NotModelledError):
        storage.to(device="xpu")
    with pytest.raises(NotImplementedError, match="without XPU support"):  # PyTorch's own words
        torch.zeros(4).untyped_storage().to(device="xpu")


def test_a_reduction_out_of_reach_is_halved_where_it_reaches_farthest():
    """TensorIteratorBase::get_dim_to_split (aten/src/ATen/TensorIterator.cpp): the largest (size - 1) × stride."""
    rows = reductions.Dim(3, 1_000_000_000, None)
    columns = reductions.Dim(1_000_000_000, 1, None)
    found = [[dim.size for dim in part] for part in reductions.pieces([rows, columns], 4, 4)]
    assert found[:2] == [[1, 500_000_000], [1, 500_000_000]]
    assert len(found) == 6 and {sizes[0] for sizes in found} == {1}


@pytest.mark.parametrize(
    ("rows", "least"), [(20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (4_001, 400)]
)
def test_rows_that_are_worth_several_blocks_of_threads(rows, least):
    """aten/src/ATen/native/cuda/TensorTopK.cu, should_use_multiblock."""
    assert sorting.by_many_blocks(rows, least) and not sorting.by_many_blocks(rows, least - 1)


def test_a_gradient_that_another_stream_uses_is_kept_for_it(gpu):
    """The engine records the stream of the node that a gradient goes to (torch/csrc/autograd/input_buffer.cpp)."""
    side, x = torch.cuda.Stream(), torch.ones(64, 64, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    seen = []
    y.register_hook(seen.append)
    (y * y).sum().backward()
    assert set(storage_map.of(seen[0]).block.stream_uses) == {side.stream_id}
