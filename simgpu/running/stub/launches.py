"""Observes what a program launches on the stub engine: PyTorch's operators, and what is launched without one.

PyTorch's execution trace notes each call of an operator with the shapes and dtypes of its tensors, also in backward and
in compiled code. It changes nothing of what is allocated. (A dispatch mode would, because autograd adds gradients in
place only without one.) Marks in the trace say where a kernel that Inductor generated, a CUDA graph or a wait comes.
`timing` puts all of it on a clock.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

LIMIT = 150 * 2**20
"""Bytes of the trace after which nothing more is noted, about 120,000 calls."""
MOST = 2 * LIMIT
"""Bytes of a trace that is not read, because its calls would need several GB here."""
EVERY = 64
"""The size of the trace is read at every 64th mark, or read of a value."""
LONG, UNWRITTEN = "the run was too long", "the trace of what was launched could not be written"
OTHERS = "the program records an execution trace of its own"
here: Launches | None = None
"""The observation in this process, None before torch is imported."""
MARK, SEPARATOR = "simgpu mark ", "|"
_NODE = re.compile(r"^ *\{$", re.M)
_CALL = re.compile(r'"op_schema", "type": "string", "value": "[^"]')
KERNEL, OPAQUE, STEP, WAIT = "kernel", "opaque", "step", "wait"
CAPTURE, CAPTURED, REPLAY = "capture", "captured", "replay"


def shorten(path: Path) -> None:
    """Frees what a trace of more than MOST bytes occupies on the disk, while it is being written.

    Its length is that of all calls again as soon as the next one is written, so `taken` sees that it is too long.
    """
    try:
        if path.stat().st_size > MOST:
            os.truncate(path, 0)
    except FileNotFoundError:  # the process has read and deleted it
        pass


def nodes_of(trace: str) -> list[dict]:
    """Returns the nodes of a trace.

    PyTorch does not escape quotes in names and arguments. A name that the program gave to a part of its code does not
    matter, and its node is skipped. A call of an operator that cannot be read has no time.
    """
    try:
        return json.loads(trace)["nodes"]
    except ValueError:
        pieces = (one.rstrip().rstrip("]").rstrip().rstrip(",") for one in _NODE.split(trace)[1:])
        return [one for one in map(_node, pieces) if one is not None]


def _node(text: str) -> dict | None:
    try:
        return json.JSONDecoder().raw_decode("{" + text)[0]
    except ValueError:
        number = re.search(r'"id": (\d+)', text)
        if number is None or not _CALL.search(text):
            return None
        name = SEPARATOR.join((MARK + OPAQUE, "a call whose arguments cannot be read"))
        return {"id": int(number[1]), "name": name, "ctrl_deps": 0, "attrs": []}


def _plain(word: object) -> str:
    return re.sub(r'["\\\x00-\x1f|]', " ", str(word))


class _Paused(threading.local):
    """Counts how many `paused` blocks a thread is in."""

    times = 0


def _quietly(call: Callable[[], object]) -> None:
    """Calls a function of PyTorch's without the line that it writes to standard error."""
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # the program has closed standard error
        call()
        return
    os.dup2(nowhere, 2)
    try:
        call()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Launches:
    """Observes launches from `begin` on. The trace is a file in `folder`.

    cut: why not everything was noted, "" if everything was so far. marked: how many launches of kernels that are not
    PyTorch's own, and of CUDA graphs, have a mark. timing: the clock of `timing.of` and what it has put on it, None
    before it was called.
    """

    def __init__(self, folder: str) -> None:
        self.cut = ""
        self.marked = 0
        self.timing: Any = None
        self._path = os.path.join(folder, "trace.json")
        self._torch: Any = None
        self._running = self._registered = self._gave_way = False
        self._paused = _Paused()
        self._looks = 0
        os.register_at_fork(after_in_child=self._forked)

    def begin(self, torch: Any) -> None:
        """Begins to note each call of an operator in the trace."""
        self._torch = torch
        self._start()

    def _start(self) -> None:
        if self._gave_way:
            return
        profiler = self._torch._C._profiler
        self._running = self._registered = bool(profiler._add_execution_trace_observer(self._path))
        if not self._running:
            self.cut = UNWRITTEN
        else:
            _quietly(profiler._enable_execution_trace_observer)

    def _give_way(self) -> None:
        """Ends the observation where the program begins one of its own, because PyTorch has a single observer."""
        self.cut, self._gave_way = OTHERS, True
        self.end()

    def taken(self) -> list[dict]:
        """Returns the nodes that were noted since the last call, and deletes the file of the trace.

        A trace of more than MOST bytes is deleted without being read, and `cut` then says so.
        """
        running = self._running
        self.end()
        if not os.path.exists(self._path):
            return []
        if not 0 < os.stat(self._path).st_size <= MOST:  # a long loop without steps, reads or marks; 0 after `shorten`
            self.cut = LONG
            os.unlink(self._path)
            return []
        with open(self._path, encoding="utf-8", errors="replace") as file:
            trace = file.read()
        os.unlink(self._path)
        if not trace.rstrip().endswith("}"):  # the disk was full
            self.cut = UNWRITTEN
            return []
        if running and not self.cut:
            self._start()
        return nodes_of(trace)

    def end(self) -> None:
        """Ends the observation, and completes the file of the trace."""
        self._running = False
        if self._registered:
            self._registered = False
            _quietly(self._torch._C._profiler._remove_execution_trace_observer)

    def _forked(self) -> None:
        """Ends the observation in a forked process, which must write nothing into the trace."""
        self._registered = False
        self._disable()

    def _disable(self) -> None:
        if self._running:
            self._running = False
            _quietly(self._torch._C._profiler._disable_execution_trace_observer)

    def look(self) -> None:
        """Ends the observation where the trace has become too long."""
        self._looks += 1
        if self._looks % EVERY == 0 and self._running and os.stat(self._path).st_size > LIMIT:
            self.cut = LONG
            self._disable()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Notes nothing of this thread inside, where PyTorch compiles and calls operators on tensors without memory."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    def _pause(self) -> None:
        self._paused.times += 1
        if self._paused.times == 1 and self._torch is not None:
            self._torch.autograd._enable_record_function(False)

    def _resume(self) -> None:
        self._paused.times -= 1
        if not self._paused.times and self._torch is not None:
            self._torch.autograd._enable_record_function(True)

    def mark(self, *words: object) -> None:
        """Notes words at this point of the trace."""
        self.look()
        if not self._running or self._paused.times:
            return
        profiler = self._torch.ops.profiler
        with self._torch._C._DisableTorchDispatch():  # a mode of the program's must not see it
            record = profiler._record_function_enter_new.default(MARK + SEPARATOR.join(map(_plain, words)), None)
            profiler._record_function_exit._RecordFunction(record)

    # What is marked

    def torch_imported(self, torch: Any) -> None:
        """Marks CUDA graphs and waits."""
        global here
        here = self
        graph = torch.cuda.CUDAGraph
        _before(graph, "capture_begin", lambda one: self.mark(CAPTURE, id(one)))
        _after(graph, "capture_end", lambda one: self.mark(CAPTURED, id(one)))
        _before(graph, "replay", self._replayed)
        _before(torch.profiler.profiler, "_add_execution_trace_observer", lambda *_: self._give_way())
        for owner, name in ((torch._C, "_cuda_synchronize"), *((one, "synchronize") for one in _waiting(torch))):
            _before(owner, name, lambda *_: self.mark(WAIT))

    def _replayed(self, graph: object) -> None:
        self.marked += 1
        self.mark(REPLAY, id(graph))

    def then(self) -> dict[str, Callable[[Any], None]]:
        """Returns by the name of a module the function to call with it once it has been imported."""
        return {
            "torch._inductor.codegen.triton": _with_bytes_of("TritonKernel", "codegen_kernel"),
            "torch._inductor.select_algorithm": _with_bytes_of("TritonTemplateKernel", "jit_lines"),
            "torch._inductor.runtime.triton_heuristics": self._generated_kernels,
            "triton.runtime.jit": self._triton_kernels,
            "torch._dynamo.convert_frame": self._compiler,
            "torch._subclasses.fake_tensor": self._fake_tensors,
        }

    def _generated_kernels(self, module: Any) -> None:
        autotuner, launches, real = module.CachingAutotuner, self, module.CachingAutotuner.run

        @functools.wraps(real)
        def run(self, *args, **kwargs):
            launches.marked += 1
            launches.mark(*words_of(self, args))
            return real(self, *args, **kwargs)

        autotuner.run = run

    def _triton_kernels(self, module: Any) -> None:
        function, launches, real = module.JITFunction, self, module.JITFunction.run

        @functools.wraps(real)
        def run(self, *args, **kwargs):
            if not kwargs.get("warmup"):
                launches.marked += 1
                launches.mark(OPAQUE, f"the Triton kernel {self.__name__}")
            return real(self, *args, **kwargs)

        function.run = run

    def _compiler(self, module: Any) -> None:
        real = getattr(module, "_compile", None)
        if real is None:
            return

        @functools.wraps(real)
        def _compile(*args, **kwargs):
            with self.paused():
                return real(*args, **kwargs)

        module._compile = _compile

    def _fake_tensors(self, module: Any) -> None:
        _before(module.FakeTensorMode, "__enter__", lambda _: self._pause())
        _after(module.FakeTensorMode, "__exit__", lambda _: self._resume())


