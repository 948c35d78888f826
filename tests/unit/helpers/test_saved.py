"""Who keeps which block: every byte that forward adds has an owner, and the six kinds add up to the counter."""

import pytest
import torch
from torch import nn

import labkit
from helpers import layer_bytes
from helpers.blocks import allocated_blocks, remainders
from helpers.kinds import Kinds, stack
from helpers.models import LlamaLayer
from helpers.saved import OUTPUT, keeps, layer_keeps, owners, saving
from labkit.gpu import requested
from labkit.ledger import Ledger
from labkit.units import MiB
from tests.pinned import of_pinned_torch


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("H100") as gpu:
        yield gpu


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return {"y": self.down(nn.functional.gelu(self.up(x)))}


def test_every_block_of_a_forward_pass_has_its_module_and_operator():
    model, x = Block().cuda(), torch.zeros(1000, 64, device="cuda")
    model(x)  # the workspace
    before = torch.cuda.memory_allocated()
    outputs, table = owners(model, x)
    assert table["bytes"].sum() == torch.cuda.memory_allocated() - before
    by_operator = dict(zip(table["kept for"], zip(table["module"], table["bytes"], strict=True), strict=True))
    wide, narrow = 4 * 1000 * 256, 4 * 1000 * 64
    assert by_operator == {"Gelu": ("", wide), "Addmm": ("down", wide), OUTPUT: ("", narrow)}
    assert (table["remainder"] == 0).all()
    assert outputs["y"].shape == (1000, 64)


@of_pinned_torch
def test_what_no_graph_keeps_has_no_operator_and_no_hook_is_left():
    model, x = Block().cuda(), torch.zeros(1000, 64, device="cuda")
    with torch.no_grad():
        _, table = owners(model, x)
    assert sorted(table["kept for"]) == ["", OUTPUT]  # the workspace
    with pytest.raises(RuntimeError):
        owners(model, x[:, :3])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = x * 1
        ctx.save_for_backward(kept)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_function_of_ones_own_is_an_owner_too():
    x = torch.zeros(1000, device="cuda", requires_grad=True)
    model = nn.Identity()
    model.forward = Doubled.apply
    _, table = owners(model, x)
    assert set(table["kept for"]) == {"Doubled", OUTPUT}


