"""values=True: every tensor has its values, the CPU's, beside a memory that is the GPU's."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import labkit
import simgpu
from simgpu.cpu_reference import attention
from simgpu.cpu_reference import execute as on_cpu_follow
from simgpu.errors import HostMemoryError, NoValueError
from simgpu.storage import host_memory
from simgpu.storage.host_memory import KEPT_FREE, HostMemory


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_of_a_generator_draws_what_the_generator_draws(gpu, copied):
    generator = torch.Generator("cuda").manual_seed(3)
    torch.rand(4, device="cuda", generator=generator)
    other = copied(generator)
    assert other.device.type == "cuda" and other.initial_seed() == 3
    assert torch.equal(other.get_state(), generator.get_state())
    for _ in range(2):
        drawn = torch.rand(4, device="cuda", generator=other).tolist()
        assert drawn == torch.rand(4, device="cuda", generator=generator).tolist()


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


def test_normal_numbers_lie_around_their_means(gpu):
    """Each of the spellings: 10,000 numbers, whose mean is off by 0.01 standard deviations."""
    zeros, ones = torch.zeros(10_000, device="cuda"), torch.ones(10_000, device="cuda")
    for drawn in (torch.normal(zeros, ones), torch.normal(zeros, 1.0), torch.normal(0.0, ones)):
        assert abs(drawn.mean().item()) < 0.1 and abs(drawn.std().item() - 1) < 0.1


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


def of_attention(device, dtype, *, mask=False, causal=False, heads=4, size=16, of_mask=False):
    """The output of attention, and the gradients of all that it is given."""
    torch.manual_seed(0)

    def drawn(*shape):
        return torch.randn(shape, dtype=dtype).to(device).requires_grad_()

    query, key, value = drawn(2, 4, 24, 16), drawn(2, heads, 24, 16), drawn(2, heads, 24, size)
    added = torch.randn(2, 4, 24, 24, dtype=dtype).to(device).requires_grad_(of_mask) if mask else None
    given = [query, key, value, *([added] if of_mask else [])]
    options = {"attn_mask": added, "is_causal": causal, "enable_gqa": heads != 4}
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    grads = torch.autograd.grad(output, given, torch.randn(output.shape).to(dtype).to(device))
    return [one.detach().cpu() for one in (output, *grads)]


@pytest.mark.parametrize("kind", ["T4", "A100-80GB", "H100"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"mask": True},
        {"heads": 2},
        {"size": 8},
        {"mask": True, "of_mask": True},
    ],
    ids=str,
)
def test_attention_is_the_cpu_s_whichever_kernel_cuda_takes(kind, dtype, options):
    wanted = of_attention("cpu", dtype, **options)
    with simgpu.simulated_gpu(kind, values=True):
        found = of_attention("cuda", dtype, **options)
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **near)


@pytest.mark.parametrize(
    "lay", [lambda x: x[..., ::2], lambda x: x[..., :10].mT.contiguous().mT], ids=["far", "across"]
)
def test_attention_of_rows_that_do_not_lie_dense(lay):
    """The CPU's fused kernel wants them so (aten/src/ATen/native/transformers/sdp_utils_cpp.cpp)."""
    torch.manual_seed(0)
    given = lay(torch.randn(3, 2, 4, 10, 32)).unbind()
    output, _ = attention.forward(attention.Attention(*given, None, 0.0, False, None), 0)
    torch.testing.assert_close(output, torch.nn.functional.scaled_dot_product_attention(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_in_attention_has_one_mask_forward_and_backward(gpu, dtype):
    """The output is linear in the values: with the identity for them it is the weights, and the gradient shows them."""
    query = torch.randn(1, 1, 8, 8, device="cuda", dtype=dtype)
    one = torch.eye(8, device="cuda", dtype=dtype)[None, None]
    value = one.clone().requires_grad_()
    weights = torch.nn.functional.scaled_dot_product_attention(query, query, value, dropout_p=0.5)
    (grad,) = torch.autograd.grad(weights, value, one)
    assert torch.equal(grad.mT, weights) and 10 < (weights == 0).sum() < 54


def recurrent():
    return torch.nn.LSTM(4, 8, 2, bidirectional=True, proj_size=3)


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_the_last_states_of_every_layer(gpu, kind):
    torch.manual_seed(0)
    layers, x = kind(4, 8, 2), torch.randn(5, 3, 4)
    _, expected = layers(x)
    _, found = layers.cuda()(x.cuda())
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (recurrent, (5, 3, 4)),
        (lambda: torch.nn.GRU(4, 8, bias=False), (5, 3, 4)),
        (lambda: torch.nn.GRUCell(4, 8), (3, 4)),
        (lambda: torch.nn.BatchNorm2d(3), (4, 3, 5, 5)),
        (lambda: torch.nn.BatchNorm1d(3), (4, 3)),
        (lambda: torch.nn.RMSNorm(6), (4, 3, 6)),
        (lambda: torch.nn.GroupNorm(2, 4), (2, 4, 3)),
        (lambda: torch.nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)),
        (lambda: torch.nn.MultiheadAttention(8, 2), None),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (3, 2, 8)),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
