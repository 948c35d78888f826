"""Runs two steps of a plan on a simulated GPU, and reports memory and time."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from simgpu.clock.clock import Reading
from simgpu.clock.estimates import TimeEstimate, estimated
from simgpu.device import machine as machines
from simgpu.dispatch.costs import precision
from simgpu.engines import STUB
from simgpu.errors import NoValueError
from simgpu.fitting import (
    chunked_loss,
    experts,
    float8,
    lora,
    on_stub,
    optimizers,
    parallel,
    preferences,
    quantized,
    serving,
    tensor_parallel,
)
from simgpu.fitting.dtypes import DTYPES, FLOAT8, check_capability
from simgpu.fitting.plan import OF_TRAINING, Plan
from simgpu.fitting.progress import Silent
from simgpu.fitting.subject import Subject
from simgpu.gpus.specs import Spec, spec
from simgpu.report.owners import KV_CACHE, PARAMETERS, TEMPORARIES
from simgpu.report.report import Report, without_replays
from simgpu.report.speed import Shape, Speed, shape_of, speed
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY
from simgpu.report.watch import Watch
from simgpu.session import simulated_gpu
from simgpu.unmodeled import IncompleteEstimateWarning

STEPS = 2
"""Number of steps; the optimizer's states exist after the first step, so the second one has the peak."""

UNLIMITED = 2**50
"""Bytes of a GPU on which everything fits, to measure what a plan would need."""

SILENT = Silent()

EIGHT_BIT = (
    "8-bit states are those of bitsandbytes' AdamW8bit; in 32 bits stay parameters below 4,096 elements and, as "
    "transformers' Trainer has it, embeddings. The time of a step is that of SGD."
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Holds what a plan needs.

    `short`: the report, but if `replayed` is given, without what replays find, which it returns. `step`: seconds of a
    step on the simulated clock. `time`: the estimate from it, and `speed`: its tokens/s and MFU; None if they are not
    known. `dtype`: that of the parameters, or None if
    memory ran out before the model existed. `formula`: what is computed by formula, or "". `retried`: whether the
    allocator reached the GPU's limit and freed its cache. `served`: of a server, the bytes of its weights, and the most
    bytes above weights and cache; None if memory ran out.
    """

    plan: Plan
    short: Report
    step: float
    dtype: torch.dtype | None = None
    formula: str = ""
    retried: bool = False
    time: TimeEstimate | None = None
    speed: Speed | None = None
    served: tuple[int, int] | None = None
    replayed: Callable[[], dict[str, Any]] | None = None

    @cached_property
    def report(self) -> Report:
        """Returns the whole report. A search for the largest batch doesn't need it, and replays take time."""
        return self.short if self.replayed is None else dataclasses.replace(self.short, **self.replayed())


def measure(subject: Subject, plan: Plan, gpu: str, memory: int | None = None, tell: Silent = SILENT) -> Measured:
    """Runs two steps of the plan, or for inference a prompt and one more token; `tell` receives each stage.

    Raises ValueError if the model cannot be created or decides by values. Other errors of the model are raised too,
    except an out-of-memory error.
    """
    check_capability(spec(gpu), *plan.capability)
    if plan.dtype == FLOAT8:
        float8.check_tokens(plan.batch, plan.length or subject.length)
    if plan.context_parallel is not None:
        _check_context(subject, plan)
    if plan.engine == STUB:
        tell.stage(f"runs {STEPS} steps on the stub engine" if plan.train else "runs on the stub engine")
        report = on_stub.measured(subject, plan, gpu, memory)
        return Measured(plan, report, report.step, retried=True, time=report.step_time)
    world = {"ranks": plan.ranks, "rank": plan.rank, "per_node": plan.per_node, "link": plan.link}
    with simulated_gpu(gpu, memory, **world) as on, warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteEstimateWarning)  # the report names them
        # an operator that needs a value raises an error
        warnings.filterwarnings("ignore", message="simulated tensors have no values")
        machine = machines.on()
        if plan.ranks is not None:
            parallel.joined()
        readings: list[Reading] = []
        shape: Shape | None = None
        saved: tuple[int, int] = (0, 0)
        dtype = served = None
        ending = COMPLETED
        with Watch(machine) as watch:
            try:
                tell.stage("makes the model")
                model, reference = model_of(subject, plan), reference_of(subject, plan)
                watch.owners.roots = [model] if reference is None else [model, reference]
                dtype = next((one.dtype for one in model.parameters()), None)
                shape = shape_of(model)
                saved = lora.quantized(model) if plan.four_bit else saved

                def note(words: str) -> None:
                    readings.append(_now(machine))
                    if words:
                        tell.stage(words)

                if plan.requests is not None:
                    served = serving.serve(
                        model, subject, plan, note, lambda tensor: watch.owners.claim(tensor, KV_CACHE)
                    )
                else:
                    train(model, subject, plan, note, reference) if plan.train else serve(model, subject, plan, note)
            except torch.OutOfMemoryError:
                ending = OUT_OF_MEMORY
            except NoValueError as error:
                raise ValueError(f"the model decides by values, which fit does not compute: {error}") from None
            watch.close()
            report, replayed = without_replays(watch, f"{subject.name} ({plan})", ending)
    timed = not plan.weights and plan.requests is None
    step = readings[-1].since(readings[-2]) if timed and len(readings) > 1 else Reading()
    time = estimated(step, machine.spec.key, machine.clock.slowness)
    found = Measured(
        plan,
        report,
        step.seconds,
        dtype,
        retried=machine.allocator.stats()["num_alloc_retries"] > 0,
        time=time,
        speed=None if shape is None or time is None else _speed(subject, plan, shape, time, machine.spec, dtype),
        served=served,
        replayed=replayed,
    )
    if not timed:  # not all kernels have a time
        found = dataclasses.replace(found, short=dataclasses.replace(found.short, time=None))
    return _with_formulas(found, on.total_memory, saved)


