"""How a model is trained or served: all settings that determine its memory, apart from the model."""

import difflib
import re
from dataclasses import dataclass

import torch

from simgpu.distributed.world import world_of
from simgpu.engines import META, STUB
from simgpu.fitting.chunked_loss import AUTO
from simgpu.fitting.dtypes import DTYPES, FLASH_CAPABILITY, FLOAT8, FLOAT8_CAPABILITY, KV_DTYPES
from simgpu.fitting.optimizers import OPTIMIZERS
from simgpu.fitting.paged import BLOCK_SIZE, CHUNK, UTILIZATION
from simgpu.fitting.parallel import ROTATIONS, WAYS
from simgpu.fitting.quantized import WEIGHTS

CHECKPOINTS = (False, True, "half")
OF_TRAINING = ("rank", "per_node", "link", "parallel", "context_parallel", "expert_parallel")
"""Settings of ranks that train a model together. The ranks of a server do not have them."""

_COUNTS = (
    "batch",
    "length",
    "accumulate",
    "lora",
    "requests",
    "block_size",
    "prefill_chunk",
    "context_parallel",
    "expert_parallel",
)


def _near(value, known) -> str:
    """Returns the end of a message with the known name most similar to a value, or ""."""
    if re.search(r"\d+$", str(value)) and str(value)[:2] in ("fp", "bf", "in"):
        return ""  # "fp7" does not mean another number of bits
    near = difflib.get_close_matches(str(value).lower(), known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def _of_bits(name: str) -> str:
    """Returns the end of a message that says why 8-bit or 4-bit weights are not available, or ""."""
    if re.search(r"int8|8.?bit", name.lower()):
        return ". Weights that are trained have 16 or 32 bits; with --serve: --weights int8"
    if re.search(r"nf4|fp4|int4|4.?bit|mxfp", name.lower()):
        return ". Frozen weights of 4 bits with LoRA's adapters: --qlora RANK, in Python four_bit=True, lora=RANK"
    return ""


@dataclass(frozen=True)
class Plan:
    """Describes one way of training (`train` is an optimizer's name) or of serving (`train` is None).

    `dtype`: of the weights, None for the model's own. `autocast`: the dtype around the forward pass, or None. `batch`
    and `length`: of a micro-batch. `accumulate`: micro-batches per step. `lora`: the adapters' rank, or None.
    `checkpoint`: False, True (each layer), or "half" (every second one). `offload`: activations wait on the host.
    `attention`: "eager", "sdpa", or None for the model's own. `chunked_loss`: the number of chunks of tokens in which
    the logits and the loss are computed, "auto" for Liger's number, or None (see simgpu.fitting.chunked_loss).
    `dpo`: preference training, whose batch is of pairs of sequences (see simgpu.fitting.preferences).
    `four_bit`: frozen weights of linear layers in 4 bits (by formula).

    `ranks`: the GPUs that train it together, of which this is `rank` (default 0), each with its own batch. `parallel`:
    "fsdp" (FSDP2, the default) or "ddp". `per_node`, `link`: as in `simgpu.one_rank`. With FSDP2 `autocast` is its
    MixedPrecisionPolicy, as in torchtitan. `engine`: "meta" or "stub" (docs/engines.md). `compile`: whether the model
    is compiled, which only "stub" does.

    `weights`: "int8", "int4" or "fp8", for inference. `requests`: a server with a paged KV cache for so many requests
    of `length` tokens, in blocks of `block_size` tokens (default 16), with `utilization` of the GPU (default 0.9), that
    prefills `prefill_chunk` tokens at once (default 2048). `kv_dtype`: of the cache, None for the model's own. `ranks`
    of a server are GPUs that share the model by tensor parallelism.

    `context_parallel`: how many ranks share a sequence, of which each computes `length` / `context_parallel` tokens;
    `batch` is then theirs together. `rotate`: how its attention brings keys and values, "allgather" (PyTorch's default)
    or "alltoall" (one part after the other).

    `expert_parallel`: how many ranks share the experts of each layer (see simgpu.fitting.experts). `imbalance`: how
    many times the even share of tokens this rank's experts receive (default 1).

    `dtype` "fp8": training with matmuls in 8-bit floats. Weights are bf16, or fp32 with `autocast`.

    Raises ValueError for invalid values, and for settings that cannot be combined.
    """

    train: str | None = "adamw"
    dtype: str | None = None
    batch: int = 1
    length: int | None = None
    accumulate: int = 1
    autocast: str | None = None
    lora: int | None = None
    checkpoint: bool | str = False
    offload: bool = False
    attention: str | None = None
    chunked_loss: int | str | None = None
    dpo: bool = False
    four_bit: bool = False
    ranks: int | None = None
    rank: int | None = None
    per_node: int | None = None
    link: str | float | None = None
    parallel: str | None = None
    compile: bool = False
    engine: str = META
    weights: str | None = None
    requests: int | None = None
    block_size: int | None = None
    utilization: float | None = None
    prefill_chunk: int | None = None
    kv_dtype: str | None = None
    context_parallel: int | None = None
    rotate: str | None = None
    expert_parallel: int | None = None
    imbalance: float | None = None

    def __post_init__(self):
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is a whole number of 1 or more, not {value!r}")
        for name, known in (
            ("dtype", (*DTYPES, FLOAT8)),
            ("autocast", DTYPES),
            ("weights", WEIGHTS),
            ("kv_dtype", (*DTYPES, *KV_DTYPES)),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                more = _near(value, known) or _of_bits(str(value))
                raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}{more}")
        if self.train is not None and self.train not in OPTIMIZERS:
            near = _near(self.train, OPTIMIZERS)
            raise ValueError(f"train is one of {', '.join(OPTIMIZERS)}, not {self.train!r}{near}")
        if self.checkpoint not in CHECKPOINTS:
            raise ValueError(f'checkpoint is False, True or "half", not {self.checkpoint!r}')
        if self.chunked_loss is not None:
            self._check_chunks()
        if self.dpo:
            self._check_dpo()
        if self.four_bit and self.lora is None:
            raise ValueError("four_bit=True freezes the weights: say the rank of LoRA's adapters too (lora=RANK)")
        self._check_engine()
        self._check_ranks()
        self._check_float8()
        self._check_serving()
        self._check_context()
        self._check_experts()

    def _check_dpo(self) -> None:
        if self.train is None:
            raise ValueError("DPO is training: leave --serve out, or in Python give an optimizer")
        for name in ("chunked_loss", "context_parallel", "expert_parallel"):
            if getattr(self, name) is not None:
                raise ValueError(f"fit does not combine DPO with {name}={getattr(self, name)!r}")

    def _check_chunks(self) -> None:
        chunks = self.chunked_loss
        if chunks != AUTO and (isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1):
            raise ValueError(f'chunked_loss is a number of chunks of 1 or more, "{AUTO}" or None, not {chunks!r}')
        if self.train is None:
            raise ValueError("a chunked loss is for training, and inference has no loss")

    def _check_experts(self) -> None:
        shared = self.expert_parallel
        if self.imbalance is not None:
            self._check_imbalance()
        if shared is None:
            return
        if self.train is None or self.lora is not None:
            raise ValueError(
                f"expert parallelism is for training without LoRA, not for train={self.train!r} with lora={self.lora!r}"
            )
        if (self.ranks or 0) % shared:
            raise ValueError(f"expert_parallel={shared} does not divide ranks={self.ranks} into equal groups")
        if not self.sharded and shared != self.ranks:
            raise ValueError(f"with DDP all ranks share the experts: expert_parallel={self.ranks}, not {shared}")

    def _check_imbalance(self) -> None:
        if self.expert_parallel is None:
            raise ValueError(f"imbalance={self.imbalance} is of tokens that ranks send: say expert_parallel= too")
        if not 1 <= (self.imbalance or 0) <= self.expert_parallel:
            raise ValueError(
                f"imbalance is 1 (even) to {self.expert_parallel} (all tokens to one of {self.expert_parallel} ranks), "
                f"not {self.imbalance}"
            )

    def _check_context(self) -> None:
        shared = self.context_parallel
        if self.rotate is not None and (shared is None or self.rotate not in ROTATIONS):
            raise ValueError(f"rotate is {' or '.join(ROTATIONS)} of context_parallel=, not {self.rotate!r}")
        if shared is None:
            return
        if self.train is None:
            raise ValueError("context parallelism is for training, and --serve (in Python optimizer=None) is inference")
        if (self.ranks or 0) % shared:
            raise ValueError(f"context_parallel={shared} does not divide ranks={self.ranks} into equal groups")
        if self.length is not None and self.length % (2 * shared):
            raise ValueError(
                f"PyTorch cuts a sequence into 2 × {shared} equal parts for context_parallel={shared}, "
                f"and {self.length} is not a multiple of {2 * shared}"
            )
        if self.attention == "eager":
            raise ValueError("context parallelism runs scaled_dot_product_attention: leave eager attention out")

    def _check_float8(self) -> None:
        if self.dtype != FLOAT8:
            return
        if self.train is None:
            raise ValueError(
                "--dtype fp8 is training with matmuls in fp8; for inference with such weights: --weights fp8"
            )
        if self.lora is not None:
            raise ValueError("fit does not combine matmuls in fp8 with LoRA: use --dtype bf16, or no adapters")
        if self.autocast is not None and DTYPES[self.autocast] != torch.bfloat16:
            raise ValueError(f"matmuls in fp8 return bf16, so autocast is bf16 or none, not {self.autocast!r}")

    def _check_serving(self) -> None:
        if self.weights is not None:
            self._only_serving(
                "weights", "quantised weights are for inference (--serve); --qlora trains adapters on them"
            )
        if self.requests is None:
            for name in ("block_size", "utilization", "prefill_chunk", "kv_dtype"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)!r} is of a server's KV cache: say requests= too")
            return
        self._only_serving("requests", "requests are those of a server: --serve, in Python optimizer=None")
        for name in OF_TRAINING:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is of training: the ranks of a server share the model by tensor "
                    "parallelism, and all need the same memory"
                )
        if self.batch != 1:
            raise ValueError(f"requests are what a server runs at once, so leave batch={self.batch} out")
        share = self.utilization
        if share is not None and not (isinstance(share, (int, float)) and 0 < share <= 1):
            raise ValueError(f"utilization is a share of the GPU above 0 and up to 1, not {share!r}")

    def _only_serving(self, name: str, reason: str) -> None:
        """Raises ValueError if a setting of inference is combined with another way of running."""
        if self.train is not None:
            raise ValueError(reason)
        if self.ranks is not None and self.requests is None:
            raise ValueError(f"{name}= of several ranks is for a server: say requests= too")
        if self.engine == STUB or self.lora is not None or self.offload:
            raise ValueError(
                f"{name}= is for the meta engine, without LoRA and without offload, "
                f"not for engine={self.engine!r}, lora={self.lora!r}, offload={self.offload!r}"
            )

    def _check_engine(self) -> None:
        if self.engine not in (META, STUB):
            raise ValueError(f"engine is {META} or {STUB}, not {self.engine!r}")
        if self.compile and self.engine != STUB:
            raise ValueError("only the stub engine compiles a model: --engine stub, in Python engine='stub'")
        if self.engine == STUB and (self.ranks is not None or self.four_bit):
            raise ValueError("on the stub engine fit has no ranks and no 4-bit weights; use --engine meta for them")

    def _check_ranks(self) -> None:
        if self.ranks is None:
            for name in OF_TRAINING:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)!r} of how many ranks? Say ranks= too")
            return
        try:
            world_of(self.rank or 0, self.ranks, self.per_node, self.link)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if self.parallel not in (None, *WAYS):
            raise ValueError(f"parallel is one of {', '.join(WAYS)}, not {self.parallel!r}")
        if self.sharded and self.train == "adafactor":
            raise ValueError("PyTorch's Adafactor does not take FSDP2's parameters (DTensor refuses its pow_)")
        if self.four_bit:
            raise ValueError("weights of 4 bits are by formula, which is for one GPU: leave ranks or 4 bits out")

    @property
    def block(self) -> int:
        """Returns the tokens of a KV block."""
        return self.block_size or BLOCK_SIZE

    @property
    def chunk(self) -> int:
        """Returns the tokens that a server prefills at once."""
        return self.prefill_chunk or CHUNK

    def budget(self, total: int) -> int:
        """Returns the bytes that may be used of a GPU of `total` bytes: a server's share, or all."""
        return total if self.requests is None else int(total * (self.utilization or UTILIZATION))

    @property
    def capability(self) -> tuple[tuple[int, int], str]:
        """Returns the least compute capability that the plan needs, and what needs it."""
        if FLOAT8 in (self.dtype, self.weights):
            return FLOAT8_CAPABILITY, "a matmul in fp8"
        if self.context_parallel is not None:
            return FLASH_CAPABILITY, "FlashAttention, which context parallelism runs,"
        return (0, 0), ""

    @property
    def weights_dtype(self) -> torch.dtype | None:
        """Returns the dtype in which the model is created, None for its own."""
        if self.dtype == FLOAT8:
            return torch.float32 if self.autocast else torch.bfloat16
        return DTYPES[self.dtype] if self.dtype else None

    @property
    def sharded(self) -> bool:
        """Returns whether each rank keeps a shard of the parameters (FSDP2)."""
        return self.ranks is not None and self.requests is None and self.parallel != "ddp"

    @property
    def _way(self) -> str:
        if self.requests is not None:
            return "tensor parallelism"
        return "FSDP2" if self.sharded else "DDP"

    def __str__(self) -> str:
        """Returns the plan in words: "adamw, bf16, batch 8 × 2048, LoRA 16, checkpoints"."""
        size = f"batch {self.batch}" if self.requests is None else f"{self.requests} requests"
        size += f" × {self.length}" if self.length else ""
        parts = [self.train or "inference", *([self.dtype] if self.dtype else []), size]
        parts += [f"{self.accumulate} accumulated"] if self.accumulate > 1 else []
        parts += [f"autocast {self.autocast}"] if self.autocast else []
        parts += [f"{'QLoRA' if self.four_bit else 'LoRA'} {self.lora}"] if self.lora else []
        parts += {True: ["checkpoints"], "half": ["checkpoints of every second layer"]}.get(self.checkpoint, [])
        parts += ["activations on the host"] if self.offload else []
        parts += [f"{self.attention} attention"] if self.attention else []
        parts += ["DPO"] if self.dpo else []
        parts += {None: [], AUTO: ["chunked loss"]}.get(self.chunked_loss, [f"loss in {self.chunked_loss} chunks"])
        parts += ["compiled"] if self.compile else []
        parts += [f"{self.weights} weights"] if self.weights else []
        parts += [f"{self.kv_dtype} KV cache"] if self.kv_dtype else []
        parts += [f"{self.ranks} ranks of {self._way}"] if self.ranks else []
        parts += [f"context parallel {self.context_parallel}"] if self.context_parallel else []
        parts += [f"expert parallel {self.expert_parallel}"] if self.expert_parallel else []
        parts += [f"imbalance {self.imbalance:g}"] if self.imbalance else []
        return ", ".join(parts)