def _before(owner: Any, name: str, do: Callable) -> None:
    """Makes a function of `owner` call `do` with its first argument before it runs, where this torch has it."""
    if not hasattr(owner, name):
        return
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*args, **kwargs):
        do(*args[:1])
        return real(*args, **kwargs)

    setattr(owner, name, call)


def _after(owner: Any, name: str, do: Callable) -> None:
    """Makes a function of `owner` call `do` with its first argument after it has run."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*args, **kwargs):
        result = real(*args, **kwargs)
        do(*args[:1])
        return result

    setattr(owner, name, call)


def _waiting(torch: Any) -> tuple[Any, ...]:
    return torch.cuda.Event, torch.cuda.Stream


def _with_bytes_of(kind: str, method: str) -> Callable[[Any], None]:
    """Returns a function that makes a class of Inductor's kernels write their bytes into the source (`with_bytes`)."""

    def change(module: ModuleType) -> None:
        owner = getattr(module, kind, None)
        if hasattr(owner, method):
            setattr(owner, method, with_bytes(getattr(owner, method)))

    return change


def with_bytes(write: Callable) -> Callable:
    """Wraps a method that writes a kernel's source, so that the source has the kernel's bytes and operations.

    They are Inductor's own counts, which it writes only if its settings ask for code that times each kernel.
    """

    @functools.wraps(write)
    def written(self, *args, **kwargs):
        common = self.inductor_meta_common
        self.inductor_meta_common = lambda: {**common(), **counts_of(self)}
        try:
            return write(self, *args, **kwargs)
        finally:
            del self.inductor_meta_common

    return written


