"""What the figures leave out is told by name: at the first use, once for each GPU, and whenever it is asked for."""

import json
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import labkit
import simgpu
from simgpu import unmodeled


def told(action):
    """What a program is told on a simulated GPU: the texts of the warnings, and the GPU that it ran on."""
    with warnings.catch_warnings(record=True) as caught, simgpu.simulated_gpu("A100-80GB") as gpu:
        warnings.simplefilter("always")
        action()
    return [str(one.message) for one in caught if issubclass(one.category, unmodeled.IncompleteEstimateWarning)], gpu


def convolution(enabled=True):
    with torch.backends.cudnn.flags(enabled=enabled):
        nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()


def lstm(enabled=True):
    with torch.backends.cudnn.flags(enabled=enabled):
        nn.LSTM(8, 8).cuda()(torch.randn(5, 2, 8, device="cuda"))


def packed(kind):
    x = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 8, device="cuda"), torch.tensor([5, 3]))
    kind(8, 8).cuda()(x)


@torch.library.custom_op("left_out_test::doubled", mutates_args=(), device_types="cuda")
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (convolution, "cuDNN's convolutions exclude cuDNN's workspaces"),
        (lstm, "an RNN exclude cuDNN's RNN"),
        (lambda: nn.RNN(8, 8).cuda()(torch.randn(5, 2, 8, device="cuda")), "an RNN exclude cuDNN's RNN"),
        (lambda: nn.GRU(8, 8).cuda()(torch.randn(5, 2, 8, device="cuda")), "an RNN exclude cuDNN's RNN"),
        *((partial(packed, kind), "an RNN exclude cuDNN's RNN") for kind in (nn.RNN, nn.LSTM, nn.GRU)),
        (lambda: torch.fft.fft(torch.randn(8, device="cuda")), "aten::_fft_r2c exclude cuFFT's workspaces"),
        (
            lambda: torch.linalg.svd(torch.randn(8, 8, device="cuda")),
            "aten::_linalg_svd exclude the workspaces",
        ),
        (
            lambda: torch.linalg.inv(torch.randn(8, 8, device="cuda")),
            "aten::linalg_inv_ex exclude the work",
        ),
        (lambda: doubled(torch.randn(8, device="cuda")), "left_out_test::doubled exclude all memory but its outputs"),
        (lambda: torch.compile(nn.Linear(2, 2).cuda())(torch.randn(2, 2, device="cuda")), "torch.compile exclude"),
    ],
)
def test_it_is_told_once_and_kept(action, named):
    said, gpu = told(lambda: (action(), action()))
    assert len([text for text in said if named in text]) == 1, said
    assert gpu.unmodeled and all(text.startswith("simulated A100-80GB: ") for text in said)
    assert str(gpu.unmodeled).startswith(("at least: without ", "about: without "))


@pytest.mark.parametrize("action", [lambda: convolution(False), lambda: lstm(False), lambda: nn.Linear(2, 2).cuda()])
def test_nothing_is_told_of_what_is_whole(action):
    said, gpu = told(action)
    assert (said, bool(gpu.unmodeled), str(gpu.unmodeled)) == ([], False, "")


def test_a_second_gpu_tells_again():
    assert told(convolution)[0] == told(convolution)[0] != []


def test_the_warning_is_at_the_users_line():
    with simgpu.simulated_gpu("A100-80GB"), pytest.warns(unmodeled.IncompleteEstimateWarning) as caught:
        torch.fft.fft(torch.randn(8, device="cuda"))
    assert caught[0].filename == __file__


def test_a_warning_made_an_error_leaves_torch_as_it_was():
    before = torch.cuda.is_available()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(unmodeled.IncompleteEstimateWarning), simgpu.simulated_gpu("A100-80GB"):
            convolution()
    assert torch.cuda.is_available() == before


