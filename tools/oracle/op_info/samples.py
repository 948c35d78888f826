"""The samples of a job: what to call on "cuda", and on what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tools.oracle.op_info import scaled, suites
from tools.oracle.op_info.jobs import Job
from tools.oracle.op_info.moving import tensors_in, text_of, to_cuda

STEPS = 3  # of an optimizer
MOST_OF_A_MODULE = 32  # samples; LinearCrossEntropyLoss has 857


@dataclass
class Sample:
    """One call: `text` says on what. `make` brings it to "cuda": the call, and the leaves that want gradients."""

    text: str
    make: Callable[[], tuple[Callable, list[torch.Tensor]]]


def of(job: Job, backward: bool) -> list[Sample]:
    """The samples of a job, drawn on the host with a seed of their own; `backward`: they want gradients."""
    if job.suite == "module":
        with suites.without_cuda():
            return _of_module(job)
    if job.suite == "optim":
        return _of_optimizer(job)
    entry = suites.entries(job.suite)[job.name]
    drawn = suites.of_operator(job, backward and job.variant != "out")
    if job.variant == "inplace":
        drawn = [sample for sample in drawn if not sample.broadcasts_input]
    if job.size == "large":
        drawn = [larger for sample in drawn for larger in scaled.larger(sample)]
    how = {"plain": _plain, "inplace": _in_place, "out": _with_out}[job.variant]
    return [
        Sample(text_of((sample.input, sample.args, sample.kwargs)), how(entry, sample, number))
        for number, sample in enumerate(drawn)
    ]


def _leaves(*values) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(values) if tensor.requires_grad and tensor.is_leaf]


def _plain(entry, sample, number: int):
    def make():
        first, args, kwargs = to_cuda((sample.input, tuple(sample.args), dict(sample.kwargs)))
        return lambda: entry.op(first, *args, **kwargs), _leaves(first, args, kwargs)

    return make


def _in_place(entry, sample, number: int):
    def make():
        first, args, kwargs = to_cuda((sample.input, tuple(sample.args), dict(sample.kwargs)))

        def call():
            if isinstance(first, torch.Tensor):
                return entry.inplace_variant(first.clone(), *args, **kwargs)
            copies = [one.clone() for one in first]
            entry.inplace_variant(copies, *args, **kwargs)
            return copies

        return call, _leaves(first, args, kwargs)

    return make


def _with_out(entry, sample, number: int):
    """Every other one into tensors that are empty before, which the operator resizes."""

    def make():
        first, args, kwargs = to_cuda((sample.input, tuple(sample.args), dict(sample.kwargs)))
        with torch.no_grad():
            found = entry.op(first, *args, **kwargs)
            several = isinstance(found, (list, tuple))
            empty = [one.new_empty(0) if number % 2 else torch.empty_like(one) for one in tensors_in(found)]
            del found
        out = tuple(empty) if several else empty[0]
        return lambda: entry.op(first, *args, **kwargs, out=out), []

    return make


def _of_module(job: Job) -> list[Sample]:
    entry, dtype = suites.entries("module")[job.name], getattr(torch, job.dtype)
    found = []
    for training in (True, False) if entry.train_and_eval_differ else (True,):
        suites.seed(job.name, job.dtype)
        inputs = entry.module_inputs_func(entry, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for number, given in enumerate(inputs):
            if given.forward_input is not None:
                text = text_of((training, given.constructor_input.args, given.constructor_input.kwargs,
                                given.forward_input.args, given.forward_input.kwargs))  # fmt: skip
                found.append(Sample(text, _module(entry.module_cls, given, dtype, training, number)))
    return suites.spread(found, MOST_OF_A_MODULE)


def _module(kind, given, dtype: torch.dtype, training: bool, number: int):
    def make():
        suites.seed(kind.__name__, str(number))
        module = kind(*given.constructor_input.args, **given.constructor_input.kwargs)
        module.to("cuda", dtype).train(training)
        args, kwargs = to_cuda((given.forward_input.args, given.forward_input.kwargs))
        leaves = _leaves(args, kwargs)
        if not _is_lazy(module):
            leaves += [one for one in module.parameters() if one.requires_grad]
        return lambda: module(*args, **kwargs), leaves

    return make


def _is_lazy(module) -> bool:
    return isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)


def _of_optimizer(job: Job) -> list[Sample]:
    entry, dtype = suites.entries("optim")[job.name], getattr(torch, job.dtype)
    suites.seed(job.name, job.dtype)
    inputs = suites.optimizers._get_optim_inputs_including_global_cliquey_kwargs(
        "cuda", dtype, entry, skip=("differentiable",)
    )
    shapes = [(10, 5), (10,), (1,), (3, 4, 5)] if job.size == "small" else [(1024, 1500), (1500,)] * 40
    if entry.name == "ASGD":  # its loop over single tensors asks for a value, which the oracle has as 0
        inputs = [one for one in inputs if one.kwargs.get("capturable") or one.kwargs.get("foreach")]
    if entry.name == "Muon":  # takes matrices alone
        shapes = [shape for shape in shapes if len(shape) == 2]
    return [
        Sample(f"{given.desc} {text_of(given.kwargs)}", _steps(entry, given.kwargs, shapes, dtype)) for given in inputs
    ]


def _steps(entry, options: dict, shapes, dtype: torch.dtype):
    def make():
        params = [torch.zeros(shape, dtype=dtype).to("cuda").requires_grad_() for shape in shapes]
        for param in params:
            param.grad = torch.zeros_like(param)
        if entry.only_supports_sparse_grads:
            for param in params:
                param.grad = param.grad.to_sparse()
        optimizer = entry.optim_cls(params, **options)
        asks = "closure" in inspect.signature(optimizer.step).parameters and entry.step_requires_closure

        def call():
            for _ in range(STEPS):
                optimizer.step((lambda: params[0].sum()) if asks else None)
            return list(optimizer.state.values())

        return call, []

    return make
