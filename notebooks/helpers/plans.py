"""Estimates large runs: how a model is sharded, and what memory, traffic and time that means for a rank.

The rules are for a decoder like `helpers.models.Llama`, trained with AdamW by PyTorch's own FSDP2, DTensor and 1F1B.
Weights, gradients and states are in float32, each layer is gathered in bfloat16, and gradients are reduced in float32.
Tensor parallelism includes sequence parallelism, and the loss is computed from logits sharded by vocabulary. The
estimates are plain arithmetic for a first selection; to decide between the last few plans, simulate one rank of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from helpers.turns import bubble

BF16, FLOAT = 2, 4  # bytes of an element
STATES = 4 * FLOAT  # bytes per parameter: weight, gradient, AdamW's two states
KINDS: tuple[str, ...] = ("pipeline", "replicas", "shards", "context", "tensor")


@dataclass(frozen=True)
class Model:
    """Holds the shape of a decoder like Llama's; `length` is the tokens of its sequences."""

    layers: int
    hidden: int
    heads: int
    shared_heads: int
    inner: int
    vocabulary: int
    length: int = 8192

    @property
    def of_layer(self) -> int:
        """Counts the parameters of a layer: q, k, v, o, gate, up, down, and two norms."""
        keys = self.hidden * self.shared_heads // self.heads
        return self.hidden * (2 * self.hidden + 2 * keys + 3 * self.inner + 2)

    @property
    def of_words(self) -> int:
        """Counts the parameters of the embedding, which are also those of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Counts all parameters."""
        return self.layers * self.of_layer + 2 * self.of_words + self.hidden


MODELS = {
    "7B": Model(32, 4096, 32, 32, 11_008, 32_000, 4096),
    "70B": Model(80, 8192, 64, 8, 28_672, 128_256),
    "405B": Model(126, 16_384, 128, 8, 53_248, 128_256),
}
"""Llama 2 7B (Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models"), and Llama 3.1 70B and 405B
(Llama team 2024, "The Llama 3 Herd of Models", table 3), with the sequence lengths of their first training.
"""


