"""Small things that a program sees of the simulated GPU, on which nothing larger depends."""

import gzip
import inspect
import json
import pickle
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import transformers
from matplotlib.figure import Figure
from torch import overrides

import simgpu
from simgpu import interrupts
from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.invalid_free import InvalidFree
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.allocator.physical import Device
from simgpu.clock.clock import Clock
from simgpu.command import _parser, main
from simgpu.device.machine import current
from simgpu.dispatch import costs, stacks
from simgpu.distributed.replay import PendingTransfer
from simgpu.errors import NotModelledError
from simgpu.gpus.specs import spec
from simgpu.ops import reduction_scratch, sorting
from simgpu.recording import history, worker
from simgpu.recording.replay import Replay
from simgpu.recording.replay import table as replay_table
from simgpu.recording.trace import Event, Trace
from simgpu.recording.workloads import WORKLOADS, language, models, sweeps, vision
from simgpu.report.findings import Facts, fragmentation
from simgpu.storage import storage_map

aten = torch.ops.aten


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


@pytest.fixture
def ranks():
    with simgpu.simulated_gpu("H100", ranks=4, rank=1) as on:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        yield on


# One GPU after another


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
def test_shapes_of_a_user_s_operator_are_asked_anew_on_each_gpu():
    rows = [3]

    library = torch.library.Library("small_promises", "DEF")
    library.define("rows(Tensor x) -> Tensor")
    library.impl("rows", lambda x: x.new_empty(rows[0]), "Meta")
    for rows[0] in (3, 5):
        with simgpu.simulated_gpu("T4"):
            assert torch.ops.small_promises.rows(torch.ones(2, device="cuda")).shape == (rows[0],)


def test_a_mode_that_came_back_late_is_taken_off_by_the_next_gpu():
    with simgpu.simulated_gpu("T4"):
        stale = overrides._get_current_function_mode_stack()[-1]
    overrides._push_mode(stale)
    try:
        with simgpu.simulated_gpu("T4"):
            assert stale not in overrides._get_current_function_mode_stack()
    finally:
        if stale in overrides._get_current_function_mode_stack():
            overrides._pop_mode()


def test_a_mode_that_an_interrupt_put_on_twice_is_left_for_good():
    mode = overrides.BaseTorchFunctionMode()
    before = stacks.functions()
    stacks.enter(mode)
    overrides._push_mode(mode)
    stacks.leave(mode)
    assert stacks.functions() == before


def test_an_owner_that_was_never_made_is_collected_in_silence():
    """As where an interrupt comes before the first line of its __init__."""
    simgpu.simulated_gpu.__new__(simgpu.simulated_gpu).__del__()


# torch.cuda


def test_the_driver_is_there_after_torch_s_own_initialisation(gpu):
    torch._C._cuda_init()
    assert torch.cuda.is_initialized()


def test_seeds_are_those_that_a_state_was_taken_with(gpu):
    for seed in (5, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        other = torch.Generator(device="cuda")
        other.set_state(generator.get_state())
        assert other.initial_seed() == generator.initial_seed() == seed


def test_events_of_the_history_happened_now(gpu):
    """Microseconds since 1970 (c10/util/ApproximateClock.h)."""
    begun = time.time()
    torch.cuda.memory._record_memory_history()
    torch.ones(1, device="cuda")
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    assert all(begun - 1 <= event["time_us"] / 1e6 <= time.time() + 1 for event in events if "time_us" in event)
    assert events


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="a PyTorch without torch.accelerator.Graph")
def test_graphs_of_the_accelerator_are_refused_in_cuda_s_words(gpu):
    """The words are the oracle's (tests/data/oracle/public_names.json)."""
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: cuda"):
        torch.accelerator.Graph()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_number_less_a_tensor_lies_as_on_the_host(gpu, dtype):
    def layouts(device):
        one = torch.ones((), dtype=dtype, device=device)
        shapes = one.expand(100, 7), torch.ones(7, 100, dtype=dtype, device=device).t(), one.expand(4, 1, 3)
        return [(1 - x).stride() for x in shapes]

    assert layouts("cuda") == layouts("cpu")


# Estimated times


