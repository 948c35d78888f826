"""`simgpu fit --ranks`: one rank of a plan for many GPUs; and the links of a world, from the command line."""

import json

import pytest
import torch
from torch import distributed as dist
from torch import nn

import simgpu
from simgpu.command import main
from simgpu.fitting.plan import Plan
from simgpu.report.owners import PARAMETERS, STATES
from tests.unit.simgpu.four_layers import WEIGHTS, layers, steps

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")


class Tied(nn.Module):
    """An embedding whose weights are the head's, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 512), nn.Linear(512, 512, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def fitted(ranks=None, **options):
    return simgpu.fit(layers, 256, inputs=lambda size: torch.zeros(size, 512), gpu="H100", ranks=ranks, **options)


def test_the_same_as_a_script_with_fsdp2():
    from torch.distributed.fsdp import fully_shard

    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        torch.cuda.set_device(3)
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = layers()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        model.to_empty(device="cuda")
        peaks = steps(model, torch.optim.AdamW(model.parameters()))
    found = fitted(8, rank=3)
    assert (found.peak, found.reserved) == peaks
    shards = 4 * (512 * 512 * 4 // 8 + 512)  # of a bias there are 256 bytes, in a block of 512
    assert (found.parts[PARAMETERS], found.parts[STATES]) == (shards, 2 * shards)


def test_the_same_as_a_script_with_ddp():
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        torch.cuda.set_device(3)
        dist.init_process_group("nccl")
        with torch.device("cuda"):
            model = layers()
        model = nn.parallel.DistributedDataParallel(model, device_ids=[3], gradient_as_bucket_view=True)
        peaks = steps(model, torch.optim.AdamW(model.parameters()))
    found = fitted(8, rank=3, parallel="ddp")
    assert (found.peak, found.reserved) == peaks
    assert found.parts[STATES] == 2 * WEIGHTS


def test_more_ranks_take_less_and_a_slower_link_more_time():
    two, eight = fitted(2), fitted(8)
    assert eight.peak < two.peak < fitted().peak
    assert fitted(8, link=1e9).step > eight.step
    assert fitted(8, link=1e9).peak == eight.peak
    assert fitted(8, parallel="ddp", accumulate=2).report.completed


def test_eight_bit_states_are_of_this_ranks_shard():
    weight = 512 * 512 // 8  # two states of a byte, and a float32 scale for each 256 of them; a bias has less than 4096
    each = 2 * (weight + 4 * weight // 256) + 2 * 512
    assert fitted(8, optimizer="adamw-8bit").parts[STATES] == 4 * each + 2 * 1024


def test_tied_weights_stay_one():
    found = simgpu.fit(Tied, 4, inputs=lambda size: torch.zeros(size, 8, dtype=torch.long), ranks=2)
    assert found.parts[PARAMETERS] == 512 * 512 * 4 // 2


def test_a_link_that_another_gpu_lacks_does_not_keep_the_plan_from_it():
    assert fitted(8, link="nvlink").every_gpu(["T4", "H100"]) == {"T4": True, "H100": True}


def test_ddp_waits_for_every_gradient():
    def with_a_second_head():
        model = Tied()
        model.unused = nn.Linear(512, 2)
        return model

    given = {"inputs": lambda size: torch.zeros(size, 8, dtype=torch.long), "ranks": 2}
    assert simgpu.fit(with_a_second_head, **given).completed
    with pytest.raises(ValueError, match="the loss does not depend on some of them"):
        simgpu.fit(with_a_second_head, **given, parallel="ddp")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small-llama" / "config.json"
    path.parent.mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8}
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 1024, "max_position_embeddings": 512, **sizes}))
    return str(path)


def test_the_command(config, capsys):
    arguments = ["--batch", "2", "--length", "64", "--ranks", "8", "--rank", "3"]
    assert main(["fit", config, *arguments, "--per-node", "4", "--link", "2e10", "--autocast", "bf16"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "(adamw, batch 2 × 64, autocast bf16, 8 ranks of FSDP2), as rank 3 of 8, fits on a simulated" in first
    assert main(["fit", config, *arguments, "--parallel", "ddp"]) == 0
    assert "8 ranks of DDP" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rank", "3"], "rank=3 of how many ranks? Say ranks= too"),
        (["--parallel", "ddp"], "parallel='ddp' of how many ranks? Say ranks= too"),
        (["--ranks", "2", "--rank", "2"], "rank=2 is none of a world of ranks=2"),
        (["--ranks", "2", "--per-node", "0"], "a machine has one GPU or more"),
        (["--ranks", "2", "--link", "fast"], "link='fast' is none that is known"),
        (["--ranks", "2", "--link", "nvlink", "--gpu", "T4"], "a T4 has no NVLink"),
        (["--ranks", "2", "--train", "adafactor"], "Adafactor does not take FSDP2's parameters"),
        (["--ranks", "2", "--qlora", "4"], "weights of 4 bits are by formula, which is for one GPU"),
    ],
)
def test_bad_input_gets_one_line(config, capsys, arguments, said):
    assert main(["fit", config, *arguments]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.count("\n") == 1 and written.out == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": "two"}, "ranks is a whole number, not 'two'"),
        ({"ranks": 2, "link": True}, "not True"),
        ({"ranks": 2, "parallel": "tp"}, "parallel is one of fsdp, ddp, not 'tp'"),
    ],
)
def test_what_is_no_plan(options, said):
    with pytest.raises(ValueError, match=said):
        Plan(**options)


def test_the_links_of_a_script(tmp_path, capfd):
    script = tmp_path / "where.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "print(*(os.environ[name] for name in ('LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')))\n"
        "x = torch.ones(2**20, device='cuda')\n"
        "dist.all_reduce(x)\n"
    )
    assert main(["run", "--ranks", "8", "--rank", "6", "--per-node", "4", "--link", "pcie", str(script)]) == 0
    assert capfd.readouterr().out.startswith("2 4 1\n")
    fast, slow = (simgpu.run(script, ranks=8, per_node=8, link=link).seconds for link in ("nvlink", 1e8))
    assert slow > fast
    assert main(["run", "--link", "pcie", str(script)]) == 2
    assert "link='pcie' of how many ranks? Say ranks= too" in capfd.readouterr().err
