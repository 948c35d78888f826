"""Record workloads in this process' torch, each in a forked child: `python -m tools.oracle.worker FOLDER
[options] NAME ...`.

`tools.oracle.run` starts it, once in the oracle's torch and once in the installed one with `--simulated`. The
imports, which take longer than most workloads, are done once; every child begins with a CUDA that nothing has
touched. Prints "NAME done" or "NAME failed" as each ends.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module, metadata
from pathlib import Path


def main() -> None:
    """Record each workload named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write <name>.json.gz, and <name>.log for one that failed")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--simulated", action="store_true", help="on the simulated GPU")
    parser.add_argument("--values", action="store_true", help="that simulated GPU has the values of all tensors")
    parser.add_argument("--code", help="a snippet to record too")
    parser.add_argument("--quick", action="store_true", help="no stacks of C++, which take the oracle long, no nodes")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one workload")
    options = parser.parse_args()

    import torch

    from tools.oracle import store, workloads

    tasks = {name: workloads.find(name) for name in options.names}
    sources = {name: store.digest(task) for name, task in tasks.items()}
    if options.code is not None:
        tasks[store.SNIPPET] = snippet(options.code)
        sources[store.SNIPPET] = hashlib.sha256(options.code.encode()).hexdigest()[:16]
    provenance = {
        "gpu": options.gpu,
        "torch": torch.__version__,
        "made by": "the simulated GPU"
        if options.simulated
        else "PyTorch's CUDA host code under stub libraries; no GPU was involved",
        "made on": time.strftime("%Y-%m-%d"),
    } | {k: v for k, v in os.environ.items() if k.startswith("MOCK_")}
    if options.values:
        provenance["values"] = True
    modules = (workloads.transformer_models, workloads.trainer, workloads.batch_limit)
    of_transformers = {name for module in modules for name in module.WORKLOADS}
    for_transformers = {}
    if any(name in of_transformers for name in options.names):
        import transformers

        for_transformers["transformers"] = transformers.__version__
    libraries = _imported({library for task in tasks.values() for library in getattr(task, "libraries", ())})
    if for_transformers or "transformers" in libraries:
        # It imports what its models share when the first of them is asked for, which takes longer than most workloads.
        import_module("transformers.models.llama.modeling_llama")
    if any(hasattr(task, "ranks") for task in tasks.values()):
        for module in workloads.ranks.IMPORTS:
            import_module(module)
    options.folder.mkdir(parents=True, exist_ok=True)
    _warm_up(options.simulated, stacks=not options.quick)
    gc.collect()
    gc.freeze()
    for name, task in tasks.items():
        known = provenance | {"source": sources[name]}
        known |= for_transformers if name in of_transformers else {}
        known |= {library: libraries[library] for library in getattr(task, "libraries", ())}
        known |= {"rank": task.rank, "ranks": task.ranks} if hasattr(task, "ranks") else {}
        print(name, "failed" if _in_child(name, task, known, options) else "done", flush=True)


def _imported(libraries: set[str]) -> dict[str, str]:
    """Imports libraries, before the fork, and gives their versions."""
    if "torchvision" in libraries or "timm" in libraries:
        from tools.oracle.zoo import vision

        vision.without_operators()
    for library in libraries:
        import_module(library)
    return {library: metadata.version(library) for library in libraries}


def _warm_up(simulated: bool, stacks: bool = True) -> None:
    """Do once, before the fork, what takes seconds at first and leaves nothing behind. `stacks`: C++'s are read."""
    import torch

    if simulated:
        # Meta kernels import much of torch, those in Python its compiler. No backward: autograd refuses to run after a
        # fork once it has run before.
        from tools.oracle.simulated import simulated_gpu

        with simulated_gpu("A100-80GB"):
            x = torch.ones(2, 2, device="cuda")
            torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ x), (2,)).softmax(-1).sum()
    elif stacks:
        # Reading C++ stacks begins with reading symbols.
        torch._C._profiler.symbolize_tracebacks(
            [torch._C._profiler.gather_traceback(python=True, script=False, cpp=True)]
        )


def snippet(code: str) -> Callable:
    """A workload made of a few lines of Python, in which `torch`, `nn`, `F` and `stage` are at hand."""
    compiled = compile(code, "<code>", "exec")

    def workload(stage: Callable[[str], None]) -> None:
        import torch

        from tools.oracle import store
        from tools.oracle.zoo import answers

        names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "stage": stage}
        with answers.the_same(store.SNIPPET):
            exec(compiled, names)
        stage("end")

    return workload


def _in_child(name: str, task: Callable, provenance: dict, options: argparse.Namespace) -> bool:
    """Run one workload in a child of its own; whether it failed."""
    log = options.folder / f"{name}.log"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(options.timeout)
            with log.open("w") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            _record(name, task, provenance, options)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status == 0:
        log.unlink()
        return False
    if os.WIFSIGNALED(status):
        with log.open("a") as stream:
            stream.write(f"\nended by signal {signal.Signals(os.WTERMSIG(status)).name}\n")
    return True


def _record(name: str, task: Callable, provenance: dict, options: argparse.Namespace) -> None:
    from simgpu.distributed.world import PER_NODE
    from simgpu.recording.history import record
    from tools.oracle import labels

    place = {"rank": task.rank, "ranks": task.ranks} if hasattr(task, "ranks") else {}
    if options.simulated:
        from tools.oracle.simulated import simulated_gpu

        device = simulated_gpu(options.gpu, options.values, nodes=not options.quick, **place)
    elif place:
        from simgpu.stub.rank import rank_of, unhurried

        per_node = min(PER_NODE, task.ranks)
        os.environ["MOCK_NDEV"] = str(per_node)  # the order of some frees goes by the number of the GPU
        device, task = rank_of(**place, per_node=per_node), unhurried(task)
    else:
        device = nullcontext()
    with device:
        trace, _ = record(name, task, provenance, where=labels.where, stacks="python" if options.quick else "all")
    trace.save(options.folder / f"{name}.json.gz")


if __name__ == "__main__":
    main()
