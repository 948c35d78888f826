"""Lists everything that this project has for one operator: rules, checks, shapes, costs and lists, with file and line.

`simgpu explain aten::sort` prints it, by the stages of a call in their order (README.md, at the top). Most of it is the
operator's record (op_spec.py). The rest are tables of names that modules keep for the clock, for dtypes and for error
texts. TABLES names them all, and a test finds those that are missing there. `--all` prints every operator of PyTorch
without lines and descriptions, so that the text changes only if a rule is added, moved or removed.
tests/data/operators_explained.txt holds it:

    python -m simgpu explain --all > tests/data/operators_explained.txt
"""

import ast
import difflib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from simgpu import handlers, session, unmodeled
from simgpu.autograd import formulas
from simgpu.checks import devices, dtypes, missing_cuda_kernels, overlaps
from simgpu.cpu_reference import execute
from simgpu.dispatch import costs, fusion, kernel_work, no_mode_guard, op_traits
from simgpu.distributed import operators as collectives
from simgpu.op_info import composite_explicit, op_spec
from simgpu.ops import autocast, custom, dispatcher, op_call
from simgpu.running.stub import known
from simgpu.shapes import meta_kernels, optimizers

FOLDER = Path(__file__).parent
NAMESPACES = ("aten", "c10d")
"""The namespaces of operators that `--all` lists."""
SHORT = 60
"""Characters of a value that is printed next to its name."""

assert session  # its import loads all that registers something


class Table(NamedTuple):
    """One table: `variable` of `module`, a dict, a set, or a text of names.

    `stage` is the part of a call in which it is read, and `word` says what it holds. `keys` returns what an OpOverload
    may be called there, and `applies` whether it counts for an OpOverload that it lists.
    """

    stage: str
    word: str
    module: ModuleType
    variable: str
    keys: Callable[[Any], tuple]
    applies: Callable[[Any], Any] = bool


class Entry(NamedTuple):
    """One thing that there is for an operator: its stage and word, its name and place, and a text."""

    stage: str
    word: str
    name: str
    file: str
    line: int
    text: str


class Place(NamedTuple):
    """Where something was declared: file, line, and the comment there."""

    file: str
    line: int
    comment: str = ""


def _itself(operator) -> tuple:
    return (operator,)


def _named(operator) -> tuple:
    """Returns "aten::sort.stable"."""
    return (operator.name(),)


def _packet(operator) -> tuple:
    return (operator.overloadpacket,)


def _is_known_list(operator) -> bool:
    return optimizers._writes(operator) is not None


def _opname(operator) -> tuple:
    """Returns "sort" for aten::sort.stable."""
    return (operator._opname,) if operator.namespace == "aten" else ()


def _plain(operator) -> tuple:
    """Returns "sort.stable" for aten::sort.stable, and "sort" for the default overload."""
    return (operator.name().removeprefix("aten::"),) if operator.namespace == "aten" else ()


def _qualified(operator) -> tuple:
    return (operator._schema.name,)


def _out_of_place(operator) -> tuple:
    """Returns the names in `overlaps` and `wrong_device`: without the underscore of operators in place."""
    name = operator._opname.removesuffix("_")
    return name, f"{operator._opname}.{operator._overloadname}", f"{name}.{operator._overloadname}"


def _of_each(operator) -> tuple:
    """Returns "add" for aten::_foreach_add_.Scalar."""
    return (operator._opname.removeprefix("_foreach_").removesuffix("_"),)


def _collective(operator) -> tuple:
    return (operator._opname,) if operator.namespace == "c10d" else ()


def _functions(operator) -> tuple:
    """Returns the functions of torch with an operator's name, which a program may call for it."""
    name = operator._opname if operator.namespace == "aten" else ""
    owners: list[tuple[Any, str]] = [(torch, name), (torch.Tensor, name), (torch.nn.functional, name)]
    for module in (torch.linalg, torch.special, torch.fft):
        prefix = module.__name__.rpartition(".")[2] + "_"
        owners += [(module, name.removeprefix(prefix))] if name.startswith(prefix) else []
    found = dict.fromkeys(getattr(owner, name, None) for owner, name in owners)
    return tuple(one for one in found if callable(one))


