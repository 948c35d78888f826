"""What a program reads on the stub engine: values that are known are right, and those that are not are listed."""

import pytest

import simgpu
from simgpu.stub import engine

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)


@pytest.fixture
def run(tmp_path):
    def runs(text: str, **more):
        path = tmp_path / "script.py"
        path.write_text(text)
        return simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="H100", **more)

    return runs


KNOWN = """
import torch
gpu = "cuda"

def unpacked(positions):  # as in transformers' masking_utils
    first = positions[:, :1] - 1
    steps = torch.diff(positions, prepend=first, dim=-1)
    return bool(((steps != 1).cumsum(-1)[:, -1] == 0).all())

assert unpacked(torch.arange(64, device=gpu).unsqueeze(0) + 3)
assert not unpacked(torch.tensor([[0, 1, 2, 0, 1]], device=gpu))
with torch.device(gpu):
    assert torch.arange(2, 9, 3).tolist() == [2, 5, 8]
    assert torch.full((2, 2), 7).sum().item() == 28
host = torch.tensor([[1, 1, 0], [1, 1, 1]])
mask = host.to(gpu)
host.zero_()
assert mask.cpu().tolist() == [[1, 1, 0], [1, 1, 1]]
assert mask.sum(-1).max().item() == 3 and torch.equal(mask, mask.clone())
assert mask.bool().t().contiguous()[:, 0].logical_not().nonzero is not None
assert (mask.bool() & ~torch.zeros(3, dtype=torch.bool, device=gpu)).any()
assert (torch.ones(3, device=gpu, dtype=torch.bfloat16) + 1).dtype == torch.bfloat16
assert (torch.ones(3, device=gpu, dtype=torch.int32) - 0.5).dtype == torch.float32
assert (1 - torch.ones((), device=gpu, dtype=torch.int32)).dtype == torch.int32
padded = torch.nn.functional.pad(torch.tensor([[1, 2]], device=gpu), (0, 1), value=-100)
assert padded.tolist() == [[1, 2, -100]] and torch.stack([padded, padded], 1).sum().item() == -194
assert torch.jit is not None and torch.zeros(2, 3, dtype=torch.long, device=gpu)[1].shape == (3,)
"""


def test_values_that_follow_from_the_program_are_right(run):
    report = run(KNOWN)
    assert report.completed, report.ended
    assert not report.placeholder_values


ROUNDED = """
import torch
counts = torch.arange(1, 1001, device="cuda")
tenths = (counts / 10).tolist()  # a GPU multiplies by the reciprocal of a number of the host
assert tenths == (torch.arange(1, 1001).float() * (1 / torch.tensor(10.0))).tolist()
assert tenths != (torch.arange(1, 1001) / 10).tolist()
assert (counts / torch.tensor([10], device="cuda")).tolist() == (torch.arange(1, 1001) / 10).tolist()
chunks = (counts[-1] / 256).ceil().to(torch.int64) * 256
assert len(range(0, chunks, 256)) == 4
mask = counts > 10
assert mask.float().sum().item() == 990 and mask.sum(dtype=torch.float32).item() == 990
assert (1.5 * counts.to(torch.float64) - 0.5)[3].item() == 5.5
print((counts / 10).sum().item())  # the order of adding decides
print(torch.add(counts / 10, counts / 10, alpha=0.1)[0].item())  # a GPU multiplies and adds in one rounding
print((counts.bfloat16() * 0.1)[0].item())  # a GPU does not round 0.1 to bfloat16
assert torch.where(counts > 2, counts.half(), -counts.half())[:4].tolist() == [-1, -2, 3, 4]
"""


def test_operators_that_round_once_give_what_a_gpu_gives(run):
    report = run(ROUNDED)
    assert report.completed, report.ended
    assert sorted(place.rpartition(":")[2] for _, place, _ in report.placeholder_values) == ["13", "14", "15"]


COMPARED = """
import torch
x = torch.rand(100, device="cuda")
assert torch.allclose(x * 2, x + x) and (x * 2).allclose(x + x, atol=1e-3)
torch.testing.assert_close(x * 2, x + x)
assert not torch.allclose(torch.tensor([1.0], device="cuda"), torch.tensor([2.0], device="cuda"))
try:
    torch.testing.assert_close(x.long(), x)
except AssertionError as error:
    assert "dtype" in str(error)
else:
    raise SystemExit("dtypes were not compared")
"""


