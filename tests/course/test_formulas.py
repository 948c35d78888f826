"""Predictions on paper against layers, optimizers and allocations of the simulated GPU, and traced sizes."""

import pytest
import torch
from torch import nn

import labkit
from helpers import layer_bytes, parameter_counts, step_bytes
from helpers.models import ThreeLinear, bert
from helpers.saved import layer_keeps, owners
from labkit import formulas, published
from labkit.gpu import requested
from labkit.units import MiB
from simgpu.gpus.cublas_workspace import cublas_workspace_bytes


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("predicted", "layer"),
    [
        (parameter_counts.linear(30, 7), nn.Linear(30, 7)),
        (parameter_counts.linear(30, 7, bias=False), nn.Linear(30, 7, bias=False)),
        (parameter_counts.norm(9), nn.BatchNorm2d(9)),
        (parameter_counts.norm(9), nn.LayerNorm(9)),
        (parameter_counts.embedding(11, 4), nn.Embedding(11, 4)),
        (parameter_counts.attention(12), nn.MultiheadAttention(12, 3)),
        (parameter_counts.attention(12, bias=False), nn.MultiheadAttention(12, 3, bias=False)),
    ],
)
def test_parameter_counts(predicted, layer):
    assert predicted == count(layer)


@pytest.mark.parametrize("size", [0, 1, 512, 513, MiB, MiB + 1, 10 * MiB - 512, 10 * MiB - 511, 33 * MiB + 1])
def test_block_and_segment_are_those_of_the_allocator(size):
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        rest = formulas.segment(size) - formulas.block(size)
        unsplit = rest if formulas.block(size) > MiB and rest <= MiB else 0
        assert torch.cuda.memory_allocated() == formulas.block(size) + unsplit
        assert torch.cuda.memory_reserved() == formulas.segment(size)
        del x


def test_tensor_is_a_block():
    assert formulas.tensor() == 512
    assert formulas.tensor(10_240, 1024) == 40 * MiB
    assert formulas.tensor(3, 100, dtype=torch.float16) == 1024


def test_parameters_count_a_tied_one_once():
    model = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
    assert formulas.parameters(model) == 1024
    model[1].weight = model[0].weight
    assert formulas.parameters(model) == 512


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("SGD", torch.optim.SGD),
        ("SGD with momentum", lambda parameters: torch.optim.SGD(parameters, momentum=0.9)),
        ("RMSprop", torch.optim.RMSprop),
        ("Adagrad", torch.optim.Adagrad),
        ("Adam", torch.optim.Adam),
        ("AdamW", torch.optim.AdamW),
    ],
)
def test_optimizers(name, make):
    with labkit.simulated_gpu("A100-80GB"):
        model = ThreeLinear().cuda()
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        before = torch.cuda.memory_allocated()
        optimizer = make(model.parameters())
        optimizer.step()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        temporary = torch.cuda.max_memory_allocated() - held
        assert (held - before, temporary) == step_bytes.optimizer(name, formulas.parameters(model))


def test_an_unknown_optimizer_lists_the_known():
    with pytest.raises(ValueError, match=r"SGD with momentum.*'Lion' was given"):
        step_bytes.optimizer("Lion", 1)


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cpu", "2.13.0", "2.14.1"])
@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (11, 0), (12, 0)])
def test_the_workspace_on_paper_is_the_simulated_one(capability, version):
    known = tuple(int(part) for part in version.split(".")[:2])
    assert formulas.cublas_workspace(capability, version) == cublas_workspace_bytes(capability, known, {})


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0"])
def test_the_workspace_of_other_versions_is_refused(version):
    with pytest.raises(ValueError, match=f"2.11 to 2.14; {version} was given"):
        formulas.cublas_workspace((8, 0), version)


