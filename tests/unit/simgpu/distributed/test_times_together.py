"""Ranks played together: the bubble of a pipeline's schedule, who waits for whom, and what is refused."""

import math
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import record_function

import simgpu
from helpers import schedules
from simgpu.clock.clock import Clock
from simgpu.device.machine import on
from simgpu.distributed.log import named
from simgpu.distributed.timeline import Timeline

if not dist.is_available():
    pytest.skip("a PyTorch without torch.distributed", allow_module_level=True)

from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to get default timeout")
FREE = math.inf
FAST_HOST = 1e-6  # its time does not count beside the kernels'


def work(seconds: float) -> None:
    on().clock.launch(on().stream, seconds)


def ranks(size: int, link: float = FREE, **world):
    """Each rank of a world in its turn, with a process group."""
    for rank in range(size):
        with simgpu.simulated_gpu("H100", ranks=size, rank=rank, link=link, host=FAST_HOST, **world):
            dist.init_process_group("nccl")
            yield rank


class Timed(torch.autograd.Function):
    """Takes so many seconds forward and backward."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_seconds = backward
        work(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        work(ctx.backward_seconds)
        return gradient.clone(), None, None


class Stage(nn.Module):
    def __init__(self, forward: float, backward: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device="cuda"))
        self.seconds = forward, backward

    def forward(self, x):
        return Timed.apply(x + self.weight, *self.seconds)


def pipeline(kind, stages: int, micro_batches: int, forward=1.0, backward=2.0, each=1, link=FREE):
    """The timeline of a step of PyTorch's own schedule, after a first one; `each`: stages of a rank."""
    logs = []
    for rank in ranks(stages, link):
        like = torch.empty(2, 8, device="meta", requires_grad=True)
        mine = [
            PipelineStage(
                Stage(forward, backward), at, stages * each, torch.device("cuda"), input_args=like, output_args=like
            )
            for at in range(rank, stages * each, stages)
        ]
        schedule = kind(mine if each > 1 else mine[0], micro_batches, loss_fn=lambda y, target: y.sum())
        x = torch.zeros(2 * micro_batches, 8, device="cuda", requires_grad=True)
        given = (x,) if rank == 0 else ()
        last = {"target": x.detach(), "losses": []} if rank == stages - 1 else {}
        schedule.step(*given, **last)
        with simgpu.record_rank() as log:
            schedule.step(*given, **last)
        logs.append(log)
    return simgpu.together(logs)


@settings(max_examples=5, deadline=None)
@example(Schedule1F1B, 3, 4, (1.0, 2.0))
@example(ScheduleGPipe, 3, 4, (1.0, 2.0))
@given(
    st.sampled_from([ScheduleGPipe, Schedule1F1B]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]),
)
def test_the_bubble_of_equal_stages(kind, stages, micro_batches, seconds):
    """(P - 1) / (M + P - 1), of GPipe and of 1F1B, which needs M >= P for that."""
    micro_batches = max(stages, micro_batches)
    forward, backward = seconds
    timeline = pipeline(kind, stages, micro_batches, forward, backward)
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1), abs=1e-4)
    for rank in range(stages):
        assert len(timeline.of(rank)) == 2 * micro_batches
        assert timeline.idle(rank) == pytest.approx((stages - 1) * (forward + backward), abs=1e-3)


def test_interleaving_divides_the_bubble():
    """(P - 1) / (V M + P - 1) with V stages a rank (Narayanan et al., 2021, 2.2.2)."""
    timeline = pipeline(ScheduleInterleaved1F1B, 2, 4, each=2)
    assert timeline.bubble == pytest.approx(1 / (2 * 4 + 1), abs=1e-4)
    assert {one.piece.stage for one in timeline.of(1) if one.piece.kind} == {1, 3}


def test_a_stage_s_pieces_are_in_its_schedule_s_order():
    timeline = pipeline(Schedule1F1B, 3, 4)
    first = [(one.piece.kind[0], one.piece.microbatch) for one in timeline.of(0)]
    assert first == [("f", 0), ("f", 1), ("f", 2), ("b", 0), ("f", 3), ("b", 1), ("b", 2), ("b", 3)]
    last = [(one.piece.kind[0], one.piece.microbatch) for one in timeline.of(2)]
    assert last == [(kind, at) for at in range(4) for kind in "fb"]
    for at in range(4):  # a micro-batch goes down and comes back
        passes = {kind: [one for one in timeline.pieces if one.piece[1::2] == (kind, at)] for kind in FORTH_AND_BACK}
        down, back = passes["forward"], passes["backward"]
        assert [one.rank for one in sorted(down, key=lambda one: one.start)] == [0, 1, 2]
        assert [one.rank for one in sorted(back, key=lambda one: one.start)] == [2, 1, 0]
        assert all(a.end <= b.start for a, b in pairwise(down))