@pytest.mark.parametrize("training", [True, False])
def test_modules_that_cuda_has_kernels_of_its_own_for(make, shape, training):
    def run(device):
        torch.manual_seed(0)
        module = make().train(training).to(device)
        x = torch.randn(shape or (3, 2, 8)).to(device).requires_grad_()
        output = module(*([x] * (3 if shape is None else 1)))
        output = output[0] if isinstance(output, tuple) else output
        output.pow(2).sum().backward()
        buffers = [one for one in module.buffers() if one.is_floating_point()]
        return [one.detach().cpu() for one in (output, x.grad, *(p.grad for p in module.parameters()), *buffers)]

    wanted = run("cpu")
    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = run("cuda")
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_an_embedding_bag(gpu):
    bag, ids = torch.nn.EmbeddingBag(10, 4, padding_idx=0, mode="sum"), torch.tensor([0, 3, 3, 9, 1])
    wanted = bag(ids, torch.tensor([0, 2, 2]))
    wanted.sum().backward()
    grad = bag.weight.grad.clone()
    bag.zero_grad()
    bag.cuda()
    found = bag(ids.cuda(), torch.tensor([0, 2, 2]).cuda())
    found.sum().backward()
    assert torch.equal(found.cpu(), wanted) and torch.equal(bag.weight.grad.cpu(), grad)


def test_the_median_of_two_in_the_middle_is_the_lower_one(gpu):
    assert torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0], device="cuda").median() == 2
    assert torch.tensor([5.0, 1.0, math.nan], device="cuda").median().isnan()


def test_lbfgs_finds_the_minimum(gpu):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("cuda")
    x = torch.randn(16, 4, device="cuda")
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        loss = optimizer.step(closure)
    assert loss < 1e-6


def test_checkpointing_recomputes_with_the_same_dropout(gpu):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)).cuda()
    x, state = torch.randn(4, 8, device="cuda"), torch.cuda.get_rng_state()
    grads = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        torch.cuda.set_rng_state(state)
        model.zero_grad()
        run(x).sum().backward()
        grads.append([one.grad.clone() for one in model.parameters()])
    assert all(map(torch.equal, *grads))


def test_activations_that_wait_on_the_host_come_back(gpu):
    model, x = torch.nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda")
    model(x).relu().pow(2).sum().backward()
    grad = model.weight.grad.clone()
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(x).relu().pow(2).sum()
    loss.backward()
    assert torch.equal(model.weight.grad, grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_its_dtype(dtype):
    def run(device):
        torch.manual_seed(0)
        model, x = torch.nn.Linear(8, 4).to(device), torch.randn(3, 8).to(device)
        with torch.autocast(device, dtype):
            return model(x).detach().cpu()

    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = run("cuda")
    assert found.dtype == dtype and torch.equal(found, run("cpu"))


def test_data_and_storages_that_change_places(gpu):
    parameter = torch.nn.Parameter(torch.randn(4))
    wanted = (parameter * 2).tolist()
    parameter.data = parameter.data.cuda()
    parameter.data.mul_(2)
    other = torch.zeros(4, device="cuda")
    other.set_(parameter.data)
    parameter.data = parameter.data.cpu()
    other.resize_(8)
    assert parameter.tolist() == other[:4].tolist() == wanted
    out = torch.empty(0, device="cuda")
    torch.add(other, 1, out=out)
    assert out[:4].tolist() == pytest.approx([one + 1 for one in wanted])


def test_a_graph_computes_what_its_inputs_hold_when_it_is_replayed(gpu):
    model, x = torch.nn.Linear(4, 4).cuda(), torch.zeros(2, 4, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x).relu_()
    for value in (1.0, -2.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y, model(x).relu())


def test_a_leaf_of_the_host_gets_its_gradient(gpu):
    x = torch.ones(4, requires_grad=True)
    (x.cuda() * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def of_ctc(device, reduction, zero_infinity=False, steps=50):
    torch.manual_seed(0)
    scores = torch.randn(steps, 3, 20).log_softmax(2).to(device).requires_grad_()
    targets, lengths = torch.randint(1, 20, (3, 7)).to(device), (torch.tensor([steps, 50, 40]), torch.tensor([7, 5, 6]))
    options = {"reduction": reduction, "zero_infinity": zero_infinity}
    loss = torch.nn.functional.ctc_loss(scores, targets, *lengths, **options)
    loss.sum().backward()
    return loss.detach().cpu(), scores.grad.cpu()


@pytest.mark.parametrize(("reduction", "zero"), [("none", False), ("mean", True), ("sum", False)])
@pytest.mark.parametrize("steps", [50, 230])
def test_ctc_loss(gpu, reduction, zero, steps):
    for found, wanted in zip(
        of_ctc("cuda", reduction, zero, steps), of_ctc("cpu", reduction, zero, steps), strict=True
    ):
        assert torch.equal(found, wanted)


def test_products_with_results_in_single_precision(gpu):
    left, right = torch.randn(3, 4, dtype=torch.bfloat16).cuda(), torch.randn(4, 5, dtype=torch.bfloat16).cuda()
    wanted = left.cpu().float() @ right.cpu().float()
    assert torch.equal(torch.mm(left, right, out_dtype=torch.float32).cpu(), wanted)


def test_safetensors(gpu, tmp_path):
    files = pytest.importorskip("safetensors.torch")
    x = torch.randn(3, device="cuda")
    files.save_file({"x": x}, tmp_path / "x.safetensors")
    assert torch.equal(files.load_file(tmp_path / "x.safetensors", device="cuda")["x"], x)


def test_safetensors_without_values_name_the_remedy(tmp_path):
    files = pytest.importorskip("safetensors.torch")
    with simgpu.simulated_gpu("A100-80GB"), pytest.raises(NoValueError, match=r"safetensors .*values=True"):
        files.save_file({"x": torch.randn(3, device="cuda")}, tmp_path / "x.safetensors")


GENERATED = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "top_k": 10}, "beams": {"num_beams": 3}}


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Bloom"])
@pytest.mark.parametrize("how", GENERATED)
def test_generate_gives_the_cpu_s_tokens(name, how):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    more = {"intermediate_size": 64} if name == "Llama" else {}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**sizes, **more, **tokens)

    def run(device):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)
        ids = torch.randint(3, 100, (2, 7))
        ids[0, :2] = 0
        torch.manual_seed(7)
        given = {"input_ids": ids.to(device), "attention_mask": (ids != 0).long().to(device)}
        return model.generate(**given, max_new_tokens=5, **GENERATED[how]).tolist()

    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = run("cuda")
    assert found == run("cpu")