STAGES = (
    "call from Python",
    "above autograd",
    "outside the modes",
    "placement",
    "check",
    "decomposition",
    "shapes",
    "memory",
    "collective",
    "time",
    "values",
    "values=True",
    "backward",
    "stub engine",
)
"""The stages of a call, in their order."""

TABLES = (
    Table("call from Python", "handler", handlers, "_handlers", _functions),
    Table("above autograd", "autocast", autocast, "LOWER", _plain),
    Table("above autograd", "autocast", autocast, "FP32", _plain),
    Table("above autograd", "autocast", autocast, "FP32_RESULT", _plain),
    Table("above autograd", "autocast", autocast, "NORM", _plain),
    Table("above autograd", "autocast", autocast, "WIDEST", _plain),
    Table("above autograd", "autocast", autocast, "BANNED", _plain),
    Table("outside the modes", "refusal", no_mode_guard, "FACTORIES", _plain),
    Table("placement", "one device", devices, "_ONE_DEVICE", _out_of_place, devices.wants_one_device),
    Table("placement", "error text", devices, "_FOUND_BY_ITERATOR", _opname),
    Table("placement", "error text", devices, "_CALLS", _opname),
    Table("check", "absent", missing_cuda_kernels, "missing_kernels", _named),
    Table("check", "overlap", overlaps, "_ALONE", _out_of_place, overlaps.check_of),
    Table("check", "overlap", overlaps, "_COPIED", _out_of_place, overlaps.check_of),
    Table("check", "overlap", overlaps, "_WITH_INPUTS", _out_of_place, overlaps.check_of),
    Table("check", "overlap", overlaps, "_APART", _out_of_place, overlaps.check_of),
    Table("check", "dtypes", dtypes, "BY_HAND", lambda operator: _name_of_dtypes(operator)),
    Table("decomposition", "not decomposed", composite_explicit, "_PLAIN", _opname, composite_explicit.kernel_of),
    Table("decomposition", "not decomposed", composite_explicit, "_ON_GPU", _opname, composite_explicit.kernel_of),
    Table("shapes", "shapes", meta_kernels, "_FACTORIES", _opname),
    Table("shapes", "shapes", meta_kernels, "_LOOK_AT_THE_FIRST", _opname),
    Table("shapes", "shapes", optimizers, "OPERATORS", _itself),
    Table("shapes", "shapes", optimizers, "_UNARY", _of_each, _is_known_list),
    Table("shapes", "shapes", optimizers, "_MORE", _of_each, _is_known_list),
    Table("memory", "excluded", unmodeled, "_LIBRARY_OF", _qualified),
    Table("memory", "no memory", unmodeled, "_ASK", _qualified),
    Table("collective", "method", collectives, "_METHODS", _collective),
    Table("time", "kernels", costs, "_NO_KERNEL", _opname),
    Table("time", "kernels", costs, "_KERNELS", _opname),
    Table("time", "bytes", costs, "_OVERWRITTEN", _opname),
    Table("time", "bytes", costs, "ROWS_READ", _opname),
    Table("time", "bytes", costs, "_ROWS_WRITTEN", _opname),
    Table("time", "bytes", costs, "READ_TWICE", _opname),
    Table("time", "bytes", kernel_work, "_ALONG_A_DIM", _opname),
    Table("time", "bytes", kernel_work, "OPERATORS", _opname),
    Table("time", "operations", costs, "_PRODUCTS", _packet),
    Table("time", "operations", costs, "_COUNTED_AS", _packet),
    Table("time", "operations", costs, "flop_registry", _packet),
    Table("time", "operations", kernel_work, "PRODUCTS", _packet),
    Table("time", "operations", kernel_work, "FACTORIZATIONS", _packet),
    Table("time", "fusion", fusion, "_GENERATED", _opname),
    Table("values=True", "on the CPU", execute, "_IN_SINGLE", _opname),
    Table("stub engine", "known values", known, "FILLED", _plain),
    Table("stub engine", "known values", known, "LIKE", _plain),
    Table("stub engine", "known values", known, "MOVES", _plain),
    Table("stub engine", "known values", known, "ROUNDED", _plain),
    Table("stub engine", "known values", known, "SUMS", _plain),
    Table("stub engine", "known values", known, "COMPUTED", _plain),
    Table("stub engine", "known values", known, "SIZED", _plain),
)
"""Every table of names of operators that is not a field of `op_spec.OpSpec`."""


