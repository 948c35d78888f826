"""One rank of a plan, run by PyTorch's own code: what it holds, and that a pipeline's stages and shards differ."""

from dataclasses import replace

import pytest

from helpers import plans, ranks
from helpers.plans import Model, Plan

SMALL = Model(layers=4, hidden=256, heads=8, shared_heads=4, inner=512, vocabulary=1024, length=128)
PLANS = [Plan(shards=4, micro_batches=2), Plan(shards=2, tensor=2), Plan(shards=2, replicas=2, checkpointed=False)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_before_the_step_a_rank_holds_its_share_of_weights_and_states(plan):
    step = ranks.simulate(SMALL, plan, SMALL.layers)
    own = 12 * SMALL.parameters // (plan.shards * plan.tensor)  # weights and AdamW's two states in float32
    assert own <= step.before < own + 2**20  # and the token ids
    assert step.peak > step.before


@pytest.mark.filterwarnings("ignore")
def test_each_stage_of_a_pipeline_runs():
    plan = Plan(pipeline=2, shards=2, micro_batches=2)
    first, last = (ranks.simulate(SMALL, plan, 2, stage) for stage in (0, 1))
    assert first.peak != last.peak  # the first has the embedding, the last the output layer and the loss


@pytest.mark.filterwarnings("ignore")
def test_context_parallelism_divides_the_tokens_and_not_the_states():
    long = replace(SMALL, length=65_536)
    whole, part = (ranks.simulate(long, Plan(shards=4 // ways, context=ways), 2) for ways in (1, 4))
    assert min(part.before, whole.before) >= 12 * replace(long, layers=2).parameters // 4  # weights and AdamW's states
    assert part.peak - part.before < 0.5 * (whole.peak - whole.before)


@pytest.mark.filterwarnings("ignore")
def test_context_and_tensor_parallelism_run_together():
    one, two = (ranks.simulate(SMALL, Plan(context=2, tensor=tensor), 2) for tensor in (1, 2))
    assert two.before < one.before


def test_context_parallelism_in_a_pipeline_is_refused():
    with pytest.raises(ValueError, match=r"is only estimated; PP 2 · CP 2, 2 × 1 was given"):
        ranks.simulate(SMALL, Plan(pipeline=2, context=2, micro_batches=2), 1)


def test_the_ends_of_a_stage_have_a_plan_for_their_modules():
    assert set(ranks.ENDS) == {"tokens", "norm", "head"}
    assert plans.KINDS[-1] == "tensor"  # the ranks of a tensor group are neighbours


@pytest.mark.filterwarnings("ignore")
def test_a_trace_has_the_kernels_of_the_step_and_slower_links_send_longer():
    plan, sending = Plan(shards=4, micro_batches=2), []
    assert ranks.simulate(SMALL, plan, 1).trace == ()
    for link in (None, 1e9):
        kernels = [one for one in ranks.simulate(SMALL, plan, 1, trace=True, link=link).trace if one["cat"] == "kernel"]
        assert any(one["name"] == "mm" for one in kernels)
        sending.append(sum(one["dur"] for one in kernels if one["name"].startswith("ncclDevKernel_")))
    assert 0 < sending[0] < sending[1]


@pytest.mark.filterwarnings("ignore")
def test_expandable_segments_change_what_is_reserved_and_not_the_peak():
    default, expandable = (
        ranks.simulate(SMALL, Plan(shards=4, micro_batches=2), 2, expandable=value) for value in (False, True)
    )
    assert expandable.peak == pytest.approx(default.peak, rel=0.01)
    assert expandable.reserved != default.reserved
