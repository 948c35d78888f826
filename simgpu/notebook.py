"""For notebooks: after `%load_ext simgpu`, the cell magic `%%gpu_memory "RTX 4090"` runs a cell on a simulated GPU.

The report is displayed below the cell's output, also if the cell ends with an error or is interrupted. The GPU is off
again after the cell. Tensors that the cell leaves in variables then have shapes and dtypes, and neither values nor a
device.
"""

from __future__ import annotations

import ast
import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import takewhile
from types import CodeType
from typing import TYPE_CHECKING

from simgpu.device import machine as machines
from simgpu.patches import Patches
from simgpu.placeholder_values import PlaceholderValues
from simgpu.report.report import Report, report_of
from simgpu.report.sizes import capacity
from simgpu.report.watch import Watch
from simgpu.running.endings import ended_by
from simgpu.running.simulation import Simulated
from simgpu.running.steps import Limit
from simgpu.session import simulated_gpu
from simgpu.tracebacks import as_on_gpu

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.magic_arguments import MagicArgumentParser

NAME = "gpu_memory"
ALONE = f"%%{NAME} has a simulated GPU on for this cell, and a second one cannot be entered in it"


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Registers the magic. `%load_ext simgpu` calls it."""

    def gpu_memory(line: str, cell: str) -> None:
        __tracebackhide__ = True
        run_cell(shell, line, cell)

    gpu_memory.__doc__ = _parser().format_help()
    shell.register_magic_function(gpu_memory, "cell", NAME)  # pyright: ignore[reportArgumentType]


def _parser() -> MagicArgumentParser:
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser(f"%%{NAME}", description="Runs the cell on a simulated GPU and shows its report.")
    parser.allow_abbrev = False
    parser.add_argument("gpu", nargs="?", default="A100-80GB", help="which GPU, as in simgpu run --gpu")
    parser.add_argument("--memory", metavar="SIZE", help="another capacity, with its unit: 12GiB, 500MiB, 16GB")
    parser.add_argument("--values", action="store_true", help="tensors have values, computed on the CPU")
    return parser


def run_cell(shell: InteractiveShell, line: str, cell: str) -> None:
    """Runs a cell on the GPU that the line names, and displays its report.

    Raises UsageError for a line that cannot be read and if a simulated GPU is on, SyntaxError for the cell, and the
    cell's own error. After an error the report is displayed when the cell has ended, below the traceback.
    """
    __tracebackhide__ = True
    from IPython.display import display

    options = _options(line)
    codes = _compiled(shell, cell)
    report, error = _run(lambda: [exec(code, shell.user_ns) for code in codes], options, line)
    if error is None:
        display(report)
        return
    _display_at_the_end(shell, report)
    raise error.with_traceback(as_on_gpu(error.__traceback__))


def _options(line: str) -> Namespace:
    from IPython.core.error import UsageError
    from IPython.utils.process import arg_split

    current = machines.current()
    if current is not None:
        raise UsageError(
            f"a simulated {current.spec.key} is on already, and %%{NAME} enters one for its cell: leave that one first "
            "(end its `with`, or restart the kernel after labkit.use_gpu)"
        )
    options = _parser().parse_args(arg_split(line))
    options.gpu = options.gpu.strip("\"'")
    return options


def _compiled(shell: InteractiveShell, cell: str) -> list[CodeType]:
    """Returns the code of the cell's statements, and of its last expression, whose value is displayed.

    Lines have the numbers that they have below the magic's own line. IPython removes empty lines above the first other.
    """
    empty = len(list(takewhile(lambda line: not line.strip(), cell.splitlines())))
    source = "\n" * (1 + empty) + shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count, raw_code="\n" + cell)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    assert isinstance(tree, ast.Module)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    parts = [(ast.Module(tree.body, []), "exec"), *((ast.Interactive([one]), "single") for one in last)]
    return [shell.compile(part, name, mode) for part, mode in parts]  # pyright: ignore[reportArgumentType]


def _run(execute: Callable[[], object], options, line: str) -> tuple[Report, BaseException | None]:
    """Runs it on the GPU; returns the report, and the error that it ended with."""
    from IPython.core.error import UsageError

    try:
        gpu = simulated_gpu(
            options.gpu, None if options.memory is None else capacity(options.memory), values=options.values
        )
    except ValueError as wrong:
        raise UsageError(str(wrong)) from None
    error = None
    with gpu, _watched(options.values) as simulated:
        try:
            execute()
        except BaseException as raised:
            error = raised
        simulated.watch.close()
        end = ended_by(error, simulated)
        more = {"ended": end.text, "bounds": end.bounds, "interrupted": end.interrupted, "values": options.values}
        more["command"] = f"%%{NAME} {line}".strip()
        return report_of(simulated.watch, "the cell", end.ending, **more), error


@contextlib.contextmanager
def _watched(values: bool) -> Iterator[Simulated]:
    machine = machines.on()
    machine.alone = ALONE
    if not values:
        machine.placeholder_values = PlaceholderValues()
    with Watch(machine) as watch, contextlib.ExitStack() as leave:
        patches = Patches()
        leave.callback(patches.undo)
        limit = Limit(watch.owners)
        limit.patch(patches)
        yield Simulated(watch, limit)


def _display_at_the_end(shell: InteractiveShell, report: Report) -> None:
    """Displays a report when the cell has ended, which is after its traceback."""
    from IPython.display import display

    def at_the_end(*_) -> None:
        shell.events.unregister("post_run_cell", at_the_end)
        display(report)

    shell.events.register("post_run_cell", at_the_end)