@pytest.mark.parametrize("version", [0, 1])
def test_what_a_container_may_take(tmp_path, monkeypatch, version):
    """Linux, Documentation/admin-guide/cgroup-v2.rst: memory.current counts the page cache, which is given up."""
    files = {"most": "9000000", "taken": "7000000", "stat": "anon 123\ninactive_file 500000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    groups, caches = [("no", "such")] * 2, ["none"] * 2
    groups[version], caches[version] = (str(tmp_path / "most"), str(tmp_path / "taken")), str(tmp_path / "stat")
    monkeypatch.setattr(host_memory, "_CGROUPS", tuple(groups))
    monkeypatch.setattr(host_memory, "_CACHE", tuple(caches))
    assert host_memory._of_group() == 2_500_000
    assert host_memory.available() <= 2_500_000
    (tmp_path / "most").write_text("max\n")
    assert host_memory._of_group() is None


@pytest.mark.parametrize("dim", [0, 1])
def test_the_gradient_of_cumprod_where_a_factor_is_zero(dim):
    """CUDA asks the host whether one is, and then takes another way. The peaks are the oracle's, to the byte."""
    peaks = {}
    for zero in (False, True):
        x = torch.rand(300, 500, generator=torch.Generator().manual_seed(0)) + 0.5
        if zero:
            x[0], x[2, 3], x[5, 3] = 0, 0, 0

        def gradient(device, x=x):
            x = x.to(device).requires_grad_()
            x.cumprod(dim).sum().backward()
            return x.grad.cpu()

        with warnings.catch_warnings(), simgpu.simulated_gpu("H100", values=True):
            warnings.simplefilter("error")
            found = gradient("cuda")
            peaks[zero] = torch.cuda.max_memory_allocated()
        torch.testing.assert_close(found, gradient("cpu"))
    assert peaks == {False: 3_751_424, True: 6_451_712}


@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
def test_the_gradient_of_a_trace_is_the_diagonal(gpu, shape):
    x = torch.randn(shape, device="cuda", requires_grad=True)
    x.trace().backward()
    assert torch.equal(x.grad.cpu(), torch.eye(*shape))


def test_histograms_of_whole_numbers(gpu):
    """CUDA's bins, by whole numbers (49 of them too, of which floats get one wrong); the CPU has none of integers."""
    chosen = torch.tensor([0, 1, 1, 3, 2, 2, 2, 9], device="cuda")
    for dtype in (torch.int32, torch.int64):
        counts = torch.histc(chosen.to(dtype), bins=4, min=0, max=3)
        assert (counts.dtype, counts.tolist()) == (dtype, [1, 2, 3, 1])
    assert torch.histc(torch.arange(49, device="cuda"), 49, 0, 49).tolist() == [1] * 49
    assert torch.histc(chosen, 3).tolist() == [6, 1, 1]
    assert torch.histc(torch.full((3,), 5, device="cuda"), 2).tolist() == [0, 3]
    out = torch.empty(0, dtype=torch.int64, device="cuda")
    assert torch.histc(chosen, 4, 0, 3, out=out) is out and out.tolist() == [1, 2, 3, 1]


def test_errors_with_values_do_not_name_them_as_the_remedy(gpu, monkeypatch):
    monkeypatch.setattr(on_cpu_follow, "_computed", lambda *call: NotImplemented)
    x = torch.arange(4, device="cuda")
    for ask in (x.tolist, x.nonzero, lambda: x[0].item(), lambda: bool(x.max() == 0)):
        with pytest.raises(NoValueError, match="values=True, which is on"):
            ask()
