"""`simgpu.run` of a rank that waits for what other ranks tell it: they run first, as far as that."""

import pytest

import simgpu

pytest.importorskip("torch.distributed.pipelining")

PIPELINE = """
import os, sys, torch
from torch import distributed as dist, nn
from torch.distributed import pipelining

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
kind, told = sys.argv[1], sys.argv[2:] == ["told"]
dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
places = {"Schedule1F1B": [rank], "ScheduleZBVZeroBubble": [rank, 2 * ranks - 1 - rank]}.get(kind, [rank, rank + ranks])
number = len(places) * ranks
stages = []
for place in places:
    shapes = [torch.empty(4, 64 * (place + more), device="meta", requires_grad=place + more > 1) for more in (1, 2)]
    given = {"input_args": shapes[0], "output_args": shapes[1]} if told else {}
    layer = nn.Linear(64 * (place + 1), 64 * (place + 2)).to(device)
    stages.append(pipelining.PipelineStage(layer, place, number, device, **given))
loss = lambda y, target: (y - target).pow(2).mean()
schedule = getattr(pipelining, kind)(stages if len(stages) > 1 else stages[0], 8, loss_fn=loss)
for _ in range(2):
    rows = [torch.randn(32, 64, device=device)] if 0 in places else []
    wanted = {"target": torch.randn(32, 64 * (number + 1), device=device)} if number - 1 in places else {}
    schedule.step(*rows, **wanted)
print("rank", rank, [tuple(one.submod.weight.grad.shape) for one in stages], torch.cuda.memory_allocated())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PIPELINE)
    return path


@pytest.mark.parametrize(
    ("kind", "rank", "first"),
    [
        ("Schedule1F1B", 0, []),
        ("Schedule1F1B", 3, [(3, 2), (2, 1), (1, 0)]),
        ("ScheduleInterleaved1F1B", 0, [(0, 3), (3, 2), (2, 1)]),
        ("ScheduleInterleaved1F1B", 1, [(1, 0), (1, 0), (0, 3), (3, 2)]),
        ("ScheduleZBVZeroBubble", 2, [(2, 1), (1, 0), (2, 3)]),
    ],
)
def test_a_stage_learns_its_shapes_from_the_ranks_before_it(script, capsys, kind, rank, first):
    report = simgpu.run(script, [kind], gpu="H100", ranks=4, rank=rank)
    printed = capsys.readouterr()
    assert report.completed and report.rank == (rank, 4), report
    asked = [f"(rank {receiver} waits for rank {sender}, which runs first)" for receiver, sender in first]
    assert printed.err.splitlines() == asked
    assert [line.split(" [")[0] for line in printed.out.splitlines()] == [f"rank {rank}"]
    places = {"Schedule1F1B": [rank], "ScheduleZBVZeroBubble": [rank, 7 - rank]}.get(kind, [rank, rank + 4])
    assert str([(64 * (place + 2), 64 * (place + 1)) for place in places]) in printed.out


def test_it_takes_what_a_rank_takes_that_is_told_the_shapes(script, capsys):
    learned, told = (
        simgpu.run(script, ["Schedule1F1B", *more], gpu="H100", ranks=4, rank=2) for more in ([], ["told"])
    )
    assert learned.completed and told.completed
    assert learned.reserved == told.reserved
    of_each = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(of_each) == 2 and of_each[0] == of_each[1]


def test_what_an_earlier_program_has_sent_is_not_read(script):
    other = script.with_name("other.py")
    other.write_text(
        "import torch\nfrom torch import distributed as dist\ndist.init_process_group('nccl')\n"
        "dist.send_object_list(['of another program'], dst=1)\n"
    )
    assert simgpu.run(other, gpu="T4", ranks=2, rank=0).completed
    assert simgpu.run(script, ["Schedule1F1B"], gpu="T4", ranks=2, rank=1).completed


WAITS = """
import os
from torch import distributed as dist

dist.init_process_group("nccl")
rank = int(os.environ["RANK"])
{}
dist.recv_object_list([None], src=1 - rank)
"""


@pytest.mark.parametrize("first", ["pass", "if rank == 0: raise SystemExit", "if rank == 0: 1 / 0"])
def test_a_rank_that_nobody_can_tell_fails_as_others_do(script, capsys, first):
    """Both wait for the other; the other ends before it says anything; the other fails."""
    script.write_text(WAITS.format(first))
    report = simgpu.run(script, gpu="T4", ranks=2, rank=1)
    assert report.status == 2
    assert "rank 1 waits for an object from rank 0" in report.ended
    assert "rank 1 waits for an object from rank 0" in capsys.readouterr().err


def test_a_function_is_run_as_other_ranks_too(capsys):
    def program():
        import os

        from torch import distributed as dist

        dist.init_process_group("nccl")
        if os.environ["RANK"] == "0":
            dist.send_object_list([{"hidden": 64}], dst=1)
        else:
            said = [None]
            dist.recv_object_list(said, src=0)
            print(said)

    assert simgpu.run(program, gpu="T4", ranks=2, rank=1).completed
    assert capsys.readouterr().out == "[{'hidden': 64}]\n"
