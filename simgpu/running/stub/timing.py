"""Puts what a program launched on the stub engine on a clock, and returns the time that it would take.

PyTorch's operators cost what they cost on the meta engine (`simgpu.dispatch.costs`). A kernel that Inductor generated
moves the bytes that Inductor counts for it, at the bandwidth that memory-bound kernels reach. So nothing is assumed
about fusion. A CUDA graph is a single launch of all kernels that were captured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from simgpu.clock import achieved_rates, rates
from simgpu.clock.clock import TO_GPU, TO_HOST, Capture, Clock, Reading
from simgpu.dispatch import costs
from simgpu.gpus.specs import Spec
from simgpu.op_info import arguments
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.running.stub import launches
from simgpu.running.stub.reads import BRANCH, SIZES

STREAM = 0
GENERATED = "generated"
"""The name of all Inductor's kernels in the clock's lanes. Their own names contain names of operators, such as "mm"."""
_BACKWARD = "autograd::engine::evaluate_function"
_OF_PYTORCH = ("aten::", "prims::", "inductor::", "quantized::", "_quantized::")
_NO_WORK = ("profiler::", "prim::", "c10d_functional::", "_c10d_functional::")
_COLLECTIVES = ("c10d::", "nccl:")
DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16,
    "bool": torch.bool, "unsigned char": torch.uint8, "signed char": torch.int8, "short": torch.int16,
    "short int": torch.int16, "int": torch.int32, "long": torch.int64, "long int": torch.int64,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
    "c10::complex<c10::Half>": torch.complex32,
}  # fmt: skip
"""Dtypes by their names in C++, which the trace has."""
TRITON = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""Precisions by their names in Triton's signatures; those that begin with fp8 are of 8 bits."""


class UnknownDtypeError(LookupError):
    """Raised for the name of a dtype that neither DTYPES nor this torch has."""


@cache
def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype of "Tensor(c10::BFloat16)". Raises UnknownDtypeError for a name that is not known."""
    inner = name.removeprefix("Tensor(").removesuffix(")")
    if inner in DTYPES:
        return DTYPES[inner]
    found = getattr(torch, inner.removeprefix("c10::").lower(), None)  # c10::Float8_e4m3fn
    if isinstance(found, torch.dtype):
        return found
    raise UnknownDtypeError(f"a tensor of the dtype {inner}")


@cache
def _tensor(kind: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype_of(kind), device="meta")


@cache
def operator_of(schema: str) -> Any:
    """Returns the OpOverload of a schema such as "aten::add.Tensor(Tensor self, …", None if this torch has none."""
    name = schema.split("(", 1)[0]
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


def _is_view(operator: Any) -> bool:
    """Returns whether an operator launches nothing, because its results share memory with its arguments."""
    returns = [one.alias_info for one in operator._schema.returns]
    if torch.Tag.inplace_view in operator.tags:
        return True
    return bool(returns) and all(one is not None and not one.is_write for one in returns)


def _has_kernel(operator: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CUDA")


def _is_composite(operator: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


class Kind:
    """Holds what is the same for every call of an operator.

    view: whether it launches nothing, because its results share memory with its arguments. composite: whether it is
    only made of other operators. whole: whether its time includes that of the calls inside it.
    """

    def __init__(self, operator: Any) -> None:
        self.view = _is_view(operator)
        self.composite = _is_composite(operator) and not _has_kernel(operator)
        plan = costs.plan_of(operator)
        self.whole = _has_kernel(operator) or plan.flops is not None or plan.free


kind_of = per_op_cache(Kind)


class Values:
    """Holds the arguments or the results of a call, as the trace has them: tensors without values, and numbers.

    devices: "cuda" or "cpu" of each tensor.
    """

    def __init__(self, found: dict) -> None:
        self.devices: list[str] = []
        columns = (found["values"], found["shapes"], found["types"], found.get("strides") or found["shapes"])
        self.all = [self._one(*column) for column in zip(*columns, strict=True)]

    def _one(self, value: Any, shape: Any, kind: str, strides: Any) -> Any:
        if kind.startswith("GenericList["):
            kinds = kind.removeprefix("GenericList[").removesuffix("]").split(",")
            if not isinstance(value, list) or "Tensor(" not in kind:
                return value
            return [self._one(*one) for one in zip(value, shape, kinds, strides, strict=True)]
        if not kind.startswith("Tensor("):
            return None if kind == "None" or value == "<None>" else value
        if not isinstance(value, list) or "nullptr" in kind:
            return None
        self.devices.append(str(value[-1]).split(":")[0])
        return _tensor(kind, tuple(shape), tuple(strides))

    @property
    def tensors(self) -> tuple:
        """Returns the tensors, with those of lists in their place."""
        flat = (one for value in self.all for one in (value if isinstance(value, list) else (value,)))
        return tuple(one for one in flat if isinstance(one, torch.Tensor) or one is None)


def schema_of(node: dict) -> str:
    """Returns the schema of the operator that a node of the trace is a call of, "" if it is none's."""
    return next((str(one["value"]) for one in node["attrs"] if one["name"] == "op_schema"), "")