def _check_context(subject: Subject, plan: Plan) -> None:
    """Raises ValueError if the sequences of a model cannot be shared by ranks."""
    length = plan.length or subject.length
    if length is None:
        raise ValueError(f"{subject.name} has no length that ranks could share")
    if length % (2 * (plan.context_parallel or 1)):
        dataclasses.replace(plan, length=length)  # raises the error of the plan


def _now(machine) -> Reading:
    machine.clock.synchronize()
    return machine.clock.reading()


def _speed(
    subject: Subject, plan: Plan, shape: Shape, time: TimeEstimate, gpu: Spec, dtype: torch.dtype | None
) -> Speed | None:
    """Returns the speed of a step of training, None for inference and for models without a length."""
    length = plan.length or subject.length
    if not plan.train or length is None or dtype is None or plan.expert_parallel is not None or plan.dpo:
        return None  # the parameters of a rank are not those of a token, and a reference computes too
    computed = DTYPES[plan.autocast] if plan.autocast else dtype
    peak = None if plan.dtype == FLOAT8 else gpu.peak_flops.get(precision(gpu, computed))
    tokens = plan.batch * length * plan.accumulate // (plan.context_parallel or 1)
    return speed(shape, length, tokens, time, peak)


def model_of(subject: Subject, plan: Plan) -> nn.Module:
    """Creates the model on the GPU according to the plan."""
    of_a_server = plan.ranks is not None and plan.requests is not None
    device = "meta" if plan.sharded or plan.weights or plan.expert_parallel or of_a_server else "cuda"
    try:
        with torch.device(device):
            model = subject.build(plan.weights_dtype)
    except (torch.OutOfMemoryError, NoValueError):
        raise
    except Exception as error:  # a configuration may be inconsistent
        raise ValueError(f"{subject.name} cannot be made: {type(error).__name__}: {error}") from error
    model.to(device)
    if plan.attention is not None and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(plan.attention)  # pyright: ignore[reportCallIssue]
    if plan.lora is not None:
        model = lora.adapt(model, plan.lora)
    if plan.dtype == FLOAT8:
        model = float8.convert(model, plan.engine)
    if of_a_server:
        model = tensor_parallel.divide(model, subject.config, plan.ranks or 1)
    if plan.weights:
        model = quantized.quantize(model, plan.weights)
    if plan.weights or of_a_server:
        return parallel.materialized(model)
    if plan.dpo:
        model = preferences.apply(model, subject)
    if plan.chunked_loss:
        model = chunked_loss.apply(model, subject, plan.chunked_loss)
    if plan.checkpoint and plan.train:
        _checkpoint(model, every=1 if plan.checkpoint is True else 2)
    return model if plan.ranks is None else _of_a_rank(model, plan)