def test_a_product_takes_the_time_of_its_transpose():
    a100 = spec("A100-80GB")
    a, b = torch.empty(1, 4096, device="meta"), torch.empty(4096, 128, device="meta")
    found = [costs.cost(a100, aten.mm.default, pair, {}, (torch.mm(*pair),)) for pair in ((a, b), (b.t(), a.t()))]
    assert found[0] == found[1]


def test_attention_computes_fewer_operations_a_second_than_products():
    h100 = spec("H100")

    def rate(operator, args, outputs):
        return costs.operations(operator, args, {}, outputs) / costs.cost(h100, operator, args, {}, outputs)[1]

    x = torch.empty(8, 16, 4096, 128, dtype=torch.bfloat16, device="meta")
    w = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    attention = rate(aten._scaled_dot_product_flash_attention.default, (x, x, x), (x,))
    assert 0 < attention < 0.9 * rate(aten.mm.default, (w, w), (w,))


# Ranks


def test_a_message_is_from_whom_it_came(ranks):
    x = torch.empty(4, device="cuda")
    assert dist.irecv(x, src=3)._source_rank() == 3


def test_gathering_on_the_host_takes_nothing_of_the_gpu(ranks):
    torch.ones(1, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    dist.all_gather([torch.empty(3) for _ in range(4)], torch.ones(3))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_log_begins_when_the_gpu_has_done_what_was_asked_before(ranks):
    x = torch.empty(16384, 16384, device="cuda")
    torch.cuda.synchronize()
    begun = current().clock.host
    x @ x
    torch.cuda.synchronize()
    whole = current().clock.host - begun
    x @ x
    with simgpu.record_rank() as log:
        at = current().clock.host
        torch.cuda.synchronize()
        assert current().clock.host - at < whole / 100
    assert log is not None


def test_objects_for_a_group_that_is_none_of_ours_are_pytorch_s_business(tmp_path):
    with simgpu.simulated_gpu("T4"):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            with pytest.raises((pickle.PicklingError, AttributeError)):
                dist.broadcast_object_list([lambda: 0])
        finally:
            dist.destroy_process_group()


# Recordings


def test_sizes_of_what_is_recorded():
    """BERT's heads have 64 channels in both sizes (Devlin et al., 2018), and lengths are whole warps."""
    for size in (models.BERT_BASE, models.BERT_LARGE):
        assert size["hidden_size"] == 64 * size["num_attention_heads"]
        assert size["intermediate_size"] == 4 * size["hidden_size"]
    assert all(length % 32 == 0 for length in sweeps.LENGTHS)
    assert {f"length-{length}" for length in sweeps.LENGTHS} <= set(WORKLOADS)


def test_a_worker_saves_what_it_records(tmp_path, monkeypatch):
    file = tmp_path / "small.json.gz"

    def small(stage):
        x = torch.ones(100, device="cuda")
        stage("made")
        del x

    monkeypatch.setattr(worker, "WORKLOADS", {"small": small})
    worker.main(["small", str(file), '{"made by": "a test"}', "--simulated", "T4"])
    assert Trace.load(file).stages[0].name == "made"


def test_stages_lie_where_they_were_called():
    def workload(stage):
        kept = []
        for number in range(3):
            kept.append(torch.ones(100, device="cuda"))
            stage(str(number))

    with simgpu.simulated_gpu("T4"):
        trace, _ = history.record("three", workload, {})
    actions = [[event.action for event in trace.events[: stage.at]] for stage in trace.stages]
    assert [one.count("alloc") for one in actions] == [1, 2, 3]


def test_what_an_emptied_cache_gives_back_is_of_the_stage_before():
    def workload(stage):
        x = torch.ones(100, device="cuda")
        stage("made")
        del x
        torch.cuda.empty_cache()
        stage("emptied")
        torch.ones(100, device="cuda")
        stage("made again")

    with simgpu.simulated_gpu("T4"):
        trace, _ = history.record("emptied", workload, {})
    made, emptied, again = ([event.action for event in trace.events[: stage.at]] for stage in trace.stages)
    assert made == ["segment_alloc", "alloc"]
    assert emptied == [*made, "free_completed", "segment_free"]
    assert again == [*emptied, *made, "free_completed"]


def test_the_table_of_replays_is_in_the_units_that_it_names():
    one = SimpleNamespace(
        recorded=SimpleNamespace(workload="w", peak=3 * 2**20, median_ms=2.0),
        simulated=SimpleNamespace(median_ms=3.0),
        events=(7, 5),
        outside=[(None, None), (5 * 2**20, 7 * 2**20)],
        peak_error=-512,
        reserved_error=2 * 2**20,
        time_error=0.5,
    )
    found = replay_table([one]).loc["w"].to_dict()
    assert found == {
        "events equal": "5 of 7",
        "peak (MiB)": 3,
        "allocated off by (B)": -512,
        "reserved off by (MiB)": 2,
        "outside PyTorch (MiB)": 5,
        "simulated outside (MiB)": 7,
        "step (ms)": 2,
        "simulated step (ms)": 3,
        "time error (%)": 50,
    }


def test_recordings_without_stages_agree():
    assert Replay(Trace("w", [], []), Trace("w", [], [])).peak_error == 0


# Pictures and commands


def test_a_plan_is_of_one_batch_unless_more_is_said():
    assert _parser().parse_args(["fit", "model"]).batch == 1
    assert _parser().parse_args(["fit", "model", "--batch", "3"]).batch == 3


def test_the_picture_of_a_run_says_what_its_colours_are(tmp_path, monkeypatch):
    said = []
    saved = Figure.savefig

    def looked_at(figure, *args, **kwargs):
        legend = figure.axes[0].get_legend()
        said.extend([] if legend is None else [text.get_text() for text in legend.get_texts()])
        return saved(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", looked_at)
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.ones(1000, device='cuda')\n")
    assert main(["run", "--gpu", "T4", "--out", str(tmp_path / "out"), str(script)]) == 0
    assert {"reserved", "all of the GPU"} <= set(said)


# What is refused


def test_a_class_that_is_refused_can_be_named_and_not_made(gpu):
    assert torch.cuda.gds.GdsFile.__name__ == "GdsFile"
    with pytest.raises(NotModelledError, match=r"torch\.cuda\.gds\.GdsFile is not modelled"):
        torch.cuda.gds.GdsFile("file", 0)


@pytest.mark.parametrize(
    ("targets", "lengths", "said"),
    [
        (torch.ones(5), (2, 2), "Expected tensor to have size 4 at dimension 0, but got size 5"),
        (torch.ones(3), (2, 2), "Expected tensor to have size 4 at dimension 0, but got size 3"),
        (torch.ones(2, 2), (3, 1), "Expected tensor to have size at least 3 at dimension 1, but got size 2"),
        (torch.ones(2, 3), (2, 1), ""),
        (torch.ones(4), (2, 2), ""),
    ],
)
def test_targets_of_ctc_that_the_lengths_do_not_fit(gpu, targets, lengths, said):
    scores = torch.randn(6, 2, 5, device="cuda").log_softmax(-1)
    with torch.backends.cudnn.flags(enabled=False):
        arguments = scores, targets.long().cuda(), (6, 6), lengths
        if not said:
            assert torch.nn.functional.ctc_loss(*arguments).shape == ()
            return
        with pytest.raises(RuntimeError, match=said):
            torch.nn.functional.ctc_loss(*arguments)


def test_objects_come_from_a_rank_that_is_named(ranks):
    with pytest.raises(ValueError, match="Must specify global_rank or group_rank"):
        dist.recv_object_list([None], device=torch.device("cuda"))


def test_two_transfers_of_the_same_ranks_are_two():
    same = {"player": None, "own": 1, "transfer": None, "place": 0, "ready": 0.0, "before": None}
    one, other = PendingTransfer(**same), PendingTransfer(**same)
    assert one != other and len({one, other}) == 2


def test_vgg16_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert sum(p.numel() for p in vision.vgg16().parameters()) == 138_357_544


def test_convolutions_of_vision_are_recorded_with_tf32(gpu):
    allowed = []

    def make():
        layers = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000))
        layers.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
        return layers

    with torch.backends.cudnn.flags(allow_tf32=False):
        vision.training(lambda name: None, make, batch=1)
    assert allowed[:2] == [True, True]


