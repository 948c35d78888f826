"""Plans of large runs on paper: how a model is cut, and what that makes of a rank's memory, traffic and time.

The rules are those of a decoder like `labkit.models.Llama`, trained by PyTorch's own FSDP2, DTensor and 1F1B with
AdamW: weights, gradients and states in float32, each layer gathered in bfloat16, gradients summed in float32, tokens
cut along with tensors (sequence parallel), the loss computed of logits that are cut by words. Plain arithmetic, to sort
out plans; what decides between the last few is a simulation of one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from labkit.turns import bubble

BF16, FLOAT = 2, 4  # bytes of a number
STATES = 4 * FLOAT  # of a parameter: weight, gradient, AdamW's two
KINDS: tuple[str, ...] = ("pipeline", "replicas", "shards", "context", "tensor")


@dataclass(frozen=True)
class Model:
    """The shape of a decoder like Llama's, and `length`, the tokens of its sequences."""

    layers: int
    hidden: int
    heads: int
    shared_heads: int
    inner: int
    vocabulary: int
    length: int = 8192

    @property
    def of_layer(self) -> int:
        """Parameters of a layer: q, k, v, o, gate, up, down, and two norms."""
        keys = self.hidden * self.shared_heads // self.heads
        return self.hidden * (2 * self.hidden + 2 * keys + 3 * self.inner + 2)

    @property
    def of_words(self) -> int:
        """Parameters of the embedding, and of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.of_layer + 2 * self.of_words + self.hidden


MODELS = {
    "7B": Model(32, 4096, 32, 32, 11_008, 32_000, 4096),
    "70B": Model(80, 8192, 64, 8, 28_672, 128_256),
    "405B": Model(126, 16_384, 128, 8, 53_248, 128_256),
}
"""Llama 2 7B (Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models"), and Llama 3.1 70B and 405B
(Llama team 2024, "The Llama 3 Herd of Models", table 3), with the sequences that they were first trained on."""


@dataclass(frozen=True)
class Plan:
    """How a step is divided: GPUs by `KINDS`, outermost first, and the `sequences` of a micro-batch, of which a group
    works on `micro_batches`.

    `shards` is FSDP; with `replicas` it is HSDP, and copies of the shards are summed up by all-reduce. `checkpointed`:
    each layer keeps its input only. Raises ``ValueError`` for a number below 1, and for fewer micro-batches than
    stages.
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
        """GPUs by each of `KINDS`, as ``init_device_mesh`` takes them."""
        return tuple(getattr(self, name) for name in KINDS)

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return prod(self.dims)

    @property
    def batch(self) -> int:
        """Sequences of a step on all GPUs."""
        return self.replicas * self.shards * self.sequences * self.micro_batches

    def group(self, *kinds: str) -> list[int]:
        """Ranks that rank 0 divides this with: all that differ from it in these kinds only."""
        ranks, stride = [0], 1
        for name in reversed(KINDS):
            size = getattr(self, name)
            ranks = [rank + stride * place for place in range(size if name in kinds else 1) for rank in ranks]
            stride *= size
        return ranks

    def first_rank(self, stage: int) -> int:
        """The first rank of a stage: the one to simulate, as all others of its stage are like it.

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
    """How many layers each stage has. What is left over goes to stages in the middle first: the ends have more to do.

    As torchtitan cuts (torchtitan/parallelisms/pipelining_utils.py, generate_split_points, 2024). Raises ``ValueError``
    for more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers are cut into 1 to {layers} stages, not {stages}")
    each, more = divmod(layers, stages)
    order = [*range(1, stages - 1), stages - 1, 0]
    extra = set(order[:more])
    return [each + (stage in extra) for stage in range(stages)]


def memory(model: Model, plan: Plan, stage: int = 0) -> dict[str, int]:
    """Bytes on a rank of a stage, by what they are for; not all of it is alive at once (`moments`).

    "states": this rank's share of weights, gradients and AdamW's states. "gathered weights": in bfloat16, of two
    layers, or behind a pipeline of the whole stage, which is gathered once a step. "whole gradients": a layer's in
    bfloat16 and float32, or behind a pipeline the stage's in float32. "embedding's gradient": with tensor parallel each
    rank sums up one of all words, in both types (`embedding_dense_backward` in
    torch/distributed/tensor/_ops/_embedding_ops.py). "kept activations": what forward keeps of the micro-batches in
    flight. "activations at work": what the layer keeps that is computed again. "logits": in bfloat16, and thrice in
    float32, on the last stage. Left out: other temporaries, rounding, fragments. Raises ``ValueError`` for more stages
    than layers.
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
    """Bytes that are alive on a rank of a stage at the "loss", in the "backward" pass of its last layer, and when the
    "embedding" has its gradient. The largest is the peak."""
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
    """Bytes that a layer keeps for backward on a rank, for so many tokens of the group.

    s·b·h · (4 + (8 + 4·g + 8·f/h)/t) with t ranks, g the share of heads of keys and values, f the inner width: the
    two gathered inputs are whole, everything else is cut; without tensor parallel `formulas.llama_layer`, but for what
    norms and attention keep for each token.
    """
    ratio = 4 * model.hidden + 2 * model.hidden * model.shared_heads // model.heads + 4 * model.inner
    return BF16 * tokens * (2 * model.hidden + ratio // plan.tensor)


def operations(model: Model, plan: Plan) -> float:
    """Floating-point operations of a rank of a middle stage in one micro-batch: forward, twice that backward, and
    forward again if it is checkpointed; of attention the lower half."""
    layers = max(layers_of(model.layers, plan.pipeline))
    tokens = plan.sequences * model.length // plan.context
    forward = 2 * tokens * (model.of_layer + model.length * model.hidden) / plan.tensor
    words = 2 * tokens * model.of_words / plan.tensor if plan.pipeline == 1 else 0
    return (3 + plan.checkpointed) * layers * forward + 3 * words


def sent(model: Model, plan: Plan) -> dict[str, int]:
    """Bytes that a rank of a middle stage sends in a step, by why, of layers alone.

    "tensor": four all-gathers and four reduce-scatters of the activations for each layer and micro-batch, and three
    more to compute it again. "context": keys and values to all others of the group, again for backward, and their
    gradients. "data": FSDP's weights and gradients. "replicas": the all-reduce of shares between them. "pipeline":
    activations one way, gradients the other.
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
        "replicas": times * own * 2 * FLOAT * (plan.replicas - 1) // (shards * plan.replicas),
        "pipeline": micro * 2 * whole // plan.tensor * (plan.pipeline > 1),
    }


