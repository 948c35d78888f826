"""What collectives give on one rank of N, and what they count."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import simgpu
from simgpu.distributed.kinds import KINDS, kind

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

RANKS, RANK = 8, 3


@pytest.fixture(params=[False, True], ids=["", "values"])
def traffic(request):
    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=RANK, values=request.param):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        yield simgpu.traffic()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_all_ranks_have_what_this_one_has(traffic, device):
    def ones():
        return torch.tensor([1.0, 2.0, 3.0], device=device)

    for operation, expected in (
        ("SUM", [8, 16, 24]),
        ("AVG", [1, 2, 3]),
        ("MAX", [1, 2, 3]),
        ("PRODUCT", [1, 256, 6561]),
    ):
        x = ones()
        if operation == "AVG" and device == "cpu":
            continue
        dist.all_reduce(x, op=getattr(dist.ReduceOp, operation))
        assert x.tolist() == expected
    parts = [torch.empty(3, device=device) for _ in range(RANKS)]
    dist.all_gather(parts, ones())
    assert [part.tolist() for part in parts] == [[1, 2, 3]] * RANKS
    given = torch.arange(2.0 * RANKS, device=device)
    mine = torch.empty(2, device=device)
    dist.reduce_scatter(mine, list(given.chunk(RANKS)))
    assert mine.tolist() == [6 * RANKS, 7 * RANKS]
    exchanged = torch.empty(2 * RANKS, device=device)
    dist.all_to_all_single(exchanged, given)
    assert exchanged.tolist() == [6, 7] * RANKS
    x = ones()
    dist.broadcast(x, src=0)
    assert x.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("ranks", "expected"), [(3, [1, 6]), (4, [0, 0])])
def test_bits_that_an_even_number_of_ranks_has_are_gone(ranks, expected):
    """What each rank has `x`, so x ^ x ^ ..."""
    with simgpu.simulated_gpu("H100", ranks=ranks, rank=1):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        x = torch.tensor([1, 6])
        dist.all_reduce(x, op=dist.ReduceOp.BXOR)
        assert x.tolist() == expected


def test_each_is_counted_with_its_bytes(traffic):
    x = torch.empty(1024, device="cuda")
    whole = torch.empty(1024 * RANKS, device="cuda")
    dist.all_reduce(x)
    dist.distributed_c10d._get_default_group()._allgather_base(whole, x)
    dist.distributed_c10d._get_default_group()._reduce_scatter_base(x, whole, dist.ReduceScatterOptions())
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 4), dist.P2POp(dist.irecv, x.clone(), 2)]):
        request.wait()
    got = {kind: (one.count, one.nbytes, one.sent) for kind, one in traffic.by_kind().items()}
    nbytes = 4096
    assert got == {
        "all_reduce": (1, nbytes, 2 * 7 * nbytes // 8),
        "all_gather": (1, 8 * nbytes, 7 * nbytes),
        "reduce_scatter": (1, 8 * nbytes, 7 * nbytes),
        "send": (1, nbytes, nbytes),
        "recv": (1, nbytes, 0),
    }
    assert traffic.sent == sum(one.sent for one in traffic)
    assert "all_reduce" in str(traffic)
    with pytest.raises(KeyError, match="is not a kind of collective"):
        traffic["allreduce"]


@pytest.mark.parametrize("name", KINDS)
def test_alone_nothing_is_sent(name):
    assert kind(name).bytes_sent(1000, 1) == (1000 if name == "send" else 0)


@pytest.mark.parametrize(
    ("name", "root_sends", "root_receives", "other_sends", "other_receives", "busiest"),
    [
        ("gather", 0, 7000, 1000, 0, 7000),
        ("scatter", 7000, 0, 0, 1000, 7000),
        ("all_gather", 875, 875, 875, 875, 875),
        ("all_reduce", 1750, 1750, 1750, 1750, 1750),
        ("broadcast", 1000, 0, 1000, 1000, 1000),
        ("barrier", 0, 0, 0, 0, 0),
    ],
)
def test_bytes_by_role(name, root_sends, root_receives, other_sends, other_receives, busiest):
    one = kind(name)
    assert (one.bytes_sent(1000, 8, True), one.bytes_received(1000, 8, True)) == (root_sends, root_receives)
    assert (one.bytes_sent(1000, 8, False), one.bytes_received(1000, 8, False)) == (other_sends, other_receives)
    assert one.bytes_of_busiest(1000, 8) == busiest


def test_groups_and_meshes(traffic):
    group = dist.new_group([1, 3, 5])
    assert (dist.get_rank(group), group.size()) == (1, 3)
    assert dist.new_group([0, 1]) == dist.GroupMember.NON_GROUP_MEMBER
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("copies", "parts"))
    assert mesh.get_coordinate() in ((0, 3), [0, 3])
    dist.all_reduce(torch.ones(3, device="cuda"), group=mesh["parts"].get_group())
    assert [one.ranks for one in traffic] == [4]


def test_groups_split_off():
    with simgpu.simulated_gpu("H100", ranks=8, rank=5):
        dist.init_process_group("nccl", device_id=torch.device("cuda", 5))
        mesh = init_device_mesh("cuda", (2, 4))
        assert mesh.get_group(1).size() == 4
        assert dist.get_rank(mesh.get_group(1)) == 1


def test_objects(traffic):
    everybodys = [None] * RANKS
    dist.all_gather_object(everybodys, {"rank": dist.get_rank()})
    assert everybodys == [{"rank": RANK}] * RANKS
    told = ["a", {"b": 1}]
    dist.broadcast_object_list(told, src=0)
    assert told == ["a", {"b": 1}]
    mine = [None]
    dist.scatter_object_list(mine, list(range(RANKS)), src=0)
    assert mine == [RANK]


def test_a_group_knows_its_devices():
    with simgpu.simulated_gpu("H100", ranks=2):
        dist.init_process_group("nccl")
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(2))


def test_functional_collectives(traffic):
    functional, world = torch.ops._c10d_functional, dist.group.WORLD.group_name
    x = torch.ones(RANKS, 16, device="cuda")
    before = torch.cuda.memory_allocated()
    whole = functional.wait_tensor(functional.all_gather_into_tensor(x, RANKS, world))
    assert whole.shape == (RANKS * RANKS, 16)
    assert torch.cuda.memory_allocated() - before == whole.nbytes
    part = functional.wait_tensor(functional.reduce_scatter_tensor(whole, "sum", RANKS, world))
    assert part.shape == x.shape
    assert functional.wait_tensor(functional.all_reduce(x, "sum", world)).sum().item() == 8 * x.numel()
    assert [one.name for one in traffic] == ["all_gather", "reduce_scatter", "all_reduce"]


@pytest.mark.parametrize(
    ("outputs", "inputs", "said"),
    [
        ([1] * 8, [2] * 8, "Split sizes doesn't match total dim 0 size"),
        ([2] * 8, [0] * 8, "Split sizes doesn't match total dim 0 size"),
        ([2] * 8, [4] * 4, "Number of tensor splits not equal to group size"),
    ],
)
def test_parts_that_are_none_of_the_tensor_are_refused(traffic, outputs, inputs, said):
    x = torch.ones(16, 4, device="cuda")
    with pytest.raises(RuntimeError, match=said):
        dist.all_to_all_single(torch.empty_like(x), x, outputs, inputs)
    with pytest.raises(RuntimeError, match="does not divide equally across group size"):
        dist.all_to_all_single(torch.empty(9, device="cuda"), torch.empty(8, device="cuda"))
    assert not traffic


def test_tensors_of_unequal_sizes_that_others_give_are_not_known(traffic):
    given = [torch.full((rank + 1,), float(rank), device="cuda") for rank in range(RANKS)]
    found = [torch.zeros(rank + 2, device="cuda") for rank in range(RANKS)]
    dist.all_to_all(found, given)
    assert found[RANK - 1].tolist() == [RANK] * (RANK + 1)  # of the size that this rank has for itself


@pytest.mark.parametrize("values", [False, True])
def test_gathering_unequal_lengths(values):
    """It moves the bytes of all ranks, allocates nothing, and gives what this rank has where a length is its own."""
    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=RANK, values=values):
        dist.init_process_group("nccl")
        given = torch.full((RANK + 1,), 7.0, device="cuda")
        found = [torch.full((rank + 1,), 0.0, device="cuda") for rank in range(RANKS)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dist.all_gather(found, given)
        assert torch.cuda.max_memory_allocated() == before
        assert found[RANK].tolist() == [7] * (RANK + 1)
        nbytes = 4 * sum(range(RANKS + 1))
        (one,) = simgpu.traffic()
        assert (one.name, one.nbytes, one.sent) == ("all_gather", nbytes, nbytes * 7 // 8)


def test_a_rank_answers_every_collective_of_a_process_group():
    """A method that a later PyTorch adds would otherwise be the one of C++, which has no backend."""
    with simgpu.simulated_gpu("H100", ranks=RANKS, rank=RANK):
        dist.init_process_group("nccl")
        answered = {name for kind in type(dist.group.WORLD).__mro__[:-1] for name in vars(kind)}
    collectives = ("all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier")
    of_torch = {name for name in dir(dist.ProcessGroup) if name.startswith(collectives)}
    assert len(of_torch) > 15
    assert sorted(of_torch - answered) == []


EXPERTS = """
gate, x = torch.nn.Linear(64, 8, device="cuda"), torch.randn(128, 64, device="cuda")
expert = gate(x).argmax(-1)
given = torch.bincount(expert, minlength=8)
received = torch.empty_like(given)
dist.all_to_all_single(received, given)
given, received = given.tolist(), received.tolist()
mine = x.new_empty(sum(received), 64)
dist.all_to_all_single(mine, x[expert.argsort()], received, given)
"""


def test_experts_that_get_what_the_values_say(tmp_path):
    found = {"torch": torch, "dist": dist}
    with simgpu.simulated_gpu("H100", ranks=8, rank=3, values=True):
        dist.init_process_group("nccl")
        exec(EXPERTS, found)
        assert sum(found["given"]) == 128
        assert found["mine"].shape == (8 * found["given"][3], 64)
    with simgpu.simulated_gpu("H100", ranks=8, rank=3):
        dist.init_process_group("nccl")
        with pytest.raises(simgpu.errors.NoValueError, match="values=True"):
            exec(EXPERTS, {"torch": torch, "dist": dist})
    script = tmp_path / "experts.py"
    script.write_text("import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n" + EXPERTS)
    found = simgpu.run(script, ranks=8, rank=3)
    assert found.outcome == "failed" and "--values computes them" in str(found)


CARRIES_NOT = "TypeError: Input tensor data type is not supported for NCCL process group: "
CALLS = {
    "all_gather": lambda x: dist.all_gather([x, x], x),
    "all_to_all": lambda x: dist.all_to_all_single(x, x),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "gather": lambda x: dist.gather(x, [x, x], 0),
    "recv": lambda x: dist.recv(x, 1),
    "scatter": lambda x: dist.scatter(x, [x, x], 0),
    "all_reduce AVG": lambda x: dist.all_reduce(x, dist.ReduceOp.AVG),
    "all_reduce BXOR": lambda x: dist.all_reduce(x, dist.ReduceOp.BXOR),
    "all_reduce PREMUL_SUM": lambda x: dist.all_reduce(x, dist._make_nccl_premul_sum(2.0)),
    "all_reduce SUM": dist.all_reduce,
    "reduce MAX": lambda x: dist.reduce(x, 0, dist.ReduceOp.MAX),
    "reduce SUM": lambda x: dist.reduce(x, 0),
    "reduce_scatter SUM": lambda x: dist.reduce_scatter(x, [x, x]),
}


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [
        (
            "int16",
            dict.fromkeys(CALLS, CARRIES_NOT + "Short")
            | dict.fromkeys(("all_to_all", "gather", "scatter"), "RuntimeError: Unconvertible NCCL type Short"),
        ),
        (
            "complex64",
            {
                "all_reduce BXOR": "ValueError: all_reduce does not support RedOpType.BXOR on complex tensors",
                "gather": "RuntimeError: Unconvertible NCCL type ComplexFloat",
                "reduce MAX": "RuntimeError: reduce does not support\x04on complex tensors",
                "reduce_scatter SUM": CARRIES_NOT + "ComplexFloat",
            },
        ),
        (
            "float8_e5m2fnuz",
            dict.fromkeys(
                [name for name in CALLS if name.startswith(("all_reduce", "reduce_scatter"))],
                "RuntimeError: Unsupported Float8 type for NCCL reduction",
            ),
        ),
        (
            "bool",
            {
                "all_reduce AVG": "TypeError: Cannot use ReduceOp.AVG with boolean inputs",
                "all_reduce BXOR": "ValueError: Cannot use ReduceOp.BXOR with NCCL",
                "all_reduce PREMUL_SUM": "TypeError: PreMulSum Data type must be half, float, bfloat16 or double",
            },
        ),
        ("bfloat16", {"all_reduce BXOR": "ValueError: Cannot use ReduceOp.BXOR with NCCL"}),
    ],
)
def test_nccl_refuses_what_it_does_not_carry_or_know(dtype, refused):
    """On GPUs alone. What is said is the oracle's (PyTorch's CUDA host code under stub libraries, torch 2.13.0)."""
    found = {}
    with simgpu.simulated_gpu("H100", ranks=2):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        for name, call in CALLS.items():
            try:
                call(torch.empty(8, dtype=getattr(torch, dtype), device="cuda"))
            except (RuntimeError, TypeError, ValueError) as error:
                found[name] = f"{type(error).__name__}: {error}"
        dist.all_reduce(torch.zeros(2, dtype=torch.int16), dist.ReduceOp.BXOR)  # on the host, which is gloo's
    assert found == refused