def test_what_the_cpu_lacks_in_half_precision_is_computed_in_single():
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 4.0], [2.0, 2.0]], dtype=torch.float16)
    targets = torch.tensor([0, 1, 1, 0])
    with pytest.raises(NotImplementedError):
        torch.nn.functional.multi_margin_loss(x, targets)
    with simgpu.simulated_gpu("A100-80GB", values=True):
        found = torch.nn.functional.multi_margin_loss(x.cuda(), targets.cuda())
        assert (found.dtype, found.shape) == (torch.float16, ())
        assert torch.equal(found.cpu(), torch.nn.functional.multi_margin_loss(x.float(), targets).half())


@pytest.mark.parametrize(("batches", "shape"), [((), (64, 48)), ((8,), (64, 48)), ((1,), (16, 8))])
def test_the_clock_knows_how_deep_a_product_is(gpu, monkeypatch, batches, shape):
    asked, filled = [], costs.filled
    monkeypatch.setattr(costs, "filled", lambda *sizes: asked.append(sizes) or filled(*sizes))
    rows, columns = shape
    torch.matmul(torch.zeros(*batches, rows, 32, device="cuda"), torch.zeros(*batches, 32, columns, device="cuda"))
    assert asked == [(batches[0] if batches else 1, rows, columns, 32, 108)]


