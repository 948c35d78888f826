"""One rank of a plan for many GPUs: the model as PyTorch's own FSDP2 or DDP keeps it there.

FSDP2 as torchtitan applies it: each repeated layer and then the whole, made without memory and materialized in shards
(torchtitan/models/llama3/infra/parallelize.py, apply_fsdp; torchtitan/train.py).
"""

import contextlib
import os
from collections.abc import Callable

import torch
from torch import distributed as dist
from torch import nn

WAYS = ("fsdp", "ddp")


def joined() -> None:
    """This process is one rank: it takes its GPU, and has a process group until the simulated GPU is left."""
    if not dist.is_available():
        raise ValueError("this PyTorch was built without torch.distributed: ranks= needs it")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")


def sharded(model: nn.Module, layers: list[nn.Module], dtype: torch.dtype | None) -> nn.Module:
    """A model on the meta device as FSDP2 keeps it on this rank: its shard of each parameter, and each of `layers` is
    gathered while it runs. `dtype`: in which it is gathered, and computes; gradients are summed in float32 then."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {}
    if dtype is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    tied = _tied(model)
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    model.to_empty(device="cuda")
    for first, others in tied:
        for module, name in others:
            setattr(module, name, getattr(*first))
    return model


def replicated(model: nn.Module) -> nn.Module:
    """The model in DDP, its gradients views of the buckets; as it is, if it has none to train."""
    if not any(one.requires_grad for one in model.parameters()):
        return model
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True
    )


def without_sync(model: nn.Module, last: bool):
    """Around a micro-batch: DDP's gradients are summed after the last one of a step."""
    waits = isinstance(model, nn.parallel.DistributedDataParallel) and not last
    return model.no_sync() if waits else contextlib.nullcontext()  # pyright: ignore[reportCallIssue]


@contextlib.contextmanager
def told_of_unused():
    """Inside, DDP's error for parameters that get no gradient is a ValueError, in one line."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("Expected to have finished reduction"):
            raise
        raise ValueError(
            "DDP waits for the gradient of every parameter, and the loss does not depend on some of them: give "
            "another loss=, or a model without them; by FSDP2 it runs as it is"
        ) from error


def local(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that lies on this rank: the whole, or its shard."""
    of_a_mesh: Callable[[], torch.Tensor] | None = getattr(parameter, "to_local", None)
    return parameter if of_a_mesh is None else of_a_mesh()


def _tied(model: nn.Module) -> list[tuple[tuple[nn.Module, str], list[tuple[nn.Module, str]]]]:
    """Parameters that several modules have: materialized, each module would have its own (torch.nn.Module._apply)."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, name))
    return [(found[0], found[1:]) for found in places.values() if len(found) > 1]