def test_comparisons_of_what_is_not_known_are_taken_to_hold(run):
    report = run(COMPARED)
    assert report.completed, report.ended
    assert sorted((what, int(place.rpartition(":")[2])) for what, place, _ in report.placeholder_values) == [
        ("a comparison", 4),
        ("a comparison", 5),
    ]
    assert "Comparisons that were taken to hold" in str(report)


COMPILED = """
import torch
gpu = "cuda"

@torch.compile
def chunk(hidden, labels):
    valid = (labels != -100).t().reshape(-1).reshape(8, 2).t()
    return (hidden[..., :1] * valid.unsqueeze(-1)).sum(), valid.sum(), labels[..., 1:].clone()

@torch.compile(mode="reduce-overhead")
def replayed(hidden, ids):
    return hidden * 2, (ids > 2).sum()

@torch.compile
def sized(hidden, labels):
    rows = int((labels != -100).sum())
    return hidden.new_zeros(rows, 4) + hidden.sum()

@torch.compile
def changed(labels):
    labels[0] = 0
    return (labels != 0).sum()

@torch.compile
def rounded(numbers):
    last = numbers.cumsum(0)[-1]
    return (last / 7).ceil().long(), (last / 4).ceil().long() * 4, (last + 4052).half().long(), last.half().long()

labels = torch.tensor([[-100] * 3 + [1, 2, 3, 4, 5], [1] * 8]).to(gpu)
_, count, shifted = chunk(torch.randn(2, 8, 16, device=gpu, requires_grad=True), labels)
assert count.item() == 13 and shifted.tolist() == [[-100, -100, 1, 2, 3, 4, 5], [1] * 7]
assert (labels != -100).sum().item() == 13  # the kernels that were given a pointer to it did not change it
for start in range(4):
    ids = torch.arange(start, start + 6).to(gpu)
    assert replayed(torch.randn(6, device=gpu), ids)[1].item() == (ids > 2).sum().item()
assert (labels != -100).sum().item() == 13  # nor did those of the graphs that were replayed
assert sized(torch.randn(3, device=gpu), torch.tensor([1, -100, 5]).to(gpu)).shape == (2, 4)
with torch.inference_mode():
    assert chunk(torch.randn(2, 8, 16, device=gpu), torch.tensor([[-100] * 8, [1] * 8]).to(gpu))[1].item() == 8
sevenths, padded, wide, narrow = rounded(torch.arange(10, device=gpu))
assert padded.item() == 48 and narrow.item() == 45  # 45 / 4 is a float32 number, and 45 a float16 one
print(wide.item())  # 4097 is not a float16 number
print(sevenths.item())  # a fused kernel may round differently
print(changed(labels).item())  # what a graph changes in place is not followed
print(labels.sum().item())
"""
GRAPH = """
import torch
gpu = "cuda"
given, apart, result = (torch.ones(4, dtype=torch.long, device=gpu) for _ in range(3))
halves = torch.arange(4, device=gpu) / 2
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    result.add_(given)
assert given.sum().item() == 4 and halves.tolist() == [0, 0.5, 1, 1.5]
graph.replay()
assert apart.sum().item() == 4
print(given.sum().item())  # a kernel of the graph was given it
print(halves[3].item())  # a matmul of the graph may have written to it
later = torch.arange(3, device=gpu)
graph.replay()
assert later.tolist() == [0, 1, 2]
"""


def test_a_replay_of_a_graph_forgets_what_its_kernels_were_given(run):
    report = run(GRAPH)
    assert report.completed, report.ended
    places = [int(place.rpartition(":")[2]) for _, place, _ in report.placeholder_values]
    assert sorted(places) == [1 + GRAPH[: GRAPH.index(text)].count("\n") for text in ("print(given", "print(halves")]


NOT_FOLLOWED = ("print(wide", "print(sevenths", "print(changed", "print(labels")


def test_integers_that_compiled_code_computes_are_known(run):
    report = run(COMPILED)
    assert report.completed, report.ended
    places = [int(place.rpartition(":")[2]) for _, place, _ in report.placeholder_values]
    assert sorted(places) == [1 + COMPILED[: COMPILED.index(text)].count("\n") for text in NOT_FOLLOWED]