def test_what_pytorch_would_give_back_a_part_of_is_named():
    allocator = CachingAllocator(Device(64 * 2**20))
    block = allocator.malloc(512)
    assert str(InvalidFree(block)) == f"cudaFree of {block!r}, a part of a segment"
    assert not InvalidFree(block).inside and InvalidFree(allocator.malloc(512)).inside


def test_kernels_are_not_tuned(gpu):
    assert torch.cuda.tunable.is_enabled() is False
    torch.cuda.tunable.enable(False)
    with pytest.raises(NotModelledError, match=r"torch\.cuda\.tunable\.enable"):
        torch.cuda.tunable.enable()


def test_a_storage_goes_to_the_host_and_to_the_gpu_and_nowhere_else(gpu):
    storage = torch.zeros(4, device="cuda").untyped_storage()
    assert storage.to(device="cpu").device.type == "cpu"
    assert storage.to(device="cuda:0").data_ptr() == storage.data_ptr()
    with pytest.raises(NotModelledError):
        storage.to(device="xpu")
    with pytest.raises(NotImplementedError, match="without XPU support"):  # PyTorch's own words
        torch.zeros(4).untyped_storage().to(device="xpu")


def test_a_reduction_out_of_reach_is_halved_where_it_reaches_farthest():
    """TensorIteratorBase::get_dim_to_split (aten/src/ATen/TensorIterator.cpp): the largest (size - 1) × stride."""
    rows = reduction_scratch.Dim(3, 1_000_000_000, None)
    columns = reduction_scratch.Dim(1_000_000_000, 1, None)
    found = [[dim.size for dim in part] for part in reduction_scratch.pieces([rows, columns], 4, 4)]
    assert found[:2] == [[1, 500_000_000], [1, 500_000_000]]
    assert len(found) == 6 and {sizes[0] for sizes in found} == {1}


def test_what_a_compiled_region_has_begun_runs_while_the_host_waits_for_a_batch():
    clock, flushed = Clock(spec("A100-80GB")), []
    clock.region = SimpleNamespace(flush=lambda: flushed.append(clock.host))
    clock.wait_for_batch(1.0)
    assert flushed == [0.0] and clock.host == 1.0


