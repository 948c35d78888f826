"""The owner of each block: parameters, gradients and optimizer states, found by asking modules and optimizers."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

PARAMETERS = "parameters and buffers"
GRADIENTS = "gradients"
STATES = "optimizer states"
ACTIVATIONS = "activations kept for backward"
TEMPORARIES = "temporaries"
WORKSPACES = "workspaces"
DATA = "inputs and data"
GRAPHS = "CUDA graph pools"
GATHERED = "gathered parameters"
REDUCED = "reduce-scatter buffers"
KV_CACHE = "KV cache"
NESTED = 4
"""Dictionaries and lists inside each other in which an optimizer's states are looked for."""
PARTS = (PARAMETERS, GATHERED, GRADIENTS, REDUCED, STATES, KV_CACHE, ACTIVATIONS, TEMPORARIES, WORKSPACES, DATA)
OF_FSDP = {
    ("_fsdp_collectives.py", "foreach_all_gather"): GATHERED,
    ("_fsdp_collectives.py", "foreach_all_gather_copy_out"): GATHERED,
    ("_fsdp_collectives.py", "foreach_reduce"): REDUCED,
    ("_fsdp_param.py", "init_all_gather_outputs"): GATHERED,
    ("_fsdp_param.py", "alloc_all_gather_outputs"): GATHERED,
    ("_fsdp_param.py", "init_unsharded_param"): GATHERED,
    ("_flat_param.py", "shard"): PARAMETERS,
    ("_flat_param.py", "init_flat_param_attributes"): GATHERED,
    ("_flat_param.py", "_use_low_precision_shard"): GATHERED,
    ("_flat_param.py", "_alloc_padded_unsharded_flat_param"): GATHERED,
    ("_runtime_utils.py", "_post_backward_hook"): REDUCED,
}
"""The functions in which FSDP2 (the first six) and FSDP1 allocate parameters and the buffers of their collectives.

FSDP2 gathers the parameters of a group into one buffer and copies each of them out into a storage of its own. FSDP1
gathers a flat parameter where its layers use it. A shard that is cast before it is gathered counts as gathered, too.
What comes out of a reduce-scatter becomes the gradient, and then has that owner. While a flat parameter is gathered, no
module holds this rank's shard of it.
"""


@cache
def of_fsdp(file: str, function: str) -> str | None:
    """Returns the kind of memory that a function of FSDP allocates, None for any other function."""
    folder, _, name = file.replace("\\", "/").rpartition("/")
    inside = "/torch/distributed/" in folder and "fsdp" in folder
    return OF_FSDP.get((name, function)) if inside else None


class _Wanted(dict):
    """Returns whether a type is one of modules or optimizers, and remembers the answer."""

    def __missing__(self, kind: type) -> bool:
        answer = self[kind] = issubclass(kind, (nn.Module, Optimizer))
        return answer