def _of_a_rank(model: nn.Module, plan: Plan) -> nn.Module:
    """Divides a model among the ranks of the plan, and returns this rank's part."""
    apart, mesh = [], None
    if plan.expert_parallel is not None:
        mesh, group = experts.joined(plan.ranks or 1, plan.expert_parallel)
        apart = experts.divide(model, group, plan.imbalance or 1)
    if plan.sharded:
        dtype = DTYPES[plan.autocast] if plan.autocast else None
        return parallel.sharded(model, layers_of(model), dtype, apart, mesh)
    return parallel.replicated(parallel.materialized(model) if apart else model, apart)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Returns the model's repeated layers: the children of its largest list of modules, by parameters."""
    lists = [one for one in model.modules() if isinstance(one, (nn.ModuleList, nn.Sequential)) and len(one) > 1]
    return list(max(lists, key=lambda one: sum(p.numel() for p in one.parameters()), default=()))


def _checkpoint(model: nn.Module, every: int) -> None:
    """Applies checkpointing to every repeated layer or every second one, so that it saves only its input."""
    layers = layers_of(model)
    if not layers:
        raise ValueError("checkpoints stand between repeated layers, and the model has no list of them")
    _without_cache(model)
    for layer in layers[::every]:
        layer.forward = _checkpointed(layer.forward)


def _without_cache(model: nn.Module) -> None:
    """Switches off the cache of keys and values, as transformers does when it trains with checkpointing.

    The cache would hold every layer's keys and values until the loss, and checkpointing exists to free them.
    """
    for one in model.modules():
        config = getattr(one, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False


def _checkpointed(forward):
    def call(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return call


def _inputs(subject: Subject, plan: Plan) -> tuple[tuple, dict, dict]:
    """Returns the positional and keyword arguments of a call, and the whole batch."""
    batch = subject.batch(2 * plan.batch if plan.dpo else plan.batch, plan.length or subject.length)
    on_gpu = {name: one.to("cuda") for name, one in batch.items()}
    on_gpu = {
        name: one.to(plan.weights_dtype) if plan.weights_dtype and one.is_floating_point() else one
        for name, one in on_gpu.items()
    }
    named = {name: one for name, one in on_gpu.items() if name and name != "target"}
    return ((on_gpu[""],) if "" in on_gpu else ()), named, on_gpu


def reference_of(subject: Subject, plan: Plan) -> nn.Module | None:
    """Creates the reference of a DPO plan, or None if there is none; with LoRA it is the model itself.

    FSDP2 shards it, and with DDP each rank has the whole. As in TRL, its parameters require gradients that nobody
    computes, so autocast caches their casts during a forward pass.
    """
    if not plan.dpo or plan.lora is not None:
        return None
    alone: dict[str, Any] = {} if plan.sharded else dict.fromkeys(("ranks", *OF_TRAINING))
    return model_of(subject, dataclasses.replace(plan, checkpoint=False, **alone)).eval()


def train(model, subject: Subject, plan: Plan, tell, reference: nn.Module | None = None) -> None:
    """Trains for STEPS steps; `tell` receives each of them, and "" at the end. `reference`: of `reference_of`."""
    model.train()
    assert plan.train is not None
    optimizer = optimizers.made(plan.train, model)
    mesh = None
    if plan.context_parallel is not None:
        mesh = parallel.context_mesh(plan.context_parallel, plan.rotate)
    for number in range(STEPS):
        tell(f"step {number + 1} of {STEPS}")
        for part in range(plan.accumulate):
            args, named, batch = _inputs(subject, plan)
            sync = parallel.without_sync(model, last=part == plan.accumulate - 1)
            with parallel.told_of_unused(), sync, parallel.shared_sequences(mesh, batch):
                if plan.dpo:
                    loss = preferences.loss_of(model, reference, named, lambda: _around(plan)) / plan.accumulate
                else:
                    with _around(plan):
                        loss = subject.loss(model(*args, **named), batch) / plan.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("")


@contextlib.contextmanager
def _around(plan: Plan):
    """Enters the contexts around the forward pass: autocast, and saving activations on the CPU."""
    with contextlib.ExitStack() as stack:
        if plan.autocast and not plan.sharded:
            stack.enter_context(torch.autocast("cuda", dtype=DTYPES[plan.autocast]))
        if plan.offload:
            stack.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=True))
        yield