def seconds(model: Model, plan: Plan, gpu: str, rate: float, per_node: int = 8) -> dict[str, float]:
    """Seconds of a step on GPUs of a kind, by what they go to; their sum is the step.

    `rate`: operations a second that the GPU reaches in bfloat16. Links are as the simulated clock has them
    (simgpu/timing/communication.py). "compute", "tensor", "context", "pipeline": of the micro-batches, one after the
    other; "bubble": what a pipeline waits; "data": what of FSDP's traffic, and of the replicas', is left when "compute"
    has hidden what it can, nothing of it behind a pipeline, where weights are gathered before the first micro-batch and
    gradients summed up after the last. Left out: norms and other small kernels, the loss, the optimizer, the host, and
    all that simgpu/timing/communication.py leaves out. Raises what `simgpu.hardware.gpus.spec` raises for another GPU.
    """
    moved, paths = sent(model, plan), _paths(plan, gpu, per_node)
    layers, micro = max(layers_of(model.layers, plan.pipeline)), plan.micro_batches
    counts = {
        "tensor": layers * micro * (8 + 3 * plan.checkpointed),
        "context": layers * micro * (3 + plan.checkpointed),
        "pipeline": 2 * micro,
        "data": layers * (2 if plan.pipeline > 1 else 3 * micro),
        "replicas": layers * (1 if plan.pipeline > 1 else micro),
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
    from simgpu.hardware.gpus import spec
    from simgpu.ranks.links import Links
    from simgpu.ranks.world import world_of

    links = Links(spec(gpu), world_of(0, plan.gpus, min(per_node, plan.gpus)))
    groups = {
        "tensor": plan.group("tensor"),
        "context": plan.group("context"),
        "pipeline": [0, plan.first_rank(1)] if plan.pipeline > 1 else [0],
        "data": plan.group("shards", "context"),
        "replicas": plan.group("replicas"),
    }
    return {name: links.path(ranks) for name, ranks in groups.items()}


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
    """All plans for so many GPUs and a step of `batch` sequences that divide evenly, from the sizes given.

    The heads of keys and values limit `tensor`, the layers `pipeline`; a step of fewer sequences than data-parallel
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
    """Those that on paper fit into `room` bytes on every stage, the fastest first."""
    fitting = [one for one in plans if peak(model, one) <= room]
    return sorted(fitting, key=lambda one: sum(seconds(model, one, gpu, rate, per_node).values()))


def peak(model: Model, plan: Plan) -> int:
    """Bytes on the fullest rank at its fullest moment (`moments`): of the first stage, the second or the last."""
    stages = {0, min(1, plan.pipeline - 1), plan.pipeline - 1}
    return max(max(moments(model, plan, stage).values()) for stage in stages)


def of_each_kind(plans: Iterable[Plan]) -> list[Plan]:
    """The first plan of each kind, that is with the same of `KINDS` above 1: of `best`, each kind's fastest."""
    found: dict[tuple[bool, ...], Plan] = {}
    for plan in plans:
        found.setdefault(tuple(size > 1 for size in plan.dims), plan)
    return list(found.values())


def links(model: Model, plan: Plan, per_node: int = 8) -> tuple[int, int]:
    """Bytes that a rank of a middle stage sends in a step inside its machine, and between machines (`sent`): a group of
    ranks on several machines sends between them, by a ring each rank as much as any other."""
    groups = {"data": ("shards", "context")}
    inside = {kind: max(plan.group(*groups.get(kind, (kind,)))) < per_node for kind in sent(model, plan)}
    sizes = sent(model, plan)
    near = sum(size for kind, size in sizes.items() if inside[kind])
    return near, sum(sizes.values()) - near


def sent_by(traffic: Iterable, mesh) -> dict[str, int]:
    """Bytes that a rank has sent, of its `simgpu.ranks.traffic.Traffic`, by the dimension of its mesh in which it sent
    them; the mesh has its dimensions named as `KINDS`. Messages from stage to stage are the pipeline's."""
    names = {mesh.get_group(kind).group_name: kind for kind in KINDS}
    sums = dict.fromkeys(KINDS, 0)
    for one in traffic:
        sums[names.get(one.group, "pipeline")] += one.sent
    return sums
