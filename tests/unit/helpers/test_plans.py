"""Plans of large runs: their arithmetic, beside what PyTorch's own code takes and sends as one rank."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import labkit
from helpers import layer_bytes, models, plans
from helpers.plans import MODELS, Model, Plan

SMALL = Model(layers=4, hidden=256, heads=8, shared_heads=4, inner=512, vocabulary=1024, length=128)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_that_torch_counts(name):
    m = MODELS[name]
    with torch.device("meta"):
        built = models.Llama(2, m.hidden, m.heads, m.shared_heads, m.inner, m.vocabulary)
    rest = (m.layers - 2) * sum(p.numel() for p in built.layers[0].parameters())
    assert m.parameters == sum(p.numel() for p in built.parameters()) + rest


def test_the_sizes_are_those_of_the_papers():
    assert [round(m.parameters / 1e9, 1) for m in MODELS.values()] == [6.7, 70.6, 405.9]


def test_a_layer_on_one_gpu_keeps_what_the_layers_formula_says():
    m, tokens = MODELS["70B"], 4096
    small = 8 * tokens + 4 * m.heads * tokens + 24  # of norms and of attention, for each token
    kept = layer_bytes.llama_layer(1, tokens, m.hidden, m.heads, m.shared_heads, m.inner)
    without_inputs = plans.layer_keeps(m, Plan(), tokens)
    assert kept - small == without_inputs


def test_groups_and_first_ranks_of_a_mesh():
    plan = Plan(pipeline=2, replicas=2, shards=2, context=2, tensor=2, micro_batches=2)
    assert plan.gpus == 32
    assert plan.group("tensor") == [0, 1]
    assert plan.group("context") == [0, 2]
    assert plan.group("shards", "context") == [0, 2, 4, 6]
    assert plan.group("replicas") == [0, 8]
    assert [plan.first_rank(stage) for stage in (0, 1)] == [0, 16]
    assert plan.batch == 2 * 2 * 2


def test_the_groups_are_those_of_a_device_mesh():
    plan = Plan(pipeline=2, shards=2, tensor=2, micro_batches=2)
    with labkit.simulated_gpu("H100"), labkit.one_rank(0, of=8):
        dist.init_process_group("nccl")
        mesh = dist.init_device_mesh("cuda", plan.dims, mesh_dim_names=plans.KINDS)
        for kind in plans.KINDS:
            assert dist.get_process_group_ranks(mesh.get_group(kind)) == plan.group(kind)


@pytest.mark.parametrize(
    ("layers", "stages", "wanted"),
    [(126, 8, [15, 16, 16, 16, 16, 16, 16, 15]), (4, 1, [4]), (5, 2, [2, 3]), (8, 4, [2, 2, 2, 2])],
)
def test_what_is_left_over_goes_to_the_middle(layers, stages, wanted):
    assert plans.layers_of(layers, stages) == wanted


def test_refused():
    with pytest.raises(ValueError, match="tensor=0"):
        Plan(tensor=0)
    with pytest.raises(ValueError, match="4 stages want as many micro-batches; micro_batches=2"):
        Plan(pipeline=4, micro_batches=2)
    with pytest.raises(ValueError, match="stage=2 is none of 2"):
        Plan(pipeline=2, micro_batches=2).first_rank(2)
    with pytest.raises(ValueError, match="4 layers are cut into 1 to 4 stages, not 5"):
        plans.layers_of(4, 5)
    with pytest.raises(ValueError, match="gpus=0"):
        plans.candidates(SMALL, 0, 8)


def test_candidates_divide_gpus_and_sequences():
    found = plans.candidates(SMALL, 16, 64, replicas=(1, 2), context=(1, 2))
    assert found and len(set(found)) == len(found)
    assert {plan.gpus for plan in found} == {16}
    assert {plan.batch for plan in found} == {64}
    assert max(plan.tensor for plan in found) == SMALL.shared_heads
    assert max(plan.pipeline for plan in found) == SMALL.layers
    assert plans.candidates(MODELS["405B"], 1024, 64) == []


def test_the_best_fit_and_come_in_the_order_of_time():
    m, room = MODELS["70B"], 70 * 2**30
    found = plans.candidates(m, 64, 512)
    best = plans.best(m, found, "H100", 6e14, room)
    times = [sum(plans.seconds(m, plan, "H100", 6e14).values()) for plan in best]
    assert times == sorted(times)
    assert all(plans.peak(m, plan) <= room for plan in best)
    assert len(best) < len(found)
    kinds = [tuple(size > 1 for size in plan.dims) for plan in plans.of_each_kind(best)]
    assert len(set(kinds)) == len(kinds) and plans.of_each_kind(best)[0] is best[0]


def test_shards_divide_states_only_and_behind_a_pipeline_nothing_whole():
    m = MODELS["405B"]
    one, two = (plans.memory(m, Plan(8, 1, shards, 1, 8, 1, 8), 1) for shards in (8, 16))
    assert two["states"] * 2 == one["states"]
    assert {name: size for name, size in one.items() if name != "states"} == {
        name: size for name, size in two.items() if name != "states"
    }
    own = 16 * m.of_layer // 8
    assert one["gathered weights"] + one["whole gradients"] == 6 * own


def test_a_longer_sequence_on_as_many_more_gpus_of_context_takes_the_same():
    m = MODELS["70B"]
    short, long = Plan(shards=16), Plan(shards=8, context=2)
    assert plans.peak(m, short) == plans.peak(replace(m, length=2 * m.length), long)


def test_time_of_one_gpu_is_its_operations():
    found = plans.seconds(SMALL, Plan(micro_batches=3), "H100", 1e12)
    assert found == {
        "compute": 3 * plans.operations(SMALL, Plan()) / 1e12,
        "tensor": 0,
        "context": 0,
        "pipeline": 0,
        "bubble": 0,
        "data": 0,
    }


def test_the_bubble_is_the_share_of_a_pipelines_time_that_the_formula_says():
    plan = Plan(pipeline=4, micro_batches=8)
    found = plans.seconds(MODELS["7B"], plan, "H100", 6e14)
    assert found["bubble"] / sum(found.values()) == pytest.approx(3 / 11)


def test_a_ring_over_several_machines_leaves_each_by_as_many_cards_as_it_has_gpus_there():
    m = MODELS["70B"]
    sent = plans.sent(m, Plan(shards=16))["data"]
    assert plans.links(m, Plan(shards=16)) == (sent - sent // 8, sent // 8)
    assert plans.links(m, Plan(shards=16), per_node=16) == (sent, 0)
    sent = plans.sent(m, Plan(shards=8, tensor=8))  # the ranks of a shard group are each on a machine of their own
    assert plans.links(m, Plan(shards=8, tensor=8)) == (sent["tensor"], sent["data"])


def test_hybrid_shards_in_a_machine_send_only_sums_of_gradients_over_the_network():
    m, plan = MODELS["70B"], Plan(replicas=8, shards=8, micro_batches=8)
    sent = plans.sent(m, plan)
    assert plans.links(m, plan) == (sent["data"], sent["replicas"])
    assert sent["replicas"] == plans.sent(m, replace(plan, micro_batches=1))["replicas"]  # once per step
    assert sent["replicas"] == m.layers * m.of_layer * 2 * 4 * 7 // (8 * 8)


def sent_by(traffic, mesh):
    """Returns the bytes that a rank has sent, by the mesh dimension in which it sent them."""
    names = {mesh.get_group(kind).group_name: kind for kind in plans.KINDS}
    sums = dict.fromkeys(plans.KINDS, 0)
    for one in traffic:
        sums[names[one.group]] += one.sent
    return sums


@pytest.mark.parametrize(("replicas", "micro"), [(1, 1), (1, 2), (2, 1), (2, 3)])
def test_fsdp_sends_what_the_plan_says(replicas, micro):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    plan = Plan(shards=4, replicas=replicas, micro_batches=micro)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    m = SMALL
    with labkit.simulated_gpu("A100-80GB"), labkit.one_rank(0, of=plan.gpus) as me:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", plan.dims, mesh_dim_names=plans.KINDS)
        data = mesh["replicas", "shards"] if replicas > 1 else mesh["shards"]
        with torch.device("meta"):
            sizes = m.layers, m.hidden, m.heads, m.shared_heads, m.inner, m.vocabulary
            net = models.Llama(*sizes, first=False, last=False)
        for layer in net.layers:
            fully_shard(layer, mesh=data, mp_policy=half)
        fully_shard(net, mesh=data, mp_policy=half).to_empty(device="cuda")
        x = torch.zeros(1, m.length, m.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for number in range(micro):
            net.set_requires_all_reduce(number == micro - 1)
            net(x).sum().backward()
        found, paper = sent_by(me.traffic, mesh), plans.sent(m, plan)
    assert found["shards"] == paper["data"]
    assert found["replicas"] == paper["replicas"]


@pytest.mark.parametrize("stage", range(2))
def test_a_part_of_a_llama_has_the_ends_of_its_stage(stage):
    with torch.device("meta"):
        part = models.Llama(1, 64, 4, 2, 128, 100, 16, first=stage == 0, last=stage == 1)
        x = torch.zeros(2, 16, dtype=torch.long) if stage == 0 else torch.zeros(2, 16, 64)
    assert part(x).shape == ((2, 16, 64) if stage == 0 else (2, 16, 100))
    assert [name for name in ("tokens", "norm", "head") if isinstance(getattr(part, name), torch.nn.Identity)] == (
        ["norm", "head"] if stage == 0 else ["tokens"]
    )