def test_saving_notes_what_is_saved_and_keeps_nothing_alive():
    x = torch.zeros(1000, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    with saving() as notes:
        y = (x * 1).sigmoid()
    assert [(note.address, note.nbytes, note.shape, note.dtype) for note in notes] == [
        (y.data_ptr(), 4000, (1000,), torch.float32)
    ]
    y = None
    assert torch.cuda.memory_allocated() == before


def test_remainders_are_what_stays_with_a_large_block():
    x = torch.empty(10 * MiB + 512, dtype=torch.uint8, device="cuda")  # gets a segment of 12 MiB: the rest is split off
    assert remainders() == 0
    y = torch.empty(12 * MiB - 1024, dtype=torch.uint8, device="cuda")
    assert (x.nbytes, y.nbytes, remainders()) == (10 * MiB + 512, 12 * MiB - 1024, 1024)
    assert [one.remainder for one in allocated_blocks().values()] == [0, 1024]


def train(steps=2):
    ledger = Ledger(history=True)
    model, x = Block().cuda(), torch.zeros(1000, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        with ledger(f"forward {step}"):
            y = model(x)["y"]
        with ledger(f"backward {step}"):
            y.sum().backward()
        with ledger(f"step {step}"):
            optimizer.step()
    return ledger, model, optimizer


def test_the_six_kinds_add_up_to_the_counter_at_the_peak():
    ledger, model, optimizer = train()
    kinds = Kinds(ledger, model, optimizer, "forward 1", "backward 1", "step 1")
    at_peak = kinds.at_peak()
    parameters = labkit.formulas.parameters(model)
    assert sum(at_peak.values()) == kinds.peak == max(ledger["forward 1"].peak, ledger["backward 1"].peak)
    assert at_peak["weights"] == parameters
    assert at_peak["optimizer states"] == 2 * parameters
    assert at_peak["workspaces"] == 2 * 32 * MiB
    assert {kind: int(curve[-1]) for kind, curve in kinds.curves.items()}["gradients"] == parameters
    alive = kinds.alive_at_peak("temporaries")
    assert alive["blocks"].sum() > 0
    figure = kinds.plot("a block, 1000 rows")
    assert figure.axes[0].get_title(loc="left").strip() == "The six kinds of allocated memory: a block, 1000 rows"
    assert f"{labkit.mib(kinds.peak)}" in figure.description


def test_without_history_there_are_no_kinds():
    ledger = Ledger()
    with ledger("a"):
        pass
    with pytest.raises(RuntimeError, match="history=True"):
        Kinds(ledger, nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters()), "a", "a", "a")


def test_curves_to_stack_have_one_length_and_the_highest_sum_is_marked():
    figure = stack({"weights": [1, 1, 1], "gradients": [0, MiB, 0]}, "Memory", "event", {"backward": (1, 2)})
    assert "event 1 of 2" in figure.description
    with pytest.raises(ValueError, match="one length"):
        stack({"weights": [1], "gradients": [0, 1]}, "Memory", "event")


def test_an_operator_keeps_what_the_hooks_and_the_allocator_say():
    w = torch.zeros(8, 64, device="cuda", requires_grad=True)
    size = 4 * 8 * 64
    assert keeps(torch.sigmoid, (8, 64)) == ("output", size, size)
    assert keeps(nn.functional.gelu, (8, 64)) == ("input", size, size)
    assert keeps(lambda h: h * w, (8, 64), [w]) == ("what we hold and input", size, size)
    assert keeps(lambda h: h + w, (8, 64), [w]) == ("nothing", 0, 0)
    assert keeps(lambda h: h.max(-1).values, (8, 64)) == ("int64 [8]", 64, 64)


def test_a_layer_keeps_what_the_model_keeps_with_it_less_without_it():
    model = nn.Sequential(nn.ModuleList())  # a model that runs its list
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)).cuda()
    model.forward = lambda x: [x := layer(x) for layer in layers][-1]
    x = torch.zeros(1000, 64, device="cuda")
    assert layer_keeps(model, layers, x) == x.nbytes
    assert len(layers) == 3
    with pytest.raises(ValueError, match="not 1"):
        layer_keeps(model, layers[:1], x)


@pytest.mark.parametrize("sizes", [(2, 500, 1024, 8, 8, 2816), (3, 77, 512, 8, 2, 1536)])
def test_the_plain_layer_of_today_keeps_what_the_formula_says(sizes):
    batch, length, hidden, heads, shared, inner = sizes
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION), torch.device("cuda"):
        layer = LlamaLayer(hidden, heads, shared, inner).to(torch.bfloat16)
        layer(torch.zeros(1, 8, hidden, dtype=torch.bfloat16))  # the workspace
        before = requested()
        x = torch.zeros(batch, length, hidden, dtype=torch.bfloat16, requires_grad=True)
        graph = layer(x).grad_fn
        kept = requested() - before if graph else 0
    assert kept == layer_bytes.llama_layer(*sizes)


def test_a_layer_of_today_is_causal_and_turns_by_position():
    with labkit.simulated_gpu("H100", values=True):
        layer = LlamaLayer(64, 4, 2, 96).double().cuda()
        x = torch.randn(1, 9, 64, dtype=torch.float64, device="cuda")
        y = layer(x)
        assert torch.allclose(layer(x[:, :5]), y[:, :5])
        same = layer(x[:, :1].expand(1, 9, 64))
        assert torch.allclose(same[:, 0], same[:, 8])  # equal tokens, whatever the turn: attention to equals
        assert not torch.allclose(layer(x.flip(1)).flip(1), y)
    with pytest.raises(ValueError, match="divide"):
        LlamaLayer(64, 3, 1, 96)