def mark_of(node: dict) -> list[str] | None:
    """Returns the words of a mark, None for another node."""
    name = node["name"]
    return name.removeprefix(launches.MARK).split(launches.SEPARATOR) if name.startswith(launches.MARK) else None


class Timing:
    """Puts calls on the clock of a GPU, in their order.

    untimed: the names of what has no time, with the number of launches. kernels: launches of kernels that Inductor
    generated. nbytes: bytes that these read and write. operators: calls of PyTorch's operators that launch kernels.
    attentions: calls of fused attention among them. masked: those with a mask. replays: of CUDA graphs. steps: readings
    of the clock, one at the end of each optimizer step.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.clock = Clock(spec)
        self.clock.graph_task = lambda: 0 if self._backward else -1
        self.untimed: Counter[str] = Counter()
        self.kernels = self.nbytes = self.operators = self.attentions = self.masked = self.replays = 0
        self.steps: list[Reading] = []
        self._graphs: dict[str, Capture] = {}
        self._backward = False

    def play(self, nodes: Iterable[dict]) -> None:
        """Puts the nodes of a trace on the clock, in the order of their numbers."""
        calls = sorted(nodes, key=lambda node: node["id"])
        inside: dict[int, list[dict]] = defaultdict(list)
        for node in calls:
            inside[node["ctrl_deps"]].append(node)
        known: set[int] = set()  # calls whose time is part of another's
        backward: set[int] = set()
        for node in calls:
            number, parent = node["id"], node["ctrl_deps"]
            if node["name"].startswith(_BACKWARD) or parent in backward:
                backward.add(number)
            self._backward = number in backward
            if parent in known:
                known.add(number)
                continue
            words = mark_of(node)
            if words is not None:
                self._marked(*words)
            elif self._is_whole(node, inside[number]):
                known.add(number)

    # Marks

    def _marked(self, what: str, *words: str) -> None:
        clock = self.clock
        if what == launches.KERNEL:
            self._generated(*words[1:])
        elif what == launches.OPAQUE:
            self.untimed[words[0]] += 1
        elif what == launches.STEP:
            self.steps.append(clock.reading())
        elif what == launches.WAIT:
            clock.synchronize()
        elif what == launches.CAPTURE:
            clock.capture = Capture(STREAM)
        elif what == launches.CAPTURED and clock.capture is not None:
            self._graphs[words[0]], clock.capture = clock.capture, None
        elif what == launches.REPLAY:
            self._replayed(words[0])

    def _replayed(self, graph: str) -> None:
        if graph not in self._graphs:
            self.untimed["a CUDA graph whose capture was not observed"] += 1
            return
        self.replays += 1
        self.clock.replay(STREAM, self._graphs[graph])

    def _generated(self, moved: str, computed: str, dtype: str) -> None:
        nbytes, operations = int(moved), int(computed)
        self.kernels += 1
        self.nbytes += nbytes
        work = nbytes / achieved_rates.bandwidth(self.spec)
        if operations:
            work = max(work, operations / achieved_rates.rate(self.spec, self._precision(dtype)))
        self.clock.launch(STREAM, work, name=GENERATED)

    def _precision(self, dtype: str) -> str:
        name = achieved_rates.FLOAT8 if dtype.startswith("fp8") else TRITON.get(dtype, "float32")
        return name if achieved_rates.known(self.spec, name) else "float32"

    # Operators

    def _is_whole(self, node: dict, parts: list[dict]) -> bool:
        """Puts a call on the clock if its time includes that of the calls inside it; returns whether it does."""
        name, schema = node["name"], schema_of(node)
        if name.startswith(_COLLECTIVES):
            self.untimed[f"the collective {name}"] += 1
            return True
        if not schema or name.startswith(_NO_WORK):
            return False
        try:
            given, made = Values(node["inputs"]), Values(node["outputs"])
        except UnknownDtypeError as error:
            self.untimed[str(error)] += 1
            return True
        if "cuda" not in (*given.devices, *made.devices):
            return False
        operator = operator_of(schema)
        if operator is None or not name.startswith(_OF_PYTORCH):
            return self._of_a_library(name, parts)
        kind = kind_of(operator)
        if name == "aten::_to_copy" and "cpu" in (*given.devices, *made.devices):
            return False  # the copy inside of it crosses, whatever `known` has put in its place
        if name == "aten::copy_" and "cpu" in given.devices:
            self._crosses(operator, given)
            return True
        if name == "aten::_local_scalar_dense":
            self.clock.copy(STREAM, given.tensors[0].element_size(), TO_HOST, pinned=False, blocking=True)
            return True
        if kind.composite or any(one["name"] == name and _on_gpu(one) for one in parts):
            return False  # it is only made of others, or autocast or a subclass of tensors calls it again
        if not kind.view and not kind.whole and any(map(_on_gpu, parts)):
            return False
        self._issue(operator, kind, given, made)
        return True

    def _of_a_library(self, name: str, parts: list[dict]) -> bool:
        """Handles an operator that is not PyTorch's, which has no time unless it is made of calls that have one."""
        if any(mark_of(one) is not None or _on_gpu(one) for one in parts):
            return False
        self.untimed[f"the operator {name}"] += 1
        return True

    def _crosses(self, operator: Any, given: Values) -> None:
        """Copies between host and GPU. The trace does not say what is pinned: what does not block is taken to be."""
        args, kwargs = _arguments(operator, given.all)
        target, source, free = (*args, *kwargs.values())[:3]
        nbytes = min(costs.size(target), costs.size(source))
        direction = TO_GPU if given.devices[0] == "cuda" else TO_HOST
        self.clock.copy(STREAM, nbytes, direction, pinned=bool(free), blocking=not free)

    def _issue(self, operator: Any, kind: Kind, given: Values, made: Values) -> None:
        """Puts a call on the clock as the meta engine does (`costs.issue`)."""
        if kind.view:
            return self.clock.view()
        args, kwargs = _arguments(operator, given.all)
        kernels, work = costs.cost(self.spec, operator, args, kwargs, made.tensors)
        if not kernels:
            return self.clock.view()
        plan, overhead = costs.plan_of(operator), rates.OPERATOR
        if plan.lists:
            lists = [one for one in args if isinstance(one, list) and one and isinstance(one[0], torch.Tensor)]
            overhead += rates.TENSOR * (len(lists[0]) if lists else 0)
        self.operators += 1
        if plan.attention:
            self.attentions += 1
            mask = next((name for name in ("attn_bias", "attn_mask") if arguments.has(operator, name)), None)
            self.masked += mask is not None and arguments.given(operator, mask, args, kwargs) is not None
        self.clock.launch(STREAM, work, kernels, overhead, plan.name)
        if plan.name in SIZES | BRANCH:
            self.clock.synchronize()
        return None