@pytest.mark.filterwarnings("ignore::simgpu.unmodeled.IncompleteEstimateWarning")
def test_tables_and_figures_say_at_least():
    with labkit.simulated_gpu("A100-80GB"):
        ledger = labkit.Ledger()
        with ledger("linear"):
            nn.Linear(2, 2).cuda()
        assert ledger.table().index.name == "simulated A100-80GB"
        assert ledger.plot().get_supxlabel() == ""
        with ledger("convolution"):
            convolution()
        assert "at least: without cuDNN's workspaces" in ledger.table().index.name
        assert "at least: without cuDNN's workspaces" in ledger.plot().get_supxlabel()
        assert labkit.unmodeled().startswith("at least: ")
    assert labkit.unmodeled() == ""


def test_an_rnn_of_cudnn_is_no_lower_bound():
    _, gpu = told(lstm)
    assert not gpu.unmodeled.lower_bound and str(gpu.unmodeled).startswith("about: ")


def test_compiled_functions_run_eagerly_and_dynamo_is_as_it_was():
    from torch._dynamo import eval_frame

    before = eval_frame._stance
    with simgpu.simulated_gpu("A100-80GB"), pytest.warns(unmodeled.IncompleteEstimateWarning, match="run eagerly"):
        model = torch.compile(nn.Linear(4, 4).cuda(), fullgraph=True)
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        assert model._orig_mod.weight.grad.is_cuda
    assert eval_frame._stance is before


def test_coverage_can_be_asked():
    assert simgpu.coverage("aten::mm") == simgpu.coverage(torch.ops.aten.mm.default) == "proved"
    assert simgpu.coverage("aten::_fft_r2c").startswith("excluded: cuFFT's workspaces")
    with pytest.raises(ValueError, match="is not an operator of this torch"):
        simgpu.coverage("aten::no_such_operator")


def test_the_list_of_operators_is_of_operators():
    content = json.loads(unmodeled.OPERATORS.read_text())
    assert len(content["proved"]) > 300 and content["proved"] == sorted(set(content["proved"]))
    assert not set(content["proved"]) & set(content["differs"])
    absent = {"aten::_foreach_clone"} if torch.__version__ < "2.12" else set()
    assert all(unmodeled.coverage(name) == "proved" for name in content["proved"] if name not in absent)


def value_of_a_mask():
    x, value = torch.rand(64, 64, device="cuda"), torch.zeros((), device="cuda", requires_grad=True)
    x.masked_fill(x > 0.5, value).sum().backward()


def product():
    x = torch.rand(64, 64, device="cuda").requires_grad_()
    torch.prod(x, 1).sum().backward()


def smoothed(weight=True):
    x = torch.rand(64, 8, device="cuda").requires_grad_()
    weights = torch.ones(8, device="cuda") if weight else None
    target = torch.randint(8, (64,), device="cuda")
    nn.functional.cross_entropy(x, target, weights, label_smoothing=0.1).backward()


def scattered():
    x = torch.rand(64, 64, device="cuda")
    x.masked_scatter(x > 0.5, torch.rand(4096, device="cuda").requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (value_of_a_mask, "the gradient of masked_fill's value exclude the elements that its mask selects"),
        (product, "the gradient of prod exclude"),
        (smoothed, "cross_entropy with weights and label smoothing exclude the targets"),
        (scattered, "the gradient of masked_scatter exclude"),
    ],
)
def test_formulas_that_ask_for_values(action, name):
    assert [text for text in told(action)[0] if name in text]


@pytest.mark.parametrize("action", [lambda: smoothed(False)])
def test_nothing_is_told_where_no_value_is_asked_for(action):
    assert told(action)[0] == []


def test_advice_on_cudnn_s_attention():
    """As the oracle: cudnn.enabled = False does not keep an H100 from it, enable_cudnn_sdp(False) does."""
    attend = nn.functional.scaled_dot_product_attention
    with simgpu.simulated_gpu("H100") as gpu:
        query = torch.zeros(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
        with nn.attention.sdpa_kernel([nn.attention.SDPBackend.FLASH_ATTENTION, nn.attention.SDPBackend.MATH]):
            attend(query, query, query)  # enable_cudnn_sdp(False)
        assert not gpu.unmodeled
        with (
            torch.backends.cudnn.flags(enabled=False),
            pytest.warns(unmodeled.IncompleteEstimateWarning, match=r"enable_cudnn_sdp\(False\)"),
        ):
            attend(query, query, query)