class Owners:
    """Asks the optimizers that step, and the modules that are alive, which tensors they own.

    Optimizers are asked before and after each step. Modules, which take longer to find, are asked at steps 1, 2, 4, 8
    and so on, after backward passes, and at the end. `steps`: how many steps the optimizer with most of them has made.
    `stepping`: whether one steps now. `on_step(optimizer)` and `before_step(optimizer)`, if they are set, are called.
    """

    def __init__(self):
        self.stepping = False
        self.steps = 0
        self.on_step: Callable | None = None
        self.before_step: Callable | None = None
        self.counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._parameter_steps: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._handles: list = []
        self._mark: Callable = lambda tensor, owner, parameter=None: None
        self.on_modules: Callable[[list[nn.Module]], None] | None = None  # called with all that are found
        self._stepped: Callable | None = None
        self._modules: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # that have registered parameters
        self._next_look = 1
        self.roots: list[nn.Module] | None = None  # where they are known, nobody else is asked

    def begin(self, mark: Callable[..., None], stepped: Callable[[int], None] | None = None) -> None:
        """From here on `mark(tensor, owner, parameter)` is called for each tensor whose owner is known (`parameter`:
        that of a gradient or a state, otherwise None), and `stepped(steps)` after the step of an optimizer that has
        made more steps than any other."""
        self._mark, self._stepped = mark, stepped
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
            register_module_parameter_registration_hook(self._registers),
        ]

    def end(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def claim(self, tensor: torch.Tensor, owner: str) -> None:
        """Marks a tensor whose owner the caller knows."""
        self._mark(tensor, owner)

    def _before(self, optimizer, args, kwargs) -> None:
        if torch.compiler.is_compiling():
            return
        if self.before_step is not None:
            self.before_step(optimizer)
        self.stepping = True
        self._of_optimizer(optimizer)

    def _after(self, optimizer, args, kwargs) -> None:
        if torch.compiler.is_compiling():
            return
        self.stepping = False
        self.counts[optimizer] = max(self._count(optimizer), self.counts.get(optimizer, 0))
        more = self.counts[optimizer] > self.steps
        self.steps = max(self.steps, self.counts[optimizer])
        self._of_optimizer(optimizer)
        if self.steps >= self._next_look:
            self._next_look *= 2
            self.look()
        if more and self._stepped is not None:
            self._stepped(self.steps)
        if self.on_step is not None:
            self.on_step(optimizer)

    def _count(self, optimizer: Optimizer) -> int:
        """Steps that the most often stepped of an optimizer's parameters have made.

        DeepSpeed's ZeRO calls `step` once for each group of parameters (runtime/zero/stage_1_and_2.py,
        `_optimizer_step`), which together are one step.
        """
        stepped = self._parameter_steps.setdefault(optimizer, WeakIdKeyDictionary())
        most = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                count = stepped[parameter] = stepped.get(parameter, 0) + 1
                most = max(most, count)
        return most

    def fewest(self, optimizer: Optimizer) -> int:
        """Steps that the least often stepped of an optimizer's parameters have made; those never stepped aside."""
        return min(self._parameter_steps.get(optimizer, {}).values(), default=0)

    def _of_optimizer(self, optimizer: Optimizer) -> None:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._of_parameter(parameter)
            for parameter, state in list(optimizer.state.items()):
                for tensor in _tensors(state):
                    self._mark(tensor, STATES, parameter)

    def _of_parameter(self, parameter) -> None:
        self._mark(parameter, PARAMETERS)
        gradient = _gradient(parameter)
        if gradient is not None:
            self._mark(gradient, GRADIENTS, parameter)

    def _registers(self, module, name, parameter) -> None:
        self._modules[id(module)] = module

    def after_backward(self, passes: int) -> None:
        """Marks the gradients after backward pass number `passes`: those of all leaves that are alive after passes 1,
        2, 4 and so on, and those of the modules that are known after the others."""
        if passes & (passes - 1) == 0:
            self.look(leaves=True)
            return
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            for module in list(self._modules.values()):
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._of_parameter(parameter)

    def look(self, leaves: bool = False) -> None:
        """Asks all modules and optimizers that are alive, or those of `roots`; `leaves`: also all tensors that have a
        gradient of their own."""
        if self.roots is not None:
            found = [module for root in self.roots for module in root.modules()]
        else:
            wanted = _Wanted()
            alive = gc.get_objects()
            found = [one for one in alive if wanted[type(one)]]
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if leaves and self.roots is None:
                for one in alive:
                    gradient = _gradient(one) if type(one) in (torch.Tensor, nn.Parameter) else None
                    if gradient is not None:
                        self._mark(gradient, GRADIENTS, one)
            for one in found:
                if isinstance(one, Optimizer):
                    with contextlib.suppress(AttributeError):  # one that was never finished: its __init__ raised
                        self._of_optimizer(one)
                    continue
                for parameter in vars(one).get("_parameters", {}).values():
                    if isinstance(parameter, torch.Tensor):
                        self._of_parameter(parameter)
                for buffer in vars(one).get("_buffers", {}).values():
                    if isinstance(buffer, torch.Tensor):
                        self._mark(buffer, PARAMETERS)
            if self.on_modules is not None:
                self.on_modules([one for one in found if isinstance(one, nn.Module)])


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the gradient of a leaf, None for any other tensor.

    A view that a split made has no `grad_fn` any more after its base was changed in place, and raises where it is asked
    whether it is a leaf (torch/csrc/autograd/variable.cpp, grad_fn). FSDP1 leaves such views as parameters.
    """
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None


def _tensors(state: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in an optimizer's state, which may be nested."""
    if isinstance(state, torch.Tensor):
        yield state
    elif depth < NESTED:
        inner = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
        for one in inner:
            yield from _tensors(one, depth + 1)