def entries(operator) -> list[Entry]:
    """Returns all that there is for an OpOverload, in the order of a call's stages."""
    found = [*_of_record(operator)]
    for table in TABLES:
        held = _held(table)
        key = next((key for key in table.keys(operator) if key in held), None)
        if key is not None and table.applies(operator):
            line, comment = _assigned(Path(table.module.__file__ or "")).get(table.variable, (1, ""))
            place = Place(table.module.__file__ or "", line, comment)
            found.append(_entry(table.stage, table.word, table.variable, held[key], place))
    found += _dtypes_of_files(operator)
    return sorted(found, key=lambda entry: STAGES.index(entry.stage))


def _of_record(operator) -> Iterator[Entry]:
    """Yields an entry for each field of the operator's record that was declared, and has an effect."""
    record = op_spec.spec(operator)
    for name in op_spec.FIELDS:
        if name not in record.declared or (name == "allocate_as_variant" and record.allocate is not None):
            continue
        file, line = record.declared[name]
        about = op_spec.FIELDS[name].metadata
        value = getattr(record, name)
        value = None if op_spec.FIELDS[name].default is False else value  # a flag
        yield _entry(about["stage"], about["word"], name, value, Place(file, line))


@cache
def _held(table: Table) -> dict:
    """Returns a table's keys and values; the value is None if it is a set or a text of names."""
    held = getattr(table.module, table.variable)
    held = held() if callable(held) else held
    held = held.split() if isinstance(held, str) else held
    return held if isinstance(held, dict) else dict.fromkeys(held)


def _entry(stage: str, word: str, variable: str, value, place: Place) -> Entry:
    """Returns the entry for one value: a function with or without a condition, or data of a table's own."""
    condition = ""
    if isinstance(value, op_spec.Conditional):
        condition = "" if value.when is None else f" (only if {_function(value.when).__name__} holds)"
        value = value.function or "PyTorch's own device-independent kernel" + condition
    if isinstance(value, op_spec.Since):
        condition, value = f" (from torch {value.version[0]}.{value.version[1]} on)", value.function
    function = _function(value)
    if isinstance(function, FunctionType):
        line = function.__code__.co_firstlineno
        text = _first_paragraph(function.__doc__) + condition
        return Entry(stage, word, function.__qualname__, _short(function.__code__.co_filename), line, text)
    text = "" if value is None else _as_text(value)
    short = len(text) <= SHORT
    name = f"{variable}: {text}" if text and short else variable
    return Entry(stage, word, name, _short(place.file), place.line, place.comment if short else text)


def _function(value) -> Any:
    """Returns the function under decorators, partial() and caches."""
    value = value.func if isinstance(value, partial) else value
    value = inspect.unwrap(value)
    if isinstance(value, FunctionType) and value.__closure__ is not None and not value.__doc__:
        inside = [cell.cell_contents for cell in value.__closure__ if isinstance(cell.cell_contents, FunctionType)]
        return inside[0] if len(inside) == 1 else value
    return value


def _as_text(value) -> str:
    """Returns a value in words."""
    if isinstance(value, formulas.Guess):
        return f"{value.name}: {value.why}"
    if isinstance(value, tuple) and value and isinstance(value[0], formulas.Call):
        return "; ".join(f"{'/'.join(sorted(one.nodes)) or 'any formula'}: {one.does}" for one in value)
    if isinstance(value, list) and value and isinstance(value[0], dtypes.Entry):
        return "; ".join(dict.fromkeys(one.says.partition(":")[2].strip() for one in value))
    return str(value)


def _name_of_dtypes(operator) -> tuple:
    """Returns the name under which an OpOverload's dtype checks are stored: its own, or that of its sibling."""
    if dtypes.checks_of(operator) is None:
        return ()
    kept = dtypes._table()
    if operator.name() in kept:
        return (operator.name(),)
    return next((one.name(),) for one in dtypes._same_code(operator) if one.name() in kept)


