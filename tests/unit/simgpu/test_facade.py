"""What plain PyTorch code sees of a simulated tensor."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import labkit
from simgpu.errors import NotModelledError, NoValueError


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def allocated():
    return torch.cuda.memory_allocated()


@pytest.mark.usefixtures("gpu")
class TestWhereItIs:
    def test_says_cuda(self):
        x = torch.ones(2, 3).cuda()
        assert x.device == torch.device("cuda", 0)
        assert (x.is_cuda, x.is_meta, x.is_cpu) == (True, False, False)
        assert x.get_device() == 0
        assert x.type() == "torch.cuda.FloatTensor"
        assert repr(x[1]) == "tensor([1., 1., 1.], device='cuda:0')"
        assert repr(x * torch.rand(1, device="cuda")) == "tensor(..., device='cuda:0', size=(2, 3))"
        assert x.data_ptr() % 512 == 0 != x.data_ptr()
        assert x[1].data_ptr() == x.data_ptr() + 12
        assert x[1].untyped_storage().data_ptr() == x.data_ptr()

    def test_a_storage_on_the_host_says_its_own_address(self):
        x = torch.ones(3)
        assert x.untyped_storage().data_ptr() == x.data_ptr() != 0

    def test_without_values_too_so_that_programs_can_tell_which_share_memory(self):
        x, y = (torch.empty(100, device="cuda").cpu() for _ in range(2))
        assert x[3:].data_ptr() == x.data_ptr() + 12
        assert x.untyped_storage().data_ptr() == x.data_ptr() != 0
        assert y.data_ptr() >= x.data_ptr() + x.nbytes
        assert x.to(torch.float64).data_ptr() != x.data_ptr()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(4).cuda(),
            lambda: torch.ones(4).cuda(0),
            lambda: torch.ones(4).to("cuda"),
            lambda: torch.ones(4).to(0),
            lambda: torch.ones(4).to(device="cuda"),
            lambda: torch.ones(4).to(torch.zeros(1, device="cuda")),
            lambda: torch.ones(4, device="cuda"),
            lambda: torch.empty(4, device=torch.device("cuda:0")),
            lambda: torch.tensor([1.0, 2, 3, 4], device="cuda"),
            lambda: torch.as_tensor([1.0, 2, 3, 4], device="cuda"),
            lambda: torch.arange(4.0, device="cuda"),
            lambda: torch.randn(2, device="cuda").new_zeros(4),
            lambda: torch.randn(2, device="cuda").new_tensor([1, 2, 3, 4]),
            lambda: torch.ones(4).type("torch.cuda.FloatTensor"),
            lambda: torch.zeros_like(torch.ones(4), device="cuda"),
        ],
    )
    def test_every_way_to_the_gpu_takes_one_block(self, make):
        before = allocated()
        x = make()
        assert x.is_cuda and x.shape == (4,) and x.dtype == torch.float32
        assert allocated() - before == 512
        del x
        assert allocated() == before

    def test_default_device(self):
        with torch.device("cuda"):
            assert torch.ones(3).is_cuda
            assert torch.tensor([1, 2]).is_cuda
            assert nn.Linear(4, 4).weight.is_cuda
        assert not torch.ones(3).is_cuda

    def test_default_device_for_good(self, request):
        request.addfinalizer(lambda: torch.set_default_device(None))
        torch.set_default_device("cuda")
        assert torch.get_default_device() == torch.device("cuda", 0)
        assert all(x.is_cuda for x in (torch.ones(3), torch.tensor([1, 2]), torch.as_tensor([1.0]), torch.arange(2)))
        assert nn.Linear(4, 4).weight.is_cuda
        assert not torch.ones(3, device="cpu").is_cuda and not torch.from_numpy(np.ones(2)).is_cuda
        with torch.device("cpu"):
            assert not torch.ones(3).is_cuda
        before = allocated()
        torch.set_default_device("meta")
        assert torch.ones(3).is_meta and allocated() == before

    def test_pytorchs_own_meta_tensors_stay_what_they_are(self):
        x = torch.ones(1024, device="meta")
        with torch.device("meta"):
            y = torch.ones(1024)
        assert x.is_meta and y.is_meta and not x.is_cuda and (x + y).is_meta
        assert allocated() == 0
        with pytest.raises(NotImplementedError, match="no data"):
            x.cuda()

    def test_a_shape_of_a_gpu_tensor_goes_to_meta(self):
        x = torch.ones(4, 6, device="cuda").t()
        before = allocated()
        y = x.to("meta", torch.float16)
        assert (y.device.type, y.shape, y.stride(), y.dtype) == ("meta", (6, 4), (1, 6), torch.float16)
        assert allocated() == before

    def test_one_gpu_only(self):
        for make in (lambda: torch.ones(2, device="cuda:1"), lambda: torch.ones(2).cuda(1)):
            with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
                make()

    def test_to_itself_is_itself(self):
        x = torch.ones(4, device="cuda")
        assert x.to("cuda") is x and x.cuda() is x and x.float() is x
        assert x.to("cuda", copy=True) is not x
        assert allocated() == 512

    def test_back_on_the_cpu_it_takes_no_memory_and_is_counted(self, gpu):
        from simgpu.device.machine import current

        x = torch.ones(2**20, device="cuda", requires_grad=True)
        y = x.cpu()
        assert y.device == torch.device("cpu") and not y.is_cuda
        assert current().host_bytes == 4 * 2**20
        assert allocated() == 4 * 2**20
        y.sum().backward()
        assert x.grad.is_cuda
        del y
        assert current().host_bytes == 0

    def test_gradient_of_a_cpu_leaf_comes_back_without_a_value(self):
        x = torch.ones(4, requires_grad=True)
        (x.cuda() * 2).sum().backward()
        assert x.grad.device.type == "cpu" and x.grad.isnan().all()


@pytest.mark.usefixtures("gpu")
class TestModules:
    def test_cuda_keeps_parameters_and_ties(self):
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        model[1].weight = model[0].weight
        weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.cuda()
        assert model[0].weight is model[1].weight is weight is optimizer.param_groups[0]["params"][0]
        assert allocated() == 512 and weight.is_cuda and weight.requires_grad

    def test_gradients_move_with_their_parameters(self):
        model = nn.Linear(4, 4)
        model(torch.ones(1, 4)).sum().backward()
        model.cuda()
        assert model.weight.grad.is_cuda
        model.cpu()
        assert model.weight.grad.device.type == "cpu"
        assert allocated() == 0

    def test_lazy_modules_learn_their_sizes_on_the_gpu(self):
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to("cuda")
        assert model[0].weight.is_cuda and type(model[1].running_mean) is nn.parameter.UninitializedBuffer
        model(torch.rand(4, 2, device="cuda")).sum().backward()
        assert model[0].weight.shape == (3, 2) and model[0].weight.grad.is_cuda and model[1].running_mean.is_cuda

    def test_deepcopy_and_state_dict(self):
        model = nn.Linear(4, 4, device="cuda")
        twin = copy.deepcopy(model)
        twin.load_state_dict(model.state_dict())
        assert twin.weight.is_cuda and allocated() == 4 * 512

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_checkpoint_recomputes_on_the_gpu(self, reentrant):
        seen = []

        def block(x):
            seen.append(x.device)
            return torch.nn.functional.dropout(x.exp(), 0.5)

        x = torch.ones(8, device="cuda", requires_grad=True)
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        assert seen == [torch.device("cuda", 0)] * 2 and x.grad.is_cuda


@pytest.mark.usefixtures("gpu")
class TestValues:
    def test_a_float_is_nan_with_one_warning(self):
        x = torch.rand((), device="cuda")
        with pytest.warns(UserWarning, match="no values"):
            assert x.item() != x.item()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert float(x) != float(x)
            assert f"{x:.2f}" == "nan"

    @pytest.mark.parametrize(
        "ask",
        [
            lambda x: bool(x > 0),
            lambda x: int(x),
            lambda x: x.long().item(),
            lambda x: x.tolist(),
            lambda x: x.cpu().numpy(),
            lambda x: torch.equal(x, x + 1),
            lambda x: [1, 2][x.long()],
        ],
    )
    def test_what_needs_a_value_says_so(self, ask):
        with pytest.raises(NoValueError, match="simulated tensor"):
            ask(torch.rand((), device="cuda"))

    @pytest.mark.parametrize("ask", [torch.nonzero, torch.unique, lambda x: x[x > 0], lambda x: x.masked_select(x > 0)])
    def test_data_dependent_shapes_say_what_to_do(self, ask):
        with pytest.raises(NoValueError, match=r"torch\.where"):
            ask(torch.rand(4, device="cuda"))

    def test_printing_needs_no_value(self):
        parameter = nn.Parameter(torch.rand(2, device="cuda"))
        assert str(parameter) == "Parameter containing:\ntensor(..., device='cuda:0', size=(2,), requires_grad=True)"
        assert "grad_fn=<ExpBackward0>" in f"{parameter.exp()}"

    @pytest.mark.filterwarnings("ignore:flex_attention called:UserWarning")
    @pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
    def test_what_is_not_modelled_is_refused_by_name(self):
        x = torch.ones(1, 2, 16, 16, device="cuda")
        with pytest.raises(NotModelledError, match="does not model flex_attention"):
            flex_attention(x, x, x)
        with pytest.raises(NotModelledError, match=r"does not model tensors of layout sparse"):
            x.to_sparse()
        with pytest.raises(NotModelledError, match=r"tensors of layout torch\.sparse_coo"):
            torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,), device="cuda")
        with pytest.raises(NotModelledError, match="nested tensors of strided layout"):
            torch.nested.nested_tensor([x[0, 0, 0], x[0, 0, 1]])
        for longest in (2, 4):  # as long as the input at most
            targets = torch.ones(2 + longest).int()
            with pytest.raises(NotModelledError, match="cuDNN's ctc_loss"):
                nn.functional.ctc_loss(torch.randn(4, 2, 5, device="cuda"), targets, (4, 4), (2, longest))
        with pytest.raises(NotModelledError, match=r"torch\.export"):
            torch.export.export(nn.Linear(4, 4).cuda(), (torch.ones(2, 4, device="cuda"),))

    def test_a_model_on_the_cpu_is_exported_as_without_a_gpu(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        nodes = torch.export.export(model, (torch.ones(2, 4),)).graph.nodes
        assert [node.target for node in nodes if node.op == "call_function"] == [
            torch.ops.aten.linear.default,
            torch.ops.aten.relu.default,
        ]
        assert torch.cuda.memory_allocated() == 0
        moved = torch.export.export(model, args=(torch.ones(2, 4),), kwargs={}, strict=False).module().cuda()
        moved(torch.ones(2, 4, device="cuda")).sum().backward()
        assert moved.get_parameter("0.weight").grad.is_cuda
        with pytest.raises(NotModelledError, match=r"torch\.export"):
            torch.export.export(model, (torch.ones(2, 4, device="cuda"),))

    @pytest.mark.filterwarnings("ignore:simulated tensors have no values:UserWarning")
    def test_a_value_asked_for_inside_an_operator(self):
        number = torch.rand((), device="cuda")
        assert torch.full((2,), torch.tensor(3).cuda()).tolist() == [3, 3]
        assert torch.full((2,), number).isnan().all()
        with pytest.raises(NoValueError, match=r"simulated torch.int64 tensor inside an operator"):
            torch.full((2,), number.long())

    @pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
    def test_anomaly_detection_finds_nothing(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.1)).cuda()
        with torch.autograd.detect_anomaly(check_nan=True):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert model[0].weight.grad.is_cuda


@pytest.mark.usefixtures("gpu")
class TestMixtures:
    @pytest.mark.parametrize(
        ("wanted", "draw"),
        [
            ("cuda", lambda cpu, cuda: torch.randn(3, device="cuda", generator=cpu)),
            ("cuda", lambda cpu, cuda: torch.randperm(3, device="cuda:0", generator=cpu)),
            ("cuda", lambda cpu, cuda: torch.ones(3, device="cuda").normal_(generator=cpu)),
            ("cuda", lambda cpu, cuda: nn.init.normal_(torch.ones(3, device="cuda"), generator=cpu)),
            ("cuda", lambda cpu, cuda: torch.multinomial(torch.ones(3, device="cuda"), 2, generator=cpu)),
            ("cpu", lambda cpu, cuda: torch.randn(3, generator=cuda)),
            ("cpu", lambda cpu, cuda: torch.ones(3).normal_(generator=cuda)),
        ],
    )
    def test_a_generator_of_the_other_device(self, wanted, draw):
        """The words are the oracle's."""
        cpu, cuda = torch.Generator(), torch.Generator("cuda")
        found = {"cpu": "cuda", "cuda": "cpu"}[wanted]
        with pytest.raises(RuntimeError, match=f"Expected a '{wanted}' device type for generator but found '{found}'"):
            draw(cpu, cuda)
        draw(cuda, cuda) if wanted == "cuda" else draw(cpu, cpu)
        torch.randn(3, device="meta", generator=cpu)

    @pytest.mark.parametrize("mix", [lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: torch.cat([a, b])])
    def test_a_cpu_tensor_is_refused_and_nothing_is_lost(self, mix):
        x = torch.ones(4, 4, device="cuda")
        before = allocated()
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mix(x, torch.ones(4, 4))
        assert allocated() == before

    def test_a_cpu_scalar_is_welcome(self):
        x = torch.ones(4, device="cuda")
        assert (x * torch.tensor(2.0)).is_cuda

    def test_a_number_in_a_slice_takes_no_block(self):
        x = torch.ones(4, 4, device="cuda")
        peak = torch.cuda.max_memory_allocated()
        x[0] = 1.5
        assert torch.cuda.max_memory_allocated() == peak


@pytest.mark.usefixtures("gpu")
class TestOutOfMemory:
    def test_it_fails_at_the_operator_and_work_goes_on(self):
        torch.cuda.set_per_process_memory_fraction(0.01)
        x = torch.ones(100 * 2**20, dtype=torch.int8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 1024.00 MiB."):
            torch.ones(2**30, dtype=torch.int8, device="cuda")
        assert allocated() == 100 * 2**20
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        assert (x + 1).is_cuda

    def test_scratch_of_the_failing_operator_is_given_back(self):
        torch.cuda.set_per_process_memory_fraction(0.001)
        x = torch.ones(20 * 2**20, dtype=torch.float16, device="cuda")
        mask_fits_output_does_not = pytest.raises(torch.cuda.OutOfMemoryError)
        with mask_fits_output_does_not:
            torch.nn.functional.dropout(x, 0.5)
        assert allocated() == 40 * 2**20
