"""A server with a paged KV cache, run as vLLM's profile run is: a chunk of prefill, the logits, and the sampler."""

import importlib

import torch
from torch import nn

from simgpu.fitting.paged import Capacity, KVLayout, kv_itemsize, kv_layout
from simgpu.fitting.plan import Plan
from simgpu.fitting.subject import Subject

ATTENTION = "simgpu_paged"
"""Name under which transformers' models find the attention of a server."""

NOTE = (
    "The KV blocks are an estimate: the peak is that of transformers' layers, of attention that allocates its output, "
    "and of a sampler in plain PyTorch. CUDA graphs, workspaces of attention and a server's buffers are not included. "
    "The memory of the GPU on this page is the server's share of it"
)


def layout_of(subject: Subject, plan: Plan) -> KVLayout:
    """Returns the layout of a subject's KV cache on one of the plan's GPUs.

    Raises ValueError for a model that has none.
    """
    if subject.config is None or subject.cache is None:
        raise ValueError(f"{subject.name} has no KV cache: --requests is for language models of transformers")
    return kv_layout(subject.config, plan.ranks or 1)


def serve(model: nn.Module, subject: Subject, plan: Plan, tell, claim) -> tuple[int, int]:
    """Allocates the KV blocks of all requests, and runs a chunk of prefill and the sampler next to them.

    `tell(text)` shows what happens. `claim(tensor)` is called with each part of the cache. Returns the bytes of the
    weights, and the most bytes that were allocated above weights and cache.
    """
    assert plan.requests is not None
    model.eval()
    weights = torch.cuda.memory_allocated()
    tell("allocates the KV cache")
    layout = layout_of(subject, plan)
    dtype = next(one.dtype for one in model.parameters())
    blocks = plan.requests * layout.request_blocks(length_of(subject, plan), plan.block, plan.chunk)
    nbytes = blocks * layout.block_bytes(plan.block, kv_itemsize(plan.kv_dtype, dtype)) // layout.group
    cache = []
    for _ in range(layout.group):
        cache.append(torch.empty(nbytes, dtype=torch.int8, device="cuda"))
        claim(cache[-1])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    tell("prefills a chunk")
    with torch.no_grad():
        _profile(model, plan)
    tell("")
    return weights, torch.cuda.max_memory_allocated() - before


def _paged_attention(module, query, key, value, attention_mask, **kwargs) -> tuple[torch.Tensor, None]:
    """Allocates the output of attention that reads the blocks in place, as the kernels of servers do."""
    batch, heads, length, _ = query.shape
    return query.new_empty(batch, length, heads, value.shape[-1]), None


def _profile(model: nn.Module, plan: Plan) -> None:
    interface = importlib.import_module("transformers").AttentionInterface
    if ATTENTION not in interface():
        interface.register(ATTENTION, _paged_attention)
    model.set_attn_implementation(ATTENTION)  # pyright: ignore[reportCallIssue]
    tokens = torch.zeros(1, plan.chunk, dtype=torch.long, device="cuda")
    last = min(plan.requests or 1, plan.chunk)
    hidden = []  # a server holds them, and the logits, until a token is sampled
    with model.base_model.register_forward_hook(lambda module, args, output: hidden.append(output)):  # pyright: ignore
        logits = model(input_ids=tokens, use_cache=False, logits_to_keep=last).logits[0]
    _sample(logits)


def _sample(logits: torch.Tensor) -> torch.Tensor:
    """Samples by top-k and top-p over the whole vocabulary, the most that a request can ask for.

    It sorts float32 logits, sums their probabilities, masks, and scatters them back, as servers do in plain PyTorch
    (vllm/v1/sample/ops/topk_topp_sampler.py).
    """
    logits = logits.to(torch.float32)
    ordered, places = logits.sort(dim=-1)
    sums = ordered.softmax(dim=-1).cumsum_(dim=-1)
    ordered.masked_fill_(sums <= 0, float("-inf"))
    logits = ordered.scatter(-1, places, ordered)
    return logits.softmax(dim=-1, dtype=torch.float32).argmax(dim=-1)


def length_of(subject: Subject, plan: Plan) -> int:
    """Returns the tokens of a request: the plan's, or the subject's own."""
    return plan.length or subject.length or 1


def capacity_of(subject: Subject, plan: Plan, total: int, context: int, measured: tuple[int, int], dtype) -> Capacity:
    """Returns how many blocks and requests fit on a GPU of `total` bytes.

    `measured`: the weights and the activations, as `serve` returns them. `dtype`: that of the model.
    """
    assert plan.requests is not None
    length, itemsize = length_of(subject, plan), kv_itemsize(plan.kv_dtype, dtype)
    sizes = plan.requests, length, plan.block, plan.chunk, itemsize, plan.ranks or 1
    return Capacity(layout_of(subject, plan), plan.budget(total), context, *measured, *sizes)