@cache
def _dtype_files() -> list[tuple[Path, dict]]:
    files = (dtypes.FILE, dtypes.SELDOM_FILE)
    return [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _dtypes_of_files(operator) -> Iterator[Entry]:
    for name in _name_of_dtypes(operator):
        for file, kept in _dtype_files():
            texts = dict.fromkeys(kept["texts"][row[0]] for row in kept["operators"].get(name, ()))
            if texts:
                messages = "; ".join(one.partition(":")[2].strip() for one in texts)
                yield Entry("check", "dtypes", "", _short(file), 0, messages)


@cache
def _short(file: str | Path) -> str:
    """Returns a file's path in this project, from "simgpu/" on, or in PyTorch, from "torch/" on."""
    path = Path(file).resolve()
    # torch first, because its environment may be inside this project
    for root in (Path(torch.__file__).resolve().parents[1], FOLDER.resolve().parent):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.name


@cache
def _assigned(file: Path) -> dict[str, tuple[int, str]]:
    """Returns line and description of each variable that a module assigns: the comment above it, or the text below."""
    source = file.read_text(encoding="utf-8")
    rows = source.splitlines()
    found = {}
    body = ast.parse(source).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        said = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            said = _first_paragraph(after.value.value)
        above, line = [], node.lineno - 2
        while line >= 0 and rows[line].startswith("#"):
            above.insert(0, rows[line].removeprefix("#").strip())
            line -= 1
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, (node.lineno, " ".join(above) or said))
    return found


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


# --- what happens where this project has nothing --------------------------------------------------------------


HAPPENS = {
    "view": "It returns a view, which allocates nothing and starts no kernel.",
    "question": "PyTorch answers it itself.",
    "collective": "The process group of the simulated rank answers it, or PyTorch if no tensor is simulated.",
    "composite": "PyTorch's own C++ decomposes it into other operators, which are seen one by one.",
    "device-independent": "PyTorch's own device-independent kernel calls other operators, which are seen one by one.",
    "in Python": "Its own Python function runs (torch.library.custom_op), and what it calls is seen one by one.",
    "absent": "CUDA has no kernel for it, so a call on the GPU raises NotImplementedError.",
    "fake shapes": "Its fake kernel gives the shapes (torch.library.register_fake).",
    "PyTorch's shapes": "PyTorch's own meta kernel gives the shapes.",
    "shapes of values": "Its shapes depend on values, so these have to be known.",
    "no shapes": "PyTorch has no meta kernel for it, so a call on the GPU raises NotModelledError.",
    "outputs only": "Its outputs are allocated in order, and nothing else.",
}
"""What happens in a stage for which this project has no rule: in short, and as a sentence."""


def defaults(operator) -> list[str]:
    """Returns the keys of HAPPENS for an OpOverload, in the order of a call."""
    kind = _kind(operator)
    if kind is op_traits.COMPOSITE:
        return [] if op_spec.spec(operator).composite else ["composite"]
    if kind is not op_traits.KERNEL:
        return [kind]
    if missing_cuda_kernels.missing(operator):
        return ["absent"]
    if op_call.has_decomposition(operator):
        decided = op_spec.spec(operator).decompose
        return [] if decided else ["in Python" if custom.function_of(operator) else "device-independent"]
    return [*_shapes(operator), *([] if op_call.rule_for(operator) else ["outputs only"])]


def _shapes(operator) -> list[str]:
    if op_spec.spec(operator).shapes is not None:
        return []
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags):
        return ["shapes of values"]
    if custom.has_fake(operator):
        return ["fake shapes"]
    has_meta = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "Meta")
    return ["PyTorch's shapes" if has_meta else "no shapes"]


# --- operators by name ----------------------------------------------------------------------------------------


