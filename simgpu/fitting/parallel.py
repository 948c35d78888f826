"""One rank of a plan for many GPUs, with the model in PyTorch's own FSDP2 or DDP.

FSDP2 is applied as in torchtitan: to each repeated layer and then to the whole model, which is created without memory
and materialized in shards (torchtitan/models/llama3/infra/parallelize.py, apply_fsdp; torchtitan/train.py).
"""

import contextlib
import os
from collections.abc import Callable, Sequence

import torch
from torch import distributed as dist
from torch import nn

WAYS = ("fsdp", "ddp")
ROTATIONS = ("allgather", "alltoall")


def joined() -> None:
    """Makes this process one rank: selects its GPU and creates a process group until the simulated GPU is left.

    Raises ValueError if PyTorch was built without torch.distributed.
    """
    if not dist.is_available():
        raise ValueError("this PyTorch was built without torch.distributed: ranks= needs it")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")


def sharded(
    model: nn.Module, layers: list[nn.Module], dtype: torch.dtype | None, apart: Sequence[nn.Module] = (), mesh=None
) -> nn.Module:
    """Applies FSDP2 to a model on the meta device and materializes this rank's shards.

    Each of `layers` is gathered while it runs. `dtype`: the dtype of gathering and computing; gradients are then
    reduced in float32. `apart`: modules that only the ranks of `mesh` shard, such as experts.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {}
    if dtype is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    tied = _tied(model)
    for module in apart:
        fully_shard(module, mesh=mesh, **options)
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return materialized(model, tied)


def materialized(model: nn.Module, tied: list | None = None) -> nn.Module:
    """Allocates a model that is on the meta device, and returns it; shared parameters stay shared.

    `tied`: the shared parameters as `_tied` returned them, for a model that was sharded since.
    """
    tied = _tied(model) if tied is None else tied
    model.to_empty(device="cuda")
    for first, others in tied:
        for module, name in others:
            setattr(module, name, getattr(*first))
    return model


def replicated(model: nn.Module, apart: Sequence[nn.Module] = ()) -> nn.Module:
    """Wraps the model in DDP with gradients as views of the buckets; returns it unchanged if nothing is trained.

    `apart`: modules whose gradients are this rank's own, such as experts.
    """
    own = {id(parameter) for module in apart for parameter in module.parameters()}
    names = [name for name, one in model.named_parameters() if id(one) in own]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    if not any(one.requires_grad for one in model.parameters()):
        return model
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True
    )


def context_mesh(shared: int, rotate: str | None):
    """Returns the mesh of the ranks that share a sequence with this one, and sets how attention brings the others'
    keys and values.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method(rotate or ROTATIONS[0])
    sizes = dist.get_world_size() // shared, shared
    return init_device_mesh("cuda", sizes, mesh_dim_names=("data", "context"))["context"]


@contextlib.contextmanager
def shared_sequences(mesh, batch: dict[str, torch.Tensor]):
    """Cuts the sequences of a batch into this rank's parts in place, and makes attention see the whole of them.

    `mesh`: that of `context_mesh`, or None for whole sequences. Forward and backward pass run inside. Converts the
    error of attention that cannot run so to a ValueError.
    """
    if mesh is None:
        yield
        return
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = [one for one in batch.values() if one.ndim > 1]
    cuts = context_parallel(mesh, buffers=tensors, buffer_seq_dims=[1] * len(tensors), no_restore_buffers=set(tensors))
    with cuts, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith("No available kernel"):
                raise
            raise ValueError(
                "context parallelism runs FlashAttention, which computes in 16-bit floats and takes no attention mask: "
                "try dtype or autocast bf16"
            ) from error


def without_sync(model: nn.Module, last: bool):
    """Returns the context of a micro-batch: DDP reduces the gradients only after the last one of a step."""
    waits = isinstance(model, nn.parallel.DistributedDataParallel) and not last
    return model.no_sync() if waits else contextlib.nullcontext()  # pyright: ignore[reportCallIssue]


@contextlib.contextmanager
def told_of_unused():
    """Converts DDP's error for parameters without a gradient to a ValueError in one line."""
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
    """Returns the part of a parameter on this rank: the whole, or its shard."""
    of_a_mesh: Callable[[], torch.Tensor] | None = getattr(parameter, "to_local", None)
    return parameter if of_a_mesh is None else of_a_mesh()


def _tied(model: nn.Module) -> list[tuple[tuple[nn.Module, str], list[tuple[nn.Module, str]]]]:
    """Returns parameters shared by several modules, with these modules.

    Materializing would give each module its own copy (torch.nn.Module._apply).
    """
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, name))
    return [(found[0], found[1:]) for found in places.values() if len(found) > 1]
