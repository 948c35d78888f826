"""The house rules of CONTRIBUTING.md that a program can check."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import map as map_of_simgpu

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = ("simgpu", "labkit", "notebooks/helpers")
SOURCES = {
    ".".join(path.relative_to((ROOT / package).parent).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
# What a file may import of simgpu: what stands before it here. Session, above all of them, may import everything.
LAYERS = (
    (
        "simgpu.allocator",
        "simgpu.errors",
        "simgpu.interrupts",
        "simgpu.patches",
        "simgpu.handlers",
        "simgpu.used_names",
    ),
    ("simgpu.gpus",),
    ("simgpu.stub", "simgpu.engines"),
    ("simgpu.clock",),
    ("simgpu.tracebacks", "simgpu.unmodeled", "simgpu.uses", "simgpu.placeholder_values", "simgpu.placeholder_values"),
    ("simgpu.device",),
    ("simgpu.op_info",),
    ("simgpu.storage",),
    ("simgpu.checks",),
    ("simgpu.shapes",),
    ("simgpu.autograd",),
    ("simgpu.cpu_reference",),
    ("simgpu.ops",),
    ("simgpu.distributed",),
    ("simgpu.dispatch",),
    ("simgpu.torch_patches",),
    ("simgpu.session",),
    ("simgpu.host_calibration",),
    ("simgpu.report",),
    ("simgpu.running",),
    ("simgpu.fitting", "simgpu.explain", "simgpu.patch_manifest"),
    ("simgpu.command", "simgpu.__main__", "simgpu.pytest_plugin", "simgpu.notebook"),
    ("simgpu.recording",),
    ("simgpu.record",),
)
# They import what may not be there: pynvml, safetensors, pandas, matplotlib, pytest.
OPTIONAL = (
    "simgpu.notebook",
    "simgpu.pytest_plugin",
    "simgpu.record",
    "simgpu.report.picture",
    "simgpu.running.files.tensors",
    "simgpu.running.startup.sitecustomize",
    "simgpu.running.stub.kernel",
    "simgpu.stub.kernel",
    "simgpu.torch_patches.nvml",
    "simgpu.torch_patches.model_files",
)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--quiet", "."], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- one direction of imports: notebooks and their helpers, labkit, simgpu -----------------------------------


@cache
def imports(module):
    """The modules that `module` imports, at its top or inside its functions; not those for type checkers."""
    return tuple(_imports(module))


def _imports(module):
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            is_package = SOURCES[module].name == "__init__.py"
            above = module.split(".")[: len(module.split(".")) - node.level + is_package]
            base = ".".join([*above, node.module] if node.module else above) if node.level else node.module
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in SOURCES)


def reached(module):
    """Every module that importing `module` may come to, through labkit's own."""
    seen, waiting = set(), [module]
    while waiting:
        for name in imports(waiting.pop()):
            if name not in seen:
                seen.add(name)
                if name in SOURCES:
                    waiting.append(name)
    return seen


def within(package, names):
    return sorted(name for name in names if name == package or name.startswith(f"{package}."))


def layer_of(module):
    """The layer of a module of simgpu."""
    found = [at for at, rooms in enumerate(LAYERS) if any(within(room, [module]) for room in rooms)]
    assert len(found) == 1, f"{module} is in {len(found)} of the layers"
    return found[0]


def wrong(modules, is_wrong, names=imports):
    """What `modules` import, or reach, and must not: the names for which `is_wrong(module, name)`, by module."""
    assert modules
    found = {module: [name for name in names(module) if is_wrong(module, name)] for module in modules}
    return {module: names for module, names in found.items() if names}


def in_packages(*packages):
    """A rule against modules of these packages, for `wrong`."""
    return lambda module, name: name.split(".")[0] in packages


def test_simgpu_imports_nothing_of_a_layer_above():
    own = [name for name in within("simgpu", SOURCES) if name != "simgpu"]
    assert wrong(own, lambda module, name: name in own and layer_of(name) > layer_of(module)) == {}


def test_no_files_import_each_other_in_a_circle():
    files = {name for name in within("simgpu", SOURCES) if SOURCES[name].name != "__init__.py"}
    waiting = {name: {one for one in imports(name) if one in files} for name in files}
    while free := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert waiting == {}  # these are in a circle, or import what is


def test_simgpu_imports_nothing_of_the_course():
    assert wrong(within("simgpu", SOURCES), in_packages("labkit", "helpers", "tests", "tools")) == {}


def test_simgpu_needs_torch_and_little_else():
    """The recorder needs what the extra `record` names, and other libraries are patched where they are installed."""
    needed = {"simgpu", "torch", "torchgen", "numpy", "sortedcontainers"}  # torchgen is in torch's wheel
    needed |= sys.stdlib_module_names
    optional = {*within("simgpu.recording", SOURCES), *OPTIONAL}
    modules = [name for name in within("simgpu", SOURCES) if name not in optional]
    assert wrong(modules, lambda module, name: name.split(".")[0] not in needed) == {}