def of(observed: launches.Launches, spec: Spec) -> Timing:
    """Puts what was observed since the last call on a clock, and returns what has been observed in all."""
    if observed.timing is None:
        observed.timing = Timing(spec)
    observed.timing.play(observed.taken())
    return observed.timing


def document(observed: launches.Launches, spec: Spec, foreign: int) -> dict[str, Any]:
    """Returns what is known of a run's time when the program has ended, as plain data.

    foreign: how many kernels were launched that are not PyTorch's own, and replays of CUDA graphs.
    """
    found = of(observed, spec)
    others = foreign - observed.marked
    if others > 0:
        found.untimed["a kernel of an extension, or one that was compiled while the program ran"] += others
    return {
        "untimed": dict(found.untimed),
        "run": None if observed.cut else found.clock.reading(),
        "cut": observed.cut,
        "step": step_of(found.steps),
        "kernels": found.kernels,
        "nbytes": found.nbytes,
        "operators": found.operators,
        "replays": found.replays,
    }


def step_of(ends: Sequence[Reading]) -> Reading | None:
    """Returns the time of a step from the readings at the ends of all steps, None if there are fewer than two.

    It is the median of the later half, because in the first ones code is compiled and CUDA graphs are captured.
    """
    steps = [after.since(before) for before, after in pairwise(ends)]
    later = sorted(steps[len(steps) // 2 :], key=lambda one: one.seconds)
    return later[len(later) // 2] if later else None


def _on_gpu(node: dict) -> bool:
    """Returns whether a node is a call of an operator with a tensor on the GPU."""
    return bool(schema_of(node)) and any("cuda" in str(node[part]["values"]) for part in ("inputs", "outputs"))


def _arguments(operator: Any, values: list) -> tuple[tuple, dict[str, Any]]:
    """Returns the values by position, and those that a schema allows by name only."""
    named = [one.name for one in operator._schema.arguments if one.kwarg_only]
    place = len(operator._schema.arguments) - len(named)
    return tuple(values[:place]), dict(zip(named, values[place:], strict=False))