FORTH_AND_BACK = ("forward", "backward")


def test_slow_links_make_the_bubble_larger():
    """A stage asks for its next micro-batch behind the one that it computes, as PyTorch's GPipe does: no message moves
    beside that."""
    fast, slow = (pipeline(ScheduleGPipe, 2, 3, link=link) for link in (FREE, 640.0))  # 64 bytes: a tenth of a second
    assert slow.span[1] == pytest.approx(fast.span[1] + 2 * 3 * 0.1, abs=1e-3)
    assert slow.bubble > fast.bubble


def by_hand(size, work_of, link=FREE, record=True):
    logs = []
    for rank in ranks(size, link):
        with simgpu.record_rank() as log:
            work_of(rank)
        logs.append(log)
    return logs


def message(megabytes=1.0):
    return torch.empty(int(megabytes * 10**6), dtype=torch.uint8, device="cuda")


def test_a_receiver_waits_for_its_sender():
    def late(rank):
        if rank == 0:
            with record_function("forward 0"):
                work(2.0)
            dist.send(message(), 1)
        else:
            dist.recv(message(), 0)
            with record_function("forward 0"):
                work(1.0)

    timeline = simgpu.together(by_hand(2, late, link=1e6))
    (one,), (other,) = timeline.of(0), timeline.of(1)
    assert (one.start, one.end) == pytest.approx((0, 2), abs=1e-3)
    assert (other.start, other.end) == pytest.approx((3, 4), abs=1e-3)  # the message takes a second
    assert timeline.seconds == pytest.approx(4, abs=1e-3)
    assert timeline.idle(1) == pytest.approx(3, abs=1e-3)
    assert [one.name for one in timeline.lanes[1] if one.lane == "communication"] == ["recv"]
    assert "rank" in str(timeline) and "about 4.0 s in all (estimate)" in str(timeline)


def test_a_message_waits_for_its_receiver():
    def busy(rank):
        if rank == 0:
            dist.send(message(), 1)
        else:
            work(5.0)
            dist.recv(message(), 0)
            work(1.0)

    timeline = simgpu.together(by_hand(2, busy, link=1e6))
    assert timeline.seconds == pytest.approx(7, abs=1e-3)


def test_messages_are_matched_in_their_order():
    def three(rank):
        for at in range(3):
            if rank == 0:
                work(1.0)
                dist.isend(message(), 1)
            else:
                dist.irecv(message(), 0).wait()
                with record_function(f"got {at}"):
                    work(0.25)

    timeline = simgpu.together(by_hand(2, three))
    assert [one.start for one in timeline.of(1)] == pytest.approx([1, 2, 3], abs=1e-3)


def test_what_was_asked_for_early_is_waited_for_where_it_is_used():
    def exchange(rank):
        groups = [None, dist.new_group([0, 1])]  # NCCL has one stream for all messages between two ranks of a group
        works = [dist.irecv(message(), 1 - rank, group=groups[rank])]
        work(1.0 + rank)
        works.append(dist.isend(message(), 1 - rank, group=groups[1 - rank]))
        for one in works:
            one.wait()
        with record_function("both"):
            work(1.0)

    timeline = simgpu.together(by_hand(2, exchange, link=1e6))
    assert [one.start for one in timeline.pieces] == pytest.approx([3, 3], abs=1e-3)


def test_a_collective_waits_for_the_last():
    def uneven(rank):
        work(1.0 + rank)
        dist.all_reduce(message(1.5))
        with record_function("after"):
            work(1.0)

    logs = by_hand(3, uneven, link=1e6)
    timeline = simgpu.together(logs)
    assert [one.start for one in timeline.pieces] == pytest.approx([5, 5, 5], abs=1e-3)  # 3 s, and 4/3 of 1.5 MB
    assert simgpu.together(logs[:2]).pieces[0].start == pytest.approx(4, abs=1e-3)  # of those that are there
    assert simgpu.together(logs[:1]).pieces[0].start == pytest.approx(3, abs=1e-3)


def test_alone_a_rank_is_as_on_its_own_clock():
    def alone(rank):
        x = torch.ones(512, 512, device="cuda")
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        for _ in range(3):
            work_ = dist.all_reduce(x, async_op=True)
            x = x @ x
            work_.wait()
            dist.barrier()
        event.record()
        with torch.cuda.stream(side):
            side.wait_event(event)
            x.cpu()
        event.synchronize()
        torch.cuda.synchronize()
        seconds.append(on().clock.host - begun[-1])

    for host in (1e-6, 1.0, 30.0):
        begun, seconds = [], []
        with simgpu.simulated_gpu("H100", ranks=4, rank=0, host=host):
            dist.init_process_group("nccl")
            torch.cuda.synchronize()
            begun.append(on().clock.host)
            with simgpu.record_rank() as log:
                begun[-1] = on().clock.host
                alone(0)
            assert type(on().clock) is Clock
        assert simgpu.together([log]).seconds == pytest.approx(seconds[0], rel=1e-9)