def test_the_allocator_knows_no_torch():
    modules = [*within("simgpu.allocator", SOURCES), *within("simgpu.gpus", SOURCES)]
    assert wrong(modules, in_packages("torch"), reached) == {}


def test_kernels_do_not_know_who_calls_them():
    callers = ("simgpu.dispatch", "simgpu.torch_patches", "simgpu.session")
    assert wrong(within("simgpu.ops", SOURCES), lambda module, name: name.startswith(callers), reached) == {}


def test_labkit_imports_none_of_the_chapters_helpers():
    """A chapter's helpers import labkit, so labkit works where they are not."""
    assert wrong(within("labkit", SOURCES), in_packages("helpers", "tests", "tools")) == {}


def test_helpers_import_nothing_of_the_developers():
    assert wrong(within("helpers", SOURCES), in_packages("tests", "tools", "benchmarks")) == {}


def test_importing_labkit_loads_no_simulator():
    """On a machine with a GPU nothing of the simulator is imported at all."""
    ask = "import sys, labkit; print([name for name in sys.modules if name.startswith('simgpu')])"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_allocator_loads_no_torch():
    ask = "import sys, simgpu.allocator.caching; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_unit_tests_start_no_programs():
    """What they import says so; `tests/programs` starts programs, and runs them whole."""
    started = re.compile(r"^\s*(?:import|from) (subprocess|transformers|nbclient|jupyter_client)\b", re.MULTILINE)
    files = [*(ROOT / "tests" / "unit").rglob("*.py")]
    found = {path.name: started.findall(path.read_text(encoding="utf-8")) for path in files}
    assert files and {name: modules for name, modules in found.items() if modules} == {}


# --- names -------------------------------------------------------------------------------------------


OLD_NAMES = re.compile(
    r"\b(torch_face|ranks\.face|made_of_others|others_of|left_out|LeftOutWarning|stand_ins|stand_in_numbers|residence|"
    r"vacate|any_device|siblings|Turns|sound_run|asked_values|once_for_each|in_one_piece|uninterrupted|lost_interrupts|"
    r"uncounted|synced_batches|flat_shards|Awaited|no_gpu_yet|on_cpu\.follow|test_house|readers_copy|WritingClock)\b"
)
"""Names that were private to this project, and have the field's names now."""


def test_no_old_name_is_left():
    files = [path for path in texts() if path.suffix == ".py" and path != Path(__file__)]
    found = {path: OLD_NAMES.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {path.relative_to(ROOT).as_posix(): names for path, names in found.items() if names} == {}


# --- texts and versions ------------------------------------------------------------------------------


def texts():
    """Every text file of the project that people write."""
    kinds = {".py", ".md", ".toml", ".txt", ".yml", ".cff", ".cfg", ".c", ".sh"}
    folders = (*PACKAGES, "tests", "tools", "benchmarks", "docs", "examples", ".github", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in [*ROOT.glob("*"), *inside] if path.suffix in kinds or path.parent.name == ".ci"]


def test_no_path_of_one_machine():
    own = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/\w")
    found = [path for path in texts() if own.search(path.read_text(encoding="utf-8"))]
    allowed = {ROOT / "tests/course/test_notebook_rules.py"}  # shows such a path to the rule that finds it
    assert set(found) <= allowed


LAID_OUT = (
    ROOT / "tools/site/index.md"
)  # the site's first page: its links are those of the site, which test_site follows
PAGES = sorted(
    path for path in texts() if path.suffix == ".md" and "](" in path.read_text(encoding="utf-8") and path != LAID_OUT
)


def test_links_lead_somewhere():
    dead = []
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        here = [link for link in links if "://" not in link]
        dead += [f"{page.relative_to(ROOT)}: {link}" for link in here if not (page.parent / link).exists()]
    assert dead == []


def test_the_lists_of_files_are_complete():
    assert map_of_simgpu.TOOLS_PAGE.read_text(encoding="utf-8") == map_of_simgpu.tools(), "run: python -m tools.map"
    assert map_of_simgpu.PAGE.read_text(encoding="utf-8") == map_of_simgpu.page(), "run: python -m tools.map"


def test_the_readme_lists_every_chapter():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    chapters = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert chapters
    assert [name for name in chapters if f"(notebooks/{name})" not in readme] == []


def test_every_direct_dependency_has_an_exact_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    direct = [Requirement(line) for line in [*project["dependencies"], *(one for all in extras for one in all)]]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    for wanted in direct:
        versions = [spec.version for pin in pins[canonicalize_name(wanted.name)] for spec in pin.specifier]
        assert versions and all(wanted.specifier.contains(version) for version in versions), wanted
