"""values=True: every tensor has its values, the CPU's, beside a memory that is the GPU's."""

import copy
import io
import pickle

import pytest
import torch

import labkit
import simgpu
from simgpu.errors import HostMemoryError
from simgpu.tensors.host_memory import KEPT_FREE, HostMemory


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB", values=True) as gpu:
        yield gpu


def perceptron(device, steps=6):
    """Losses of a small network, its copies by every way that code makes them, and a sum of each."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).to(device)
    inputs, targets = torch.randn(32, 8), torch.randint(0, 4, (32,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def sums(model):
    return [parameter.sum().item() for parameter in model.parameters()]


def test_a_network_trains_as_on_the_cpu(gpu):
    assert perceptron("cuda")[0] == perceptron("cpu")[0]


def test_a_model_is_saved_loaded_pickled_copied_and_moved(gpu):
    _, model = perceptron("cuda")
    wanted = sums(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = copy.deepcopy(model)
    loaded.load_state_dict(torch.load(file))
    for other in (loaded, pickle.loads(pickle.dumps(model))):
        assert sums(other) == wanted
        assert all(one.is_cuda for one in other.parameters())
    file.seek(0)
    on_host = torch.load(file, map_location="cpu")
    assert [one.sum().item() for one in on_host.values()] == wanted
    assert sums(model.cpu()) == wanted and model[0].weight.detach().numpy().shape == (16, 8)
    assert sums(model.cuda()) == wanted


def test_memory_is_what_it_is_without_values():
    peaks = []
    for values in (False, True):
        with labkit.simulated_gpu("H100", values=values):
            torch.cuda.memory._record_memory_history()
            perceptron("cuda", steps=2)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            peaks.append([(event["action"], event["addr"], event["size"]) for event in events])
    assert peaks[0] == peaks[1]


def test_random_numbers_are_of_the_generator_that_the_code_names(gpu):
    torch.manual_seed(3)
    first = torch.rand(4, device="cuda").tolist()
    torch.cuda.manual_seed(3)
    assert torch.rand(4, device="cuda").tolist() == first
    named = torch.Generator("cuda").manual_seed(3)
    again = torch.rand(4, device="cuda", generator=named)
    assert again.tolist() == first != torch.rand(4, device="cuda", generator=named).tolist()
    state = torch.cuda.get_rng_state()
    drawn = torch.empty(5, device="cuda").normal_().tolist()
    torch.cuda.set_rng_state(state)
    assert torch.empty(5, device="cuda").normal_().tolist() == drawn
    host = torch.random.get_rng_state()
    torch.rand(3, device="cuda")
    assert torch.equal(torch.random.get_rng_state(), host)


def test_dropout_s_gradient_has_the_mask_of_its_forward(gpu):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y) and 300 < (y == 0).sum().item() < 700
    assert set(y.unique().tolist()) == {0.0, 2.0}


def test_sizes_that_depend_on_values(gpu):
    x = torch.tensor([3, 1, 3, 0]).cuda()
    assert x.unique().tolist() == [0, 1, 3] and x.bincount().tolist() == [1, 1, 0, 2]
    assert x.repeat_interleave(x).tolist() == [3, 3, 3, 1, 3, 3, 3]
    drawn = torch.randn(50, device="cuda")
    assert len(drawn[drawn > 0]) == (drawn > 0).sum().item() == len(drawn.masked_select(drawn > 0))


def test_printing(gpu):
    assert repr(torch.arange(3).cuda() / 2) == "tensor([0.0000, 0.5000, 1.0000], device='cuda:0')"
    assert f"{torch.ones((), device='cuda'):.2f}" == "1.00"


def test_infinite_gradients_are_found(gpu):
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for factor in (float("inf"), 1.0):
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0 and parameter.tolist() == [0.0, 0.0]
    assert not torch.tensor([1.0, float("nan")]).cuda().isfinite().all()


def test_what_the_host_cannot_hold_is_refused_before_it_is_taken():
    left = 2 * KEPT_FREE
    memory = HostMemory(lambda: left)
    memory.take(KEPT_FREE)
    with pytest.raises(HostMemoryError, match=f"values=True .* {KEPT_FREE + 1} B .* are wanted"):
        memory.take(KEPT_FREE + 1)
    HostMemory(lambda: None).take(2**60)  # a system that does not tell
    with (
        simgpu.simulated_gpu("A100-80GB", 2**50, values=True),
        pytest.raises(MemoryError, match="Simulate without values=True"),
    ):
        torch.empty(2**48, dtype=torch.uint8, device="cuda")


def test_errors_without_values_name_the_remedy():
    with simgpu.simulated_gpu("A100-80GB"):
        x = torch.randint(3, (4,), device="cuda")
        for ask in (x.tolist, x.nonzero, lambda: x[0].item(), lambda: bool(x.max() == 0)):
            with pytest.raises(RuntimeError, match="values=True"):
                ask()