# ((rows, columns, expanded), scratch on 108 multiprocessors, on 132), traced from x.sum(0) in PyTorch
# 2.13.0's CUDA host code under stub libraries, compute capabilities 8.0 and 9.0.
TRACED = [
    ((10240, 2048, True), (1835008, 256), (2359296, 256)),
    ((10240, 1024, False), (83886080, 32), (83886080, 32)),
    ((10240, 2048, False), (113246208, 64), (138412032, 64)),
    ((1024, 1024, False), (8388608, 32), (8388608, 32)),
    ((8192, 1024, False), (67108864, 32), (67108864, 32)),
    ((16384, 3072, False), (113246208, 96), (138412032, 96)),
    ((4096, 50304, False), (128778240, 1572), (154533888, 1572)),
    ((5001, 37, False), (94720, 8), (94720, 8)),
    ((64, 1000, False), (0, 0), (0, 0)),
    ((300, 2, False), (0, 0), (0, 0)),
    ((40000, 3, True), (0, 0), (0, 0)),
    ((1000, 4096, True), (0, 0), (0, 0)),
]


@pytest.mark.parametrize(("matrix", "a100", "h100"), TRACED)
def test_scratch_of_a_column_sum(matrix, a100, h100):
    rows, columns, expanded = matrix
    assert formulas.column_sum_scratch(rows, columns, 108, expanded=expanded) == a100
    assert formulas.column_sum_scratch(rows, columns, 132, expanded=expanded) == h100


def test_a_size_is_not_negative():
    with pytest.raises(ValueError, match="not -1"):
        formulas.block(-1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: parameter_counts.norm(-1),
        lambda: parameter_counts.norm(float("nan")),
        lambda: parameter_counts.norm(1.5),
        lambda: parameter_counts.linear(-1, 2),
        lambda: parameter_counts.linear(1, outputs=-2),
        lambda: parameter_counts.embedding(2, -3),
        lambda: parameter_counts.attention(float("inf")),
        lambda: formulas.tensor(2, -3),
        lambda: step_bytes.optimizer("AdamW", -4),
        lambda: formulas.column_sum_scratch(-1, 2, 3),
    ],
)
def test_what_is_no_count_is_refused(call):
    with pytest.raises(ValueError, match=r"whole number|groups divides"):
        call()


@pytest.mark.parametrize("name", [None, 3, b"H100"])
def test_what_is_no_name_of_a_gpu_is_refused(name):
    for function in (labkit.simulated_gpu, labkit.use_gpu):
        with pytest.raises(TypeError, match="wanted the name of a GPU, such as 'A100-80GB'"), function(name):
            pass


def test_the_stages_of_a_stack_of_linears_are_the_recorded_ones():
    from labkit import published

    stages = step_bytes.linear_stages((1024, 1024, 1024, 2048), 10_240, formulas.cublas_workspace((8, 0), "2.13.0"))
    after = published.find("three-linear", "after backward", "notes")
    assert after.verdict(stages["backward"]) == "equal"
    parameters = 4 * 4_198_400
    assert stages["forward"] == parameters + 208 * 2**20 - 8 * 2**20 + 8_519_680
    assert stages["optimizer"] - stages["backward"] == 2 * parameters
    with pytest.raises(ValueError, match="one layer has two widths"):
        step_bytes.linear_stages((1024,), 1, 0)
    with pytest.raises(ValueError, match="batch is a whole number"):
        step_bytes.linear_stages((1, 1), -1, 0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("sizes", [(4, 197), (3, 100), (2, 33)])
def test_an_encoder_layer_keeps_what_the_formula_says(attention, dropout, sizes):
    with labkit.simulated_gpu("A100-80GB"):
        config = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 1536}
        model = bert("base", attention, vocab_size=10, **config).cuda().train(dropout)
        tokens = torch.zeros(*sizes, dtype=torch.long, device="cuda")
        _, table = owners(model, tokens)
        layer = table[table["module"].str.startswith("encoder.layer.1.")]
        kept = (layer["bytes"] - layer["remainder"]).sum()
    assert kept == layer_bytes.encoder_layer(*sizes, 384, 6, 1536, attention, dropout)


def test_an_encoder_layer_of_another_attention_is_refused():
    with pytest.raises(ValueError, match="flash"):
        layer_bytes.encoder_layer(1, 1, 1, 1, 1, "flash")