def test_what_waits_for_ever_is_said():
    def crossed(rank):
        dist.recv(message(), 1 - rank)
        dist.send(message(), 1 - rank)

    logs = by_hand(2, crossed)
    with pytest.raises(RuntimeError, match="rank 0 waits for message 1 from rank 1; rank 1 waits for message 1 from r"):
        simgpu.together(logs)

    def left_alone(rank):
        if rank == 0:
            dist.all_reduce(message())

    with pytest.raises(RuntimeError, match="for ever: rank 0 waits for all_reduce of ranks 0, 1"):
        simgpu.together(by_hand(2, left_alone))


def test_logs_that_are_refused():
    logs = by_hand(2, lambda rank: None)
    for given_, error, words in (
        ([], ValueError, "no log"),
        ([logs[0], logs[0]], ValueError, "ranks 0, 0"),
        ([1], TypeError, "not 1"),
        ([logs[0], *by_hand(3, lambda rank: None)[1:]], ValueError, "different sizes"),
    ):
        with pytest.raises(error, match=words):
            simgpu.together(given_)
    with pytest.raises(KeyError, match=r"rank 7 .* 0, 1"):
        simgpu.together(logs).of(7)


def test_ranks_that_do_nothing_are_not_idle():
    nothing = Timeline((0, 1), (), {0: (), 1: ()}, 0.0)
    assert nothing.bubble == 0
    assert str(nothing).endswith("about 0 µs in all (estimate), 0.0% of it idle")


def test_a_log_is_a_rank_s():
    with pytest.raises(RuntimeError, match="this process is none"), simgpu.record_rank():
        pass
    with simgpu.simulated_gpu("H100"):
        with pytest.raises(RuntimeError, match="this process is none"), simgpu.record_rank():
            pass
        with simgpu.one_rank(1, of=2), simgpu.record_rank() as log:
            with pytest.raises(RuntimeError, match="taken already"), simgpu.record_rank():
                pass
            work(1.0)
    assert repr(log) == "<log of rank 1 of 2: 1 entries>"


def test_torch_is_as_it_was_after_an_error():
    before = record_function.__enter__, record_function.__exit__, PipelineStage.forward_one_chunk
    with simgpu.simulated_gpu("H100", ranks=2), pytest.raises(ZeroDivisionError), simgpu.record_rank():
        1 / 0  # noqa: B018
    assert (record_function.__enter__, record_function.__exit__, PipelineStage.forward_one_chunk) == before


def test_ranges_with_the_names_of_passes_are_passes():
    assert named("Forward 12")[1:] == ("forward", None, 12)
    assert named("backward of micro-batch 3")[1:] == ("backward", None, 3)
    assert named("optimizer")[1:] == named("forward")[1:] == ("", None, None)


def test_reducing_a_stage_s_gradients_is_named():
    """PyTorch's own range for it is called PP:3REDUCE_GRAD."""
    timeline = pipeline(ScheduleInterleaved1F1B, 2, 2, each=2)
    last = timeline.of(1)[-1].piece
    assert last == ("gradients of stage 1", "gradients", 1, None)
    assert all(one.piece.kind for one in timeline.pieces)
    said = "rank 1 works on 8 pieces, on the gradients of 2 stages once a step, and is idle"
    assert said in schedules.in_words(timeline)


def test_the_figure_of_a_schedule():
    timeline = pipeline(ScheduleInterleaved1F1B, 2, 2, each=2)
    with simgpu.simulated_gpu("H100"):
        figure = schedules.schedule(timeline, "2 ranks")
        axes = figure.axes[0]
        assert axes.get_title(loc="left").startswith(f"Schedule, {timeline.bubble:.1%} idle: 2 ranks")
        assert "rank 1 works on" in figure.description and "is idle" in figure.description
        assert [text.get_text() for text in axes.texts].count("1") == 8  # 4 stages, forward and backward
        table = schedules.table(timeline)
        assert len(table) == len(timeline.pieces)
        assert table["end (ms)"].max() == pytest.approx(1e3 * (timeline.span[1] - timeline.span[0]))
    nameless = simgpu.together(by_hand(2, lambda rank: work(1.0)))
    with pytest.raises(ValueError, match="named nothing"):
        schedules.schedule(nameless)