@dataclass(frozen=True)
class Plan:
    """Describes how a step is divided: GPUs by `KINDS`, outermost first, and the batch by sequences and micro-batches.

    A micro-batch is `sequences` sequences, and each group of ranks works on `micro_batches` of them. `shards` is FSDP.
    With `replicas` it is HSDP, where an all-reduce sums the copies of each shard once per step, as with
    `set_requires_all_reduce(False)` for all micro-batches but the last. `checkpointed` says that each layer saves only
    its input. Raises ``ValueError`` for a number below 1, and for fewer micro-batches than stages.
    """

    pipeline: int = 1
    replicas: int = 1
    shards: int = 1
    context: int = 1
    tensor: int = 1
    sequences: int = 1
    micro_batches: int = 1
    checkpointed: bool = True

    def __post_init__(self):
        for name in (*KINDS, "sequences", "micro_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: a plan has one or more of each")
        if self.micro_batches < self.pipeline:
            raise ValueError(f"{self.pipeline} stages want as many micro-batches; micro_batches={self.micro_batches}")

    @property
    def dims(self) -> tuple[int, ...]:
        """Returns the number of GPUs for each of `KINDS`, as ``init_device_mesh`` expects them."""
        return tuple(getattr(self, name) for name in KINDS)

    @property
    def gpus(self) -> int:
        """Returns the number of all GPUs."""
        return prod(self.dims)

    @property
    def batch(self) -> int:
        """Returns the number of sequences per step on all GPUs."""
        return self.replicas * self.shards * self.sequences * self.micro_batches

    def group(self, *kinds: str) -> list[int]:
        """Returns the ranks in rank 0's group: those that differ from it only in these kinds."""
        ranks, stride = [0], 1
        for name in reversed(KINDS):
            size = getattr(self, name)
            ranks = [rank + stride * place for place in range(size if name in kinds else 1) for rank in ranks]
            stride *= size
        return ranks

    def first_rank(self, stage: int) -> int:
        """Returns the first rank of a stage, which is the one to simulate because all others of its stage are like it.

        Raises ``ValueError`` for a stage that the plan does not have.
        """
        if not 0 <= stage < self.pipeline:
            raise ValueError(f"stage={stage} is none of {self.pipeline}")
        return stage * (self.gpus // self.pipeline)

    def __str__(self) -> str:
        names = {"pipeline": "PP", "replicas": "replicas", "shards": "FSDP", "context": "CP", "tensor": "TP"}
        cuts = " · ".join(f"{names[name]} {size}" for name in KINDS if (size := getattr(self, name)) > 1)
        keeping = "" if self.checkpointed else ", no checkpoints"
        return f"{cuts or 'one GPU'}, {self.micro_batches} × {self.sequences}{keeping}"


def layers_of(layers: int, stages: int) -> list[int]:
    """Returns the number of layers of each stage.

    Remaining layers go to the middle stages first, because the first and the last stage have more work. This follows
    torchtitan (torchtitan/parallelisms/pipelining_utils.py, generate_split_points, 2024). Raises ``ValueError`` for
    more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers are cut into 1 to {layers} stages, not {stages}")
    each, more = divmod(layers, stages)
    order = [*range(1, stages - 1), stages - 1, 0]
    extra = set(order[:more])
    return [each + (stage in extra) for stage in range(stages)]


def memory(model: Model, plan: Plan, stage: int = 0) -> dict[str, int]:
    """Returns the bytes on a rank of a stage, by purpose; not all of them are alive at once (see `moments`).

    "states" is this rank's shard of weights, gradients and AdamW's states. "gathered weights" are in bfloat16: two
    layers, or with a pipeline the whole stage, which is gathered once per step. "whole gradients" are one layer's in
    bfloat16 and float32, or with a pipeline the stage's in float32. "embedding's gradient": with tensor parallelism
    each rank computes one for the whole vocabulary, in both dtypes (`embedding_dense_backward` in
    torch/distributed/tensor/_ops/_embedding_ops.py). "kept activations" is what forward saves for the micro-batches in
    flight, and "activations at work" what the layer being recomputed saves. "logits" are in bfloat16 and three times in
    float32, on the last stage. Other temporaries, rounding and fragmentation are not modelled. Raises ``ValueError``
    for more stages than layers.
    """
    first, last = stage == 0, stage == plan.pipeline - 1
    layers, piped = layers_of(model.layers, plan.pipeline)[stage], plan.pipeline > 1
    own = (layers * model.of_layer + (first + last) * model.of_words + last * model.hidden) // plan.tensor
    tokens = plan.sequences * model.length // plan.context
    at_work = layer_keeps(model, plan, tokens)
    kept = BF16 * tokens * model.hidden // plan.tensor if plan.checkpointed else at_work
    return {
        "states": STATES * own // (plan.shards * plan.context),
        "gathered weights": BF16 * (own if piped else 2 * model.of_layer // plan.tensor),
        "whole gradients": FLOAT * own if piped else (BF16 + FLOAT) * model.of_layer // plan.tensor,
        "embedding's gradient": (BF16 + FLOAT) * model.of_words * (first and plan.tensor > 1),
        "kept activations": min(plan.micro_batches, plan.pipeline - stage) * layers * kept,
        "activations at work": at_work if plan.checkpointed else 0,
        "logits": last * (BF16 + 3 * FLOAT) * tokens * model.vocabulary // plan.tensor,
    }


def moments(model: Model, plan: Plan, stage: int = 0) -> dict[str, int]:
    """Returns the bytes alive on a rank of a stage at three moments, of which the largest is the peak.

    They are the "loss", the "backward" pass of its last layer, and the "embedding" when its gradient exists.
    """
    of, piped = memory(model, plan, stage), plan.pipeline > 1
    flight = min(plan.micro_batches, plan.pipeline - stage)
    always = of["states"] + piped * (of["gathered weights"] + of["whole gradients"])
    for_layers, of_one_layer = (0, 0) if piped else (of["gathered weights"], of["whole gradients"])
    return {
        "loss": always + for_layers + of["kept activations"] + of["logits"],
        "backward": always + for_layers + of["kept activations"] + of["activations at work"] + of_one_layer,
        "embedding": always + of["kept activations"] * (flight - 1) // flight + of["embedding's gradient"],
    }


def layer_keeps(model: Model, plan: Plan, tokens: int) -> int:
    """Returns the bytes that a layer saves for backward on a rank, for the group's number of ``tokens``.

    The formula is s·b·h · (4 + (8 + 4·g + 8·f/h)/t), with t ranks, g the ratio of key and value heads to query heads,
    and f the inner width. The two gathered inputs are whole, and everything else is sharded. Without tensor parallelism
    it equals `formulas.llama_layer`, except for what norms and attention save per token.
    """
    ratio = 4 * model.hidden + 2 * model.hidden * model.shared_heads // model.heads + 4 * model.inner
    return BF16 * tokens * (2 * model.hidden + ratio // plan.tensor)


def operations(model: Model, plan: Plan) -> float:
    """Returns the floating-point operations of a rank of a middle stage per micro-batch.

    They are forward, backward (twice forward), and forward again if it is checkpointed. Attention counts the lower half
    of the scores only.
    """
    layers = max(layers_of(model.layers, plan.pipeline))
    tokens = plan.sequences * model.length // plan.context
    forward = 2 * tokens * (model.of_layer + model.length * model.hidden) / plan.tensor
    words = 2 * tokens * model.of_words / plan.tensor if plan.pipeline == 1 else 0
    return (3 + plan.checkpointed) * layers * forward + 3 * words


def sent(model: Model, plan: Plan) -> dict[str, int]:
    """Returns the bytes that a rank of a middle stage sends per step, by purpose, for the layers alone.

    "tensor": four all-gathers and four reduce-scatters of the activations per layer and micro-batch, and three more to
    recompute it. "context": keys and values to all other ranks of the group, again for backward, and their gradients.
    "data": FSDP's weights and gradients. "replicas": the all-reduce of shards between replicas, once per step.
    "pipeline": activations in one direction, gradients in the other.
    """
    layers, micro = max(layers_of(model.layers, plan.pipeline)), plan.micro_batches
    tokens = plan.sequences * model.length // plan.context
    whole = BF16 * tokens * model.hidden
    shards, times = plan.shards * plan.context, 1 if plan.pipeline > 1 else micro
    own = layers * model.of_layer // plan.tensor
    gathers = BF16 if plan.pipeline > 1 else 2 * BF16
    keys = 2 * whole * model.shared_heads // model.heads // plan.tensor
    return {
        "tensor": layers * micro * (8 + 3 * plan.checkpointed) * whole * (plan.tensor - 1) // plan.tensor,
        "context": layers * micro * (3 + plan.checkpointed) * keys * (plan.context - 1),
        "data": times * own * (gathers + FLOAT) * (shards - 1) // shards,
        "replicas": own * 2 * FLOAT * (plan.replicas - 1) // (shards * plan.replicas),
        "pipeline": micro * 2 * whole // plan.tensor * (plan.pipeline > 1),
    }


def seconds(model: Model, plan: Plan, gpu: str, rate: float, per_node: int = 8) -> dict[str, float]:
    """Estimates the seconds of a step on GPUs of one model, by purpose; their sum is the step's time.

    `rate` is the operations per second that the GPU reaches in bfloat16. Links are those of the simulated clock
    (simgpu/clock/communication.py). "compute", "tensor", "context" and "pipeline" add up over the micro-batches, and
    "bubble" is the pipeline's idle time. "data" is the part of FSDP's and the replicas' traffic that "compute" cannot
    hide. With a pipeline none of it is hidden, because weights are gathered before the first micro-batch and gradients
    are reduced after the last. Not modelled are norms and other small kernels, the loss, the optimizer, the host, and
    all that simgpu/clock/communication.py excludes. Raises what `simgpu.gpus.specs.spec` raises for an unknown GPU.
    """
    moved, paths = sent(model, plan), _paths(plan, gpu, per_node)
    layers, micro = max(layers_of(model.layers, plan.pipeline)), plan.micro_batches
    counts = {
        "tensor": layers * micro * (8 + 3 * plan.checkpointed),
        "context": layers * micro * (3 + plan.checkpointed),
        "pipeline": 2 * micro,
        "data": layers * (2 if plan.pipeline > 1 else 3 * micro),
        "replicas": layers,
    }
    found = {"compute": micro * operations(model, plan) / rate}
    for name, count in counts.items():
        path = paths[name]
        steps = 1 if name == "pipeline" else (path.ranks - 1) * (2 if name == "replicas" else 1)
        found[name] = count * path.seconds(moved[name] // count, steps) if moved[name] else 0.0
    data, idle = found.pop("data") + found.pop("replicas"), bubble(plan.pipeline, micro)
    found["bubble"] = sum(found.values()) * idle / (1 - idle)
    found["data"] = data if plan.pipeline > 1 else max(0.0, data - found["compute"])
    return found


def _paths(plan: Plan, gpu: str, per_node: int) -> dict:
    from simgpu.distributed.links import Links
    from simgpu.distributed.world import world_of
    from simgpu.gpus.specs import spec

    links = Links(spec(gpu), world_of(0, plan.gpus, min(per_node, plan.gpus)))
    return {name: links.path(ranks) for name, ranks in _groups(plan).items()}


def _groups(plan: Plan) -> dict[str, list[int]]:
    """Returns the ranks with which rank 0 communicates, by the purposes of `sent`; in a pipeline, its neighbour."""
    return {
        "tensor": plan.group("tensor"),
        "context": plan.group("context"),
        "pipeline": [0, plan.first_rank(1)] if plan.pipeline > 1 else [0],
        "data": plan.group("shards", "context"),
        "replicas": plan.group("replicas"),
    }


def candidates(
    model: Model,
    gpus: int,
    batch: int,
    *,
    tensor: Iterable[int] = (1, 2, 4, 8, 16),
    pipeline: Iterable[int] = (1, 2, 4, 8, 16),
    context: Iterable[int] = (1,),
    replicas: Iterable[int] = (1,),
    sequences: Iterable[int] = (1, 2, 4),
    checkpointed: Iterable[bool] = (True, False),
) -> list[Plan]:
    """Returns all plans that divide `gpus` GPUs and a step of `batch` sequences evenly, from the sizes given.

    Key and value heads limit `tensor`, and layers limit `pipeline`. A step with fewer sequences than data-parallel
    ranks has no plan. Raises ``ValueError`` for less than one GPU or sequence.
    """
    if gpus < 1 or batch < 1:
        raise ValueError(f"a plan is for one GPU and one sequence or more; gpus={gpus}, batch={batch}")
    found = []
    for t, p, c, r in product(tensor, pipeline, context, replicas):
        if model.shared_heads % t or model.length % (c * t) or p > model.layers or gpus % (t * p * c * r):
            continue
        shards = gpus // (t * p * c * r)
        for each, again in product(sequences, checkpointed):
            micro, left = divmod(batch, shards * r * each)
            if left == 0 and micro >= p:
                found.append(Plan(p, r, shards, c, t, each, micro, again))
    return found


def best(model: Model, plans: Iterable[Plan], gpu: str, rate: float, room: int, per_node: int = 8) -> list[Plan]:
    """Returns the plans whose estimate fits into `room` bytes on every stage, the fastest first."""
    fitting = [one for one in plans if peak(model, one) <= room]
    return sorted(fitting, key=lambda one: sum(seconds(model, one, gpu, rate, per_node).values()))


def peak(model: Model, plan: Plan) -> int:
    """Returns the estimated peak in bytes of the fullest rank (see `moments`) of the first, second and last stage."""
    stages = {0, min(1, plan.pipeline - 1), plan.pipeline - 1}
    return max(max(moments(model, plan, stage).values()) for stage in stages)


def of_each_kind(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the first plan of each kind, where a kind is the set of `KINDS` above 1; from `best`, each kind's
    fastest.
    """
    found: dict[tuple[bool, ...], Plan] = {}
    for plan in plans:
        found.setdefault(tuple(size > 1 for size in plan.dims), plan)
    return list(found.values())


def links(model: Model, plan: Plan, per_node: int = 8) -> tuple[int, int]:
    """Returns the bytes that a GPU of a middle stage sends per step inside its machine, and over its network card.

    It divides the figures of `sent`. A group with k GPUs in each of several machines has k rings, each of which leaves
    a machine by a network card of its own, so a card carries 1/k of what a GPU sends.
    """
    groups, near, far = _groups(plan), 0, 0
    for kind, size in sent(model, plan).items():
        inside = sum(rank < per_node for rank in groups[kind])
        across = 0 if inside == len(groups[kind]) else size // inside
        near, far = near + size - across, far + across
    return near, far