def test_the_best_group_is_near_the_square_root_of_layers_over_what_a_layer_keeps():
    assert step_bytes.best_group(64, 16, 1) == 2
    assert step_bytes.best_group(256, 16, 1) == 4
    assert step_bytes.best_group(64, 1, 1) == 8
    assert step_bytes.best_group(7, 16, 1) == 1
    assert step_bytes.checkpointed(64, 2, 16, 1) == 31 + 32
    assert step_bytes.checkpointed(64, 64, 16, 1) == 64 * 16
    for group in (0, 7):
        with pytest.raises(ValueError, match="group divides the 64 layers"):
            step_bytes.checkpointed(64, group, 16, 1)
    with pytest.raises(ValueError, match="one layer or more"):
        step_bytes.best_group(0, 16, 1)


@pytest.mark.parametrize(
    ("width", "batch", "k", "optimizer"), [(512, 64, 1, "AdamW"), (512, 64, 8, "AdamW"), (768, 6, 2, "SGD")]
)
def test_the_peak_of_an_accumulating_step_is_at_least_the_larger_of_two_moments(width, batch, k, optimizer):
    """A stack of 12 Linear layers with GELU on the simulated GPU, and within 10 % above the bound."""

    def forward(samples):
        before = torch.cuda.memory_allocated()
        y = model(torch.zeros(samples, 100, width, device="cuda"))
        return y, torch.cuda.memory_allocated() - before

    with labkit.simulated_gpu("A100-80GB"):
        layers = [part for _ in range(12) for part in (torch.nn.Linear(width, width), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers).cuda()
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
        forward(1)
        sample = forward(2)[1] - forward(1)[1]
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            step.zero_grad()
            for _ in range(k):
                forward(batch // k)[0].sum().backward()
            step.step()
        bound = step_bytes.accumulated_peak(formulas.parameters(model), sample, batch, k, optimizer)
        assert bound <= torch.cuda.max_memory_allocated() < 1.1 * bound + 20 * 2**20


def test_an_accumulating_step_has_equal_micro_batches():
    with pytest.raises(ValueError, match="8 samples in 3"):
        step_bytes.accumulated_peak(100, 10, 8, 3)
    assert step_bytes.accumulated_peak(100, 0, 8, 8) == 500
    assert step_bytes.accumulated_peak(100, 100, 8, 1, "SGD") == 900
    assert step_bytes.accumulated_peak(100, 100, 8, 4, "SGD") == 400


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "dropout", "upcast"), [("gpt2", 0.1, False), ("gpt2", 0.0, False), ("llama", 0.0, True)]
)
def test_what_attention_keeps_is_the_difference_between_eager_and_fused(kind, dtype, dropout, upcast):
    from transformers import AutoModel, GPT2Config, LlamaConfig

    shape = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 50257}
    llama = LlamaConfig(**shape, num_key_value_heads=3, intermediate_size=96)
    config = llama if kind == "llama" else GPT2Config(**shape, attn_pdrop=dropout)
    batch, length = 2, 96  # a multiple of 32, so that no row is added
    kept = {}
    with labkit.simulated_gpu("A100-80GB"):
        for attention in ("eager", "sdpa"):
            with torch.device("cuda"):
                model = AutoModel.from_config(config, attn_implementation=attention).to(dtype).train()
            ids = torch.zeros(batch, length, dtype=torch.long, device="cuda")
            model(ids, use_cache=False)  # takes the workspace
            before = torch.cuda.memory_stats()["requested_bytes.all.current"]
            outputs = model(ids, use_cache=False)  # alive while the bytes are read, and not in the next turn
            kept[attention] = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
            del outputs
    how = {"itemsize": dtype.itemsize, "dropout": dropout > 0, "upcast": upcast}
    eager, fused = (layer_bytes.attention_kept(batch, 3, length, 64, fused=fused, **how) for fused in (False, True))
    random_state = 24 if dtype == torch.bfloat16 else 0  # of flash attention, a layer
    assert kept["eager"] - kept["sdpa"] == 2 * (eager - fused - random_state)


