"""The finding about activation checkpointing: its estimate against real checkpoints, and where it does not help."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import simgpu
from simgpu.report import checkpointing, timeline
from simgpu.report.owners import ACTIVATIONS

transformers = pytest.importorskip("transformers")
MIB = 2**20


class Bottleneck(nn.Module):
    """ResNet's: three convolutions with batch norms, in-place ReLU, and a projection where the width changes."""

    def __init__(self, wide, inner, stride):
        super().__init__()
        out = 4 * inner
        self.convs = nn.ModuleList(
            [nn.Conv2d(wide, inner, 1), nn.Conv2d(inner, inner, 3, stride, 1), nn.Conv2d(inner, out, 1)]
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (inner, inner, out))
        self.projection = nn.Conv2d(wide, out, 1, stride) if wide != out or stride > 1 else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = x
        for at, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            y = self.relu(y) if at < 2 else y
        return self.relu(y + self.projection(x))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3)
        sizes = [(64, 64, 1), (256, 64, 1), (256, 64, 1), (256, 128, 2), (512, 128, 1), (512, 128, 1)]
        self.blocks = nn.ModuleList(Bottleneck(*one) for one in sizes)
        self.head = nn.Linear(512, 100)

    def forward(self, x, checkpoints):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)
        return self.head(x.mean((2, 3)))


def cnn(checkpoints):
    net = Cnn().cuda()
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    for _ in range(2):
        out = net(torch.randn(16, 3, 128, 128, device="cuda"), checkpoints)
        F.cross_entropy(out, torch.zeros(16, dtype=torch.long, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


def of_transformers(config, batch, dtype=torch.float32):
    def program(checkpoints):
        with torch.device("cuda"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
            tokens = torch.randint(config.vocab_size, batch)
        if checkpoints:
            model.gradient_checkpointing_enable()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


LLAMA = transformers.LlamaConfig(
    vocab_size=1000, hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=4, use_cache=False
)
GPT2 = transformers.GPT2Config(vocab_size=2000, n_embd=256, n_layer=6, n_head=4, use_cache=False)
PROGRAMS = {
    "LlamaDecoderLayer": of_transformers(LLAMA, (4, 512), torch.bfloat16),
    "GPT2Block": of_transformers(GPT2, (4, 512)),
    "Bottleneck": cnn,
}


def finding(report):
    return next((one for one in report.findings if one.name == "activation checkpointing"), None)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_estimate_is_close_to_a_run_with_checkpoints(kind):
    """ERROR is what the finding names as its uncertainty."""
    plain = simgpu.run(lambda: PROGRAMS[kind](False), gpu="H100")
    real = simgpu.run(lambda: PROGRAMS[kind](True), gpu="H100")
    found = finding(plain)
    assert f"each of the 6 modules of class {kind} would lower the peak by about " in found.text
    assert "an estimate from this run's allocations and frees" in found.text
    assert plain.peak - found.nbytes == pytest.approx(real.peak, rel=checkpointing.ERROR)
    assert real.peak < 0.7 * plain.peak
    assert finding(real) is None or "checkpointing is on" in finding(real).text


def layers(count, wide, batch, step, checkpoints=False, classes=0, use_reentrant=False):
    """Layers that save much, a loss over `classes`, and an optimizer that makes as many steps."""

    class Layer(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, wide))

    net = nn.ModuleList(Layer() for _ in range(count)).cuda()
    head = nn.Linear(wide, classes or 1).cuda()
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()])
    for _ in range(step):
        x = torch.ones(batch, wide, device="cuda", requires_grad=True)
        for layer in net:
            x = checkpoint(layer, x, use_reentrant=use_reentrant) if checkpoints else layer(x)
        x = head(x)
        loss = F.cross_entropy(x, torch.zeros(batch, dtype=torch.long, device="cuda")) if classes else x.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_where_checkpointing_is_on_and_the_optimizer_peaks(use_reentrant):
    report = simgpu.run(lambda: layers(4, 1024, 16, 2, True, use_reentrant=use_reentrant), gpu="T4")
    assert report.at.stage == "optimizer step"
    assert "is on, and the peak is in the optimizer's step, where it does not help" in finding(report).text
    assert "fused=True" in finding(report).remedy


def test_where_checkpointing_is_on_and_the_loss_peaks():
    report = simgpu.run(lambda: layers(4, 128, 4096, 1, True, classes=8000), gpu="T4")
    assert "is on, and the peak is in the loss, where it does not help" in finding(report).text
    assert finding(report).lines and "cross-entropy" in finding(report).remedy


def test_where_checkpointing_is_on_and_activations_peak_nothing_is_said():
    report = simgpu.run(lambda: layers(4, 256, 2**15, 1, True), gpu="T4")
    assert report.at.stage in ("forward", "backward") and finding(report) is None


def test_a_peak_that_would_move_to_the_optimizer():
    """The estimate is not what the modules save: the optimizer's step limits it, and the finding says so."""
    report = simgpu.run(lambda: layers(6, 1024, 2048, 2), gpu="T4")
    assert report.at.stage != "optimizer step" and report.parts[ACTIVATIONS] > finding(report).nbytes
    assert "would then be in the optimizer's step, which no checkpoint lowers" in finding(report).text
    real = simgpu.run(lambda: layers(6, 1024, 2048, 2, True), gpu="T4")
    assert real.peak == report.peak - finding(report).nbytes and real.at.stage == "optimizer step"


def test_memory_that_runs_out_in_forward_gives_a_lower_bound():
    report = simgpu.run(lambda: layers(64, 256, 2**16, 1), gpu="T4", memory="4 GiB")
    assert report.outcome == "does not fit" and report.to_come
    assert "would have freed about" in finding(report).text and "a lower bound" in finding(report).text
    assert 0 < finding(report).nbytes < report.parts[ACTIVATIONS]


def test_a_second_derivative_is_no_checkpoint():
    def program():
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        (first,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
        first.square().sum().backward()

    assert finding(simgpu.run(program, gpu="T4")) is None


def test_a_checkpoint_around_a_function_is_one():
    def program():
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        net = nn.ModuleList(nn.Sequential(nn.Tanh(), nn.Softplus()) for _ in range(8))
        for one in net:
            x = one(x)
        checkpoint(lambda y: y.exp().sin(), x, use_reentrant=False).sum().backward()

    assert finding(simgpu.run(program, gpu="T4")) is None


def test_modules_that_occur_once_are_not_proposed():
    def program():
        nn.Sequential(nn.Tanh(), nn.Softplus())(torch.ones(2**22, device="cuda", requires_grad=True)).sum().backward()

    report = simgpu.run(program, gpu="T4")
    assert max(report.parts, key=report.parts.get) == ACTIVATIONS or ACTIVATIONS in report.parts
    assert finding(report) is None


def test_a_run_whose_timeline_is_not_whole_has_no_estimate(monkeypatch):
    monkeypatch.setattr(timeline, "EVENTS", 20)
    assert finding(simgpu.run(lambda: layers(6, 256, 4096, 1), gpu="T4")) is None