def counts_of(kernel: Any) -> dict[str, float]:
    """Returns the bytes (in GB) and operations of a kernel that Inductor generates, under the names it has for them."""
    found = {"kernel_num_gb": kernel.estimate_kernel_num_bytes() / 1e9}
    operations = kernel.estimate_flops() if hasattr(kernel, "estimate_flops") else None
    return found if operations is None else {**found, "kernel_flop": operations}


def words_of(kernel: Any, args: tuple) -> tuple[object, ...]:
    """Returns the mark of a kernel that Inductor launches: its name, bytes, operations, and the dtype it computes in.

    Several operators' loops in one kernel have no count of their own, and read or write each argument once. A kernel
    that the program brought along has no time, and neither has one of a template without a count of operations.
    """
    about = kernel.inductor_meta
    name = about.get("kernel_name") or kernel.fn.__name__
    operations = about.get("kernel_flop") or 0
    if getattr(kernel.heuristic_type, "name", "") == "USER_AUTOTUNE":
        return OPAQUE, f"the Triton kernel {kernel.fn.__name__}"
    if "triton_tem" in f"{name} {kernel.fn.__name__}" and not operations:
        return OPAQUE, f"Inductor's template {name}"
    size, signature = about.get("kernel_num_gb"), kernel.triton_meta.get("signature", {})
    nbytes = bytes_of_arguments(args, signature) if size is None else round(1e9 * size)
    return KERNEL, name, nbytes, int(operations), _dtype(signature)


def bytes_of_arguments(args: Iterable[Any], names: Iterable[str]) -> int:
    """Returns the bytes of the tensors among a kernel's arguments, twice of those that are read and written."""
    pairs = zip(args, names, strict=False)
    tensors = [(one, 1 + name.startswith("in_out_ptr")) for one, name in pairs if hasattr(one, "element_size")]
    return sum(times * one.numel() * one.element_size() for one, times in tensors)


def _dtype(signature: dict[str, Any]) -> str:
    """Returns the first floating-point type of a Triton signature such as {"in_ptr0": "*bf16"}, "" if there is none."""
    types = (str(one).removeprefix("*") for one in signature.values())
    return next((one for one in types if one.startswith(("bf", "fp"))), "")