@pytest.mark.parametrize("name", ["A100-80GB", "H100"])
@pytest.mark.parametrize(
    ("sizes", "head_width"),
    [((2, 500, 1024, 8, 8, 2816), 0), ((3, 77, 512, 8, 2, 1536), 0), ((1, 128, 256, 4, 1, 700), 128)],
)
def test_a_llama_layer_keeps_what_the_formula_says(name, sizes, head_width):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import LlamaConfig, LlamaModel

    batch, length, hidden, heads, shared, inner = sizes
    config = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": shared, "vocab_size": 32}
    config |= {"head_dim": head_width} if head_width else {}
    with labkit.simulated_gpu(name), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        with torch.device("cuda"):
            settings = LlamaConfig(intermediate_size=inner, num_hidden_layers=3, **config)
            model = LlamaModel(settings).to(torch.bfloat16).train()
            tokens = torch.zeros(batch, length, dtype=torch.long)
        kept = layer_keeps(model, model.layers, tokens, use_cache=False)
    assert kept == layer_bytes.llama_layer(*sizes, head_width=head_width, written_out=True)


def test_what_the_layers_keep_is_the_paper_s_formula():
    s, b, h, a = 1024, 8, 1024, 16
    numbers = 16 * s * b
    assert layer_bytes.gpt_layer(b, s, h, a) == 34 * s * b * h + 5 * a * s * s * b + numbers
    assert layer_bytes.gpt_layer(b, s, h, a, dropout=False) == 32 * s * b * h + 2 * a * s * s * b + numbers
    assert layer_bytes.gpt_layer(b, s, h, a, "flash") == 34 * s * b * h + 4 * a * s * b + numbers + 24
    small = 8 * s * b + 4 * a * s * b + 24
    assert layer_bytes.llama_layer(b, s, h, a, 4, 3584) == (12 + 1 + 28) * s * b * h + small
    with pytest.raises(ValueError, match="math"):
        layer_bytes.gpt_layer(1, 1, 1, 1, "math")


@pytest.mark.parametrize("activation", layer_bytes.INNER_TENSORS)
def test_an_mlp_keeps_what_the_formula_says(activation):
    written_out = lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3))))  # noqa: E731
    functions = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "gelu written out": written_out}
    with labkit.simulated_gpu("A100-80GB"), torch.device("cuda"):
        up, gate, down = nn.Linear(64, 200).half(), nn.Linear(64, 200).half(), nn.Linear(200, 64).half()
        down(torch.zeros(8, 200, dtype=torch.half))  # the workspace
        before = requested()
        x = torch.zeros(1001, 64, dtype=torch.half, requires_grad=True)
        function = functions.get(activation, nn.functional.silu)
        inner = function(gate(x)) * up(x) if activation == "swiglu" else function(up(x))
        y = down(inner)
        inner = None
        kept = requested() - before - y.nbytes
    assert kept == layer_bytes.mlp(1001, 64, 200, activation)


def test_an_mlp_of_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="geglu"):
        layer_bytes.mlp(1, 1, 1, "geglu")


def test_shares_of_zeros_stages():
    """The worked figures of Rajbhandari et al. 2020, figure 1, and float32's 16 bytes."""
    half = {"parameter": 2, "gradient": 2, "states": 12}
    shares = {stage: step_bytes.zero_bytes_per_rank(7_500_000_000, 64, stage, **half) for stage in range(4)}
    found = {stage: round(sum(one) / 1e9, 1) for stage, one in shares.items()}
    assert found == published.values("zero-figure-1")
    assert step_bytes.zero_bytes_per_rank(1000, 8, 1) == (4000, 4000, 1000)
    assert step_bytes.zero_bytes_per_rank(1001, 8, 3) == (501, 501, 1001)  # shares are rounded up
    assert {sum(step_bytes.zero_bytes_per_rank(1000, 1, stage)) for stage in range(4)} == {16_000}
    with pytest.raises(ValueError, match="one rank or more"):
        step_bytes.zero_bytes_per_rank(1000, 0, 3)
    with pytest.raises(ValueError, match="a stage is 0, 1, 2 or 3; 4 was given"):
        step_bytes.zero_bytes_per_rank(1000, 8, 4)