INFERENCE = """
import torch
with torch.inference_mode():
    mask = torch.tensor([1, 0, 1], device="cuda")
    assert mask.any() and mask.sum().item() == 2 and mask.nonzero().shape == (2, 1)
    assert mask.bool().all().item() is False and mask.tolist() == [1, 0, 1]
    other = torch.zeros(3, dtype=torch.long, device="cuda")
    assert torch.cat([mask, other]).sum().item() == 2
    mask.add_(1)
    if mask.sum().item() == 5: print("written by a kernel")
    other.copy_(torch.ones(3, dtype=torch.long))
    if other.any(): print("written by a copy")
    third = torch.ones(3, dtype=torch.long, device="cuda")
    third.zero_()
    if third.any(): print("written by a memset")
    scores = torch.tensor([[0.25, 0.5], [0.75, 1.0]], device="cuda")
    assert len(scores[scores[:, 1] > 0.6]) == 1
"""


def test_values_in_inference_mode(run):
    report = run(INFERENCE)
    assert report.completed, report.ended
    assert sorted(int(place.rpartition(":")[2]) for _, place, _ in report.placeholder_values) == [10, 12, 15]


SIZES = """
import torch
gpu = "cuda"
boxes = torch.tensor([[0, 3, .5], [0, 1, .25], [1, 3, .75], [3, 2, .5]]).to(gpu)  # an image's number, a class, a place
image = boxes[:, 0]
found, counts = image.unique(return_counts=True)
assert found.tolist() == [0, 1, 3] and counts.tolist() == [2, 1, 1]
assert torch.zeros(4, counts.max(), 2, device=gpu).shape == (4, 2, 2)
assert (image == 3).nonzero().tolist() == [[3]]
assert boxes[image == 0, 1:].shape == (2, 2) and boxes[image == 0, 1].tolist() == [3, 1]
assert torch.where(boxes[:, 1] > 2)[0].tolist() == [0, 2]
labels = torch.tensor([[-100, 5, 7], [-100, -100, 2]]).to(gpu)
states = torch.randn(2, 3, 8, device=gpu)
assert states[labels != -100].shape == (3, 8)
assert labels.masked_select(labels > 0).tolist() == [5, 7, 2]
assert torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 1]).cuda()).tolist() == [1, 2, 1]
assert torch.repeat_interleave(torch.tensor([1, 0, 3], device=gpu)).shape == (4,)
assert torch.bincount(torch.tensor([1, 0, 3], device=gpu)).shape == (4,)
assert torch.nn.functional.one_hot(torch.tensor([1, 0, 3], device=gpu)).shape == (3, 4)
fives = labels == 5
with torch.inference_mode():
    assert torch.where(fives)[1].shape == (1,)
assert boxes.double().half()[1, 2].item() == 0.25 and boxes.cpu()[3, 2] == 0.5
"""


def test_sizes_of_known_values_are_right(run):
    report = run(SIZES)
    assert report.completed, report.ended
    assert report.sizes == () and not report.placeholder_values


UNKNOWN = """
import torch
ones = torch.ones(4, dtype=torch.long, device="cuda")
ones.add_(1)
if ones.sum() == 8: print("written to")
norm = torch.nn.BatchNorm1d(3).cuda()
norm(torch.randn(4, 3, device="cuda"))
if (norm.running_mean == 0).all(): print("written without a new version")
half = torch.zeros(2, dtype=torch.long, device="cuda")
half[0] = 5
assert half.tolist() == [0, 0]
if (torch.tensor([0.1, 2.0]).cuda() * 3).sum().item() > 0: print("random")
large = torch.ones(1 << 17, dtype=torch.long, device="cuda")
while large.any(): print("large")
print(torch.rand((), device="cuda").item())
torch.empty(int(torch.rand((), device="cuda").item()), device="cuda")
for _ in range(int(torch.rand((), device="cuda").item())): pass
"""