def serve(model, subject: Subject, plan: Plan, tell) -> None:
    """Runs a prompt of full length for each request, and then one more token."""
    model.eval()
    with torch.no_grad(), _around(plan):
        tell("the prompt")
        args, named, _ = _inputs(subject, plan)
        named.pop("labels", None)
        if subject.cache is None:
            model(*args, **named)
            return tell("")
        found = model(*args, **named, use_cache=True, logits_to_keep=1)
        tell("one token more")
        token = torch.zeros(plan.batch, 1, dtype=torch.long, device="cuda")
        model(input_ids=token, past_key_values=found.past_key_values, use_cache=True)
        return tell("")


def _with_formulas(found: Measured, total: int, saved: tuple[int, int]) -> Measured:
    """Returns the measurement with the figures that are computed by formula.

    The plan then fits if the figure of nvidia-smi does.
    """
    plan = found.plan
    said = [EIGHT_BIT] if plan.train == "adamw-8bit" else []
    said += [float8.NOTE] if plan.dtype == FLOAT8 else []
    said += [preferences.NOTE] if plan.dpo else []
    said += [chunked_loss.NOTE] if plan.chunked_loss else []
    said += [quantized.NOTE] if plan.weights else []
    said += [experts.NOTE] if plan.expert_parallel is not None else []
    said += [serving.NOTE] if plan.requests is not None else []
    said += [tensor_parallel.NOTE] if plan.requests is not None and plan.ranks is not None else []
    if not plan.four_bit:
        return dataclasses.replace(found, short=dataclasses.replace(found.short, notes=(*found.short.notes, *said)))
    report = found.report
    more = {PARAMETERS: -saved[0], TEMPORARIES: saved[1]}
    formula = "4-bit weights (NF4, double quantization) are by formula: 0.516 B an element, one layer expanded"
    said.append(formula)
    extra = sum(more.values())
    smi = report.nvidia_smi + extra
    parts = dict(report.parts)
    for part, nbytes in more.items():
        parts[part] = parts.get(part, 0) + nbytes
    report = dataclasses.replace(
        report,
        parts=parts,
        peak=report.peak + extra,
        reserved=report.reserved + extra,
        nvidia_smi=smi,
        smallest=None,
        modules=(),  # these two are of the weights that were measured
        timeline=None,
        ending=COMPLETED if report.completed and smi <= total else OUT_OF_MEMORY,
        failure=report.failure or ((extra, max(0, total - report.nvidia_smi), "") if smi > total else None),
        notes=(*report.notes, *said),
    )
    return dataclasses.replace(found, short=report, formula=formula, replayed=None)