@cache
def _known_names() -> dict[str, dict[str, list[str]]]:
    """Returns the overloads that PyTorch's dispatcher knows, by namespace and by name."""
    found: dict[str, dict[str, list[str]]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        found.setdefault(namespace, {}).setdefault(name, []).append(overload or "default")
    return found


def _overload(namespace: str, name: str, overload: str):
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def named(text: str) -> list:
    """Returns the OpOverloads of a name: "aten::sort", "aten::sort.stable", "sort", "aten.sort.stable".

    A name without a namespace is aten's if aten has it. Raises ValueError for an unknown or an ambiguous name.
    """
    known = _known_names()
    namespace, separator, rest = text.removeprefix("torch.ops.").partition("::")
    if not separator:
        first, _, others = namespace.partition(".")
        namespace, rest = (first, others) if others.partition(".")[0] in known.get(first, ()) else ("", namespace)
    name, _, overload = rest.partition(".")
    places = [namespace] if namespace else [one for one in sorted(known) if name in known[one]]
    if "aten" in places:
        places = ["aten"]
    if len(places) > 1:
        raise ValueError(f"{text!r} is ambiguous: {', '.join(f'{one}::{name}' for one in places)}")
    if not places or name not in known.get(places[0], ()):
        raise ValueError(f"torch {torch.__version__} has no operator {text!r}{_near(namespace, name)}")
    has = sorted(known[places[0]][name])
    if overload and overload not in has:
        wanted = f"wanted one of {', '.join(has)}"
        raise ValueError(f"{places[0]}::{name} has no overload {overload!r} in torch {torch.__version__}; {wanted}")
    return [_overload(places[0], name, one) for one in ([overload] if overload else has)]


def _near(namespace: str, name: str) -> str:
    known = _known_names()
    names = {one: place for place in ([namespace] if namespace in known else sorted(known, reverse=True))
             for one in known[place]}  # fmt: skip
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(f'{names[one]}::{one}' for one in near)}?" if near else ""


# --- texts ----------------------------------------------------------------------------------------------------


@contextmanager
def _as_simulated():
    """Registers the shapes of `meta` as on a simulated GPU, because they decide what kind of operator some are."""
    dispatcher.hold()
    try:
        yield
    finally:
        dispatcher.let_go()


def _kind(operator) -> str:
    return op_traits.OpTraits(operator).kind  # not `traits_of`, which would keep what holds for this moment


def explained(text: str) -> str:
    """Returns the explanation of the operator of this name. Raises ValueError for an unknown name."""
    groups: dict[tuple, list] = {}
    with _as_simulated():
        for operator in named(text):
            key = (_kind(operator), tuple(entries(operator)), *defaults(operator))
            groups.setdefault(key, []).append(operator)
    return "\n".join(_explained(same, kind, found, rest) for (kind, found, *rest), same in groups.items())


def _explained(same: list, kind: str, found: tuple[Entry, ...], rest: list[str]) -> str:
    lines = [f"{', '.join(one.name() for one in same)} ({kind})"]
    for entry in found:
        place = f"{entry.file}:{entry.line}" if entry.line else entry.file
        lines.append(f"  {entry.stage:<18}{entry.word:<19}{place}  {entry.name}".rstrip())
        lines += [f"  {'':<18}{entry.text}"] if entry.text else []
    if not found:
        lines.append("  No rule of this project.")
    lines += [f"  {HAPPENS[one]}" for one in rest]
    compared = {unmodeled.coverage(one) for one in same} if kind is op_traits.KERNEL else ()
    lines += [f"  Coverage (simgpu.coverage): {one}." for one in sorted(compared)]
    return "\n".join([*lines, ""])


def everything() -> str:
    """Returns one text of all operators of NAMESPACES, without lines and descriptions: `simgpu explain --all`.

    An operator with entries has a block, with a line for each stage. All others follow, by what happens to them.
    """
    blocks: list[str] = []
    without: dict[str, list[str]] = {}
    with _as_simulated():
        for namespace in NAMESPACES:
            for name, overloads in sorted(_known_names().get(namespace, {}).items()):
                groups: dict[str, list[str]] = {}
                for overload in sorted(overloads):
                    operator = _overload(namespace, name, overload)
                    what = ", ".join(dict.fromkeys([_kind(operator), *defaults(operator)]))
                    lines = _by_stage(operator)
                    held = groups if lines else without
                    held.setdefault("\n".join([what, *lines]), []).append(operator.name())
                blocks += [f"{' '.join(same)}\n  {text}" for text, same in groups.items()]
    blocks += ["\n".join([f"# no entry: {what}", *same]) for what, same in sorted(without.items())]
    return "\n\n".join(blocks) + "\n"


def _by_stage(operator) -> list[str]:
    stages: dict[str, list[str]] = {}
    for one in entries(operator):
        place = f"{one.word}: {one.file.removeprefix('simgpu/')} {one.name}".rstrip()
        stages.setdefault(one.stage, []).append(place)
    return [f"  {stage}: {'; '.join(found)}" for stage, found in stages.items()]