@pytest.mark.parametrize("weighted", [False, True])
def test_a_synced_batch_norms_gradient_has_the_cpu_s_values(weighted):
    """batch_norm_backward_elemt, with the sums of one rank: what native_batch_norm_backward gives."""
    torch.manual_seed(0)
    x, grad, weight = torch.randn(4, 3, 5), torch.randn(4, 3, 5), torch.rand(3) + 0.5 if weighted else None
    mean, inverse = x.mean((0, 2)), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt()
    sums = grad.sum((0, 2)), (grad * (x - mean.view(1, 3, 1))).sum((0, 2)), torch.tensor([20], dtype=torch.int32)
    given = [grad, x, mean, inverse, weight, *sums]
    expected, *_ = aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, inverse, True, 1e-5, [True, False, False]
    )
    with simgpu.simulated_gpu("H100", values=True):
        found = aten.batch_norm_backward_elemt(*(None if one is None else one.cuda() for one in given)).cpu()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_synced_batch_norm_has_the_cpu_s_values(weighted):
    """batch_norm_elemt, with the statistics of one rank: what batch_norm gives."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 3, 5), *(torch.rand(2, 3) + 0.5 if weighted else (None, None))
    mean, inverse = x.mean((0, 2)), (x.var((0, 2), unbiased=False) + 1e-5).rsqrt()
    expected = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    with simgpu.simulated_gpu("H100", values=True):
        given = [None if one is None else one.cuda() for one in (x, weight, bias, mean, inverse)]
        found = aten.batch_norm_elemt(*given, 1e-5).cpu()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("rows", "least"), [(20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (4_001, 400)]
)
def test_rows_that_are_worth_several_blocks_of_threads(rows, least):
    """aten/src/ATen/native/cuda/TensorTopK.cu, should_use_multiblock."""
    assert sorting.by_many_blocks(rows, least) and not sorting.by_many_blocks(rows, least - 1)


@pytest.mark.parametrize(("cache", "said"), [(3, True), (2, True), (1, False)])
def test_a_cache_that_holds_what_is_missing_is_named(cache, said):
    facts = Facts(
        *(2**30, 2**20, 2**22), parts={"cache": cache * 2**20}, lines=(), missing=2 * 2**20, cache=cache * 2**20
    )
    assert any("expandable_segments" in found.remedy for found in fragmentation(facts)) == said


def test_two_dashes_end_the_options_of_run(tmp_path, capsys):
    (tmp_path / "script.py").write_text("import sys; print('arguments', sys.argv[1:])")
    assert (
        main(["run", "--gpu", "T4", "--", str(tmp_path / "script.py"), "--values", "--"]) == 3
    )  # no GPU memory was used
    assert capsys.readouterr().out.startswith("arguments ['--values', '--']\n")


def test_a_gradient_that_another_stream_uses_is_kept_for_it(gpu):
    """The engine records the stream of the node that a gradient goes to (torch/csrc/autograd/input_buffer.cpp)."""
    side, x = torch.cuda.Stream(), torch.ones(64, 64, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    seen = []
    y.register_hook(seen.append)
    (y * y).sum().backward()
    assert set(storage_map.of(seen[0]).block.stream_uses) == {side.stream_id}


def test_the_text_of_an_out_of_memory_error():
    assert str(OutOfMemory("CUDA out of memory.", size=512)) == "CUDA out of memory."


def test_the_same_batch_is_recorded_twice_under_two_names():
    assert WORKLOADS["batch-8"].keywords == WORKLOADS["length-128"].keywords


def test_two_steps_of_accumulation_are_told_stage_by_stage(gpu, monkeypatch):
    small = partial(transformers.GPT2Config, n_layer=1, n_embd=64, n_head=2, vocab_size=1000)
    monkeypatch.setattr(transformers, "GPT2Config", small)
    told = []
    language.gpt2_training(told.append, batch=1, length=8, micro_batches=2)
    step = [*2 * ["forward", "backward"], "step"]
    assert told == ["model", "input", *step, "first step", *step, "second step"]


def test_accumulation_is_of_as_many_sequences_as_without_it():
    whole = inspect.signature(language.gpt2_training).parameters["batch"].default
    for name in ("accumulation", "accumulation-checkpointing-bf16"):
        given = WORKLOADS[name].keywords
        assert given["batch"] * given["micro_batches"] == whole


def test_a_process_of_three_gibibytes_has_three():
    with simgpu.simulated_gpu("T4"):
        WORKLOADS["settings-default"](lambda name: None)
        total = torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.get_per_process_memory_fraction() * total == pytest.approx(3 * 2**30)
        assert torch.cuda.max_memory_reserved() <= 3 * 2**30


def test_where_no_mode_is_on_a_model_is_exported_as_ever(gpu):
    with stacks.none():
        assert torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph is not None


@pytest.fixture
def heard():
    """Ctrl-C has Python's handler, also where a shell started the tests in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_that_came_too_early_comes_later():
    with pytest.raises(KeyboardInterrupt):
        if interrupts.raise_later(KeyboardInterrupt(), ()):
            while True:
                time.sleep(0.01)


def test_a_trace_whose_columns_are_not_alike_is_none(tmp_path):
    path = tmp_path / "trace.json.gz"
    Trace("w", [Event("alloc", 512, 0, ""), Event("free_completed", 512, 0, "")], []).save(path)
    columns = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("numbers", "events_where"):
        path.write_bytes(gzip.compress(json.dumps(columns | {name: [*columns[name], 0]}).encode()))
        with pytest.raises(ValueError, match="is not a trace"):
            Trace.load(path)