def test_what_is_not_known_is_listed_by_what_it_decides(run):
    report = run(UNKNOWN)
    assert report.completed, report.ended
    lines = {
        what: sorted(int(place.rpartition(":")[2]) for _, place, *_ in found)
        for what, found in (("branches", report.branches), ("sizes", report.sizes), ("all", report.placeholder_values))
    }
    assert lines == {"branches": [5, 8, 12, 14], "sizes": [17], "all": [5, 8, 11, 12, 14, 15, 16, 17]}
    page = str(report)
    assert "Branches that were taken as if the value was 0" in page and "4 lines depends on values" in page
    assert "sizes at 1 line depend on values" in report.verdict.reason
    assert "nothing of PyTorch's own code" not in page and "up to" not in page


TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def count(out, number):
    tl.store(out + number, 1)

@triton.jit
def count_all(table, entries: tl.constexpr):
    for i in range(entries):
        tl.store(tl.load(table + i).to(tl.pointer_type(tl.int32)), 1)

def zeros(count=4): return torch.zeros(count, dtype=torch.int32, device="cuda")

found, other, part = zeros(), zeros(), zeros(1024)
count[(1,)](found, 1)
assert not other.any()
if found.any(): print("given to the kernel")
count[(1,)](part[512:], 2)
if part[0].item(): print("a part of it was")
found.zero_()
found = zeros()
assert not found.any()
pointed = [zeros(), zeros()]
count_all[(1,)](torch.tensor([one.data_ptr() for one in pointed], device="cuda"), 2)
for one in pointed:
    if one.any(): print("given in a table")
assert not other.any()
graph, still = torch.cuda.CUDAGraph(), torch.ones(1, dtype=torch.int32, device="cuda")
with torch.cuda.graph(graph):
    more = still + 1
assert still.item() == 1
graph.replay()
assert more.item() == 0
"""


def test_a_kernel_that_is_not_pytorchs_may_have_written_where_it_was_pointed_to(run):
    if engine.find(engine.DEFAULT_VERSION).triton is None:
        pytest.skip("the triton of torch 2.13.0 is not installed")
    report = run(TRITON)
    assert report.completed, report.ended
    assert sorted(int(place.rpartition(":")[2]) for _, place, _ in report.placeholder_values) == [18, 20, 27, 34]


ERROR = """
import torch, weakref
torch.cuda.set_per_process_memory_fraction(0.01)
kept = torch.empty(2**28, device="cuda", dtype=torch.uint8)
half = torch.empty(2**28, device="cuda", dtype=torch.uint8)
try:
    half.bitwise_not() + half.bitwise_not()
except torch.OutOfMemoryError:
    assert torch.cuda.memory_allocated() == 2 * 2**28, torch.cuda.memory_allocated()
"""


def test_an_error_keeps_no_arguments_alive(run):
    report = run(ERROR)
    assert report.completed, report.ended


SOUND = """
import torch
x = torch.randn(1000, 100, device="cuda")
total = torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(x)], 1.0, error_if_nonfinite=True)
torch.linalg.eig(x[:32, :32])
print(bool(torch.isfinite(x).all()), bool(torch.isnan(x).any()), bool(torch.isinf(x.half()).any()))
"""


def test_a_run_is_taken_to_be_sound(tmp_path, capfd):
    """Whether numbers are finite is answered as for a program that trains well."""
    path = tmp_path / "script.py"
    path.write_text(SOUND)
    report = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="T4")
    assert report.completed, report.ended
    assert "True False False" in capfd.readouterr().out
    assert report.branches == ()


def test_a_size_that_depends_on_values_names_the_engine_that_has_values(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import torch\nx = torch.randn(1000, device='cuda')\ny = x[x > 0] * 2\n")
    report = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="T4")
    assert report.outcome == "undecided" and "use --engine meta --values" in report.bounds[0]


PRINTED = """
import torch
loss = torch.randn(1, device="cuda").sum()
print(loss, torch.randn(2, 3, device="cuda"), torch.tensor(7, device="cuda"))

@torch.compile
def scaled(x):
    return x @ x.T * x.new_tensor(0.3)  # Inductor prints the constant

scaled(torch.randn(64, 64, device="cuda"))
"""


def test_printing_a_tensor_decides_no_size(run, capfd):
    """PyTorch's printing counts the nonzero values, which is not a size of the program's."""
    report = run(PRINTED)
    assert report.completed, report.ended
    assert not report.sizes and report.outcome == "fits"
    printed = capfd.readouterr().out
    assert "tensor(0., device='cuda:0') tensor(..., size=(2, 3), device='cuda:0') tensor(7, device='cuda:0')" in printed
