"""The distribution: its version, what each package needs, what it says where that is missing, what comes with it."""

import ast
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import labkit
import simgpu
from labkit import gpu, needs, published

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
MODULES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}  # packages whose module has another name
# It is loaded by pytest alone.
OF_PYTEST = "simgpu.pytest_plugin"


def module_of(requirement: str) -> str:
    name = Requirement(requirement).name
    return MODULES.get(name, name.replace("-", "_"))


# --- versions -------------------------------------------------------------------------------


def test_one_version():
    version = PROJECT["project"]["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert simgpu.__version__ == labkit.__version__ == metadata.version("simgpu") == version
    assert cited is not None and cited[1] == version


def test_a_folder_that_nobody_has_installed_has_no_version(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert simgpu.__version__ == "0+unknown"


def test_the_changelog_has_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = headings[1:]
    assert not released or released[0] == PROJECT["project"]["version"]


# --- the metadata that an index shows ---------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns a function that builds the package's metadata as pip does, with an address of the repository."""
    pytest.importorskip("setuptools", "77")

    def build(address: str | None):
        folder = tmp_path_factory.mktemp("build")
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / "made").mkdir()
        (folder / "simgpu").mkdir()
        (folder / "simgpu" / "__init__.py").touch()
        given = {name: value for name, value in os.environ.items() if name != "LABKIT_REPOSITORY"}
        given |= {} if address is None else {"LABKIT_REPOSITORY": address}
        code = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('made')"
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (made,) = folder.glob("made/*.dist-info")
        return metadata.PathDistribution(made).metadata

    return build


MARKDOWN = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


def test_without_an_address_the_package_has_no_url_and_no_broken_link(built):
    shown = built(None)
    assert shown.get_all("Project-URL") is None and shown["Home-page"] is None
    text = shown.get_payload()
    assert "*Memory over time of one training step of three Linear layers, with its stages*" in text
    targets = MARKDOWN.findall(text)
    assert targets and all(target.startswith("https://") for target in targets)
    assert "example.org" not in str(shown)


def test_with_an_address_every_link_of_the_readme_leads_to_a_file(built):
    address = "https://example.org/owner/name"
    shown = built(f"{address}.git")
    urls = dict(line.split(", ") for line in shown.get_all("Project-URL"))
    assert list(urls) == ["Homepage", "Documentation", "Issues", "Changelog"]
    assert urls["Homepage"] == address and all(url.startswith(address) for url in urls.values())
    text = shown.get_payload()
    assert f"stages]({address}/raw/HEAD/docs/three-linear.png)" in text
    relative = [one for one in MARKDOWN.findall((ROOT / "README.md").read_text("utf-8")) if "://" not in one]
    led = [one for one in MARKDOWN.findall(text) if one.startswith(address)]
    assert [one.partition("/HEAD/")[2] for one in led] == relative
    assert all((ROOT / name).exists() for name in relative)


def test_what_the_readme_that_an_index_shows_keeps(tmp_path):
    """A badge inside a link, an anchor, another site and code."""
    code = f"import runpy; d = runpy.run_path({str(ROOT / 'setup.py')!r})['described']\n"
    text = "[![b](b.svg)](x.md) [a](#there) [c](https://d.org/e)\n\n```\n[y](z.md)\n```\n"
    done = subprocess.run(
        [sys.executable, "-c", code + f"print(d({text!r}, '')); print(d({text!r}, 'https://h.org/o/n'))"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept = "[a](#there) [c](https://d.org/e)\n\n```\n[y](z.md)\n```\n\n"
    badge = "[![b](https://h.org/o/n/raw/HEAD/b.svg)](https://h.org/o/n/blob/HEAD/x.md)"
    assert done.stdout == f"*b* {kept}{badge} {kept}"


# --- what is needed, and what is said where it is missing -------------------------------------------


def run(code, *blocked, cwd=None):
    """The code in a Python of its own, in which the modules `blocked` are not there."""
    hide = f"""
import sys, importlib.abc
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {set(blocked)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
def find_spec(name, package=None):
    return None if name in {set(blocked)!r} else found(name, package)
importlib.util.find_spec = find_spec
sys.path.insert(0, {str(ROOT)!r})
"""
    return subprocess.run([sys.executable, "-c", hide + code], cwd=cwd, capture_output=True, text=True)


def test_simgpu_alone_imports_and_counts(tmp_path):
    """Every module of simgpu, where none of the packages is there that only the extras bring."""
    extras = {module_of(line) for lines in EXTRAS.values() for line in lines} - {"numpy"}
    assert {"pandas", "matplotlib", "transformers", "pytest", "IPython"} <= extras | {"IPython"}
    code = f"""
import importlib, pkgutil, simgpu
names = [module.name for module in pkgutil.walk_packages(simgpu.__path__, "simgpu.")]
for name in names:
    if name not in ({OF_PYTEST!r}, "simgpu.__main__"):
        importlib.import_module(name)
import torch
with simgpu.simulated_gpu("A100-80GB"):
    torch.nn.Linear(1024, 1024, bias=False, device="cuda")(torch.zeros(1, 1024, device="cuda")).sum().backward()
    print(len(names) > 150, torch.cuda.memory_allocated() > 2 * 4 * 1024**2)
"""
    done = run(code, *extras, "IPython", cwd=tmp_path)
    assert (done.stdout.strip(), done.returncode) == ("True True", 0), done.stderr


def test_the_recorder_says_what_it_needs(tmp_path):
    code = "from simgpu import record; record.main(['--simulated', 'T4', '--out', '.'])"
    done = run(code, "pynvml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "simgpu.record: recording needs pynvml: pip install 'simgpu[record]'\n"


@pytest.mark.parametrize("missing", [("torch",), ("pandas", "matplotlib", "tqdm", "pynvml")])
def test_labkit_says_in_one_line_what_is_missing(missing, tmp_path):
    done = run("import labkit", *missing, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: labkit needs {', '.join(missing)}: {needs.CURE}"


def test_labkit_asks_for_what_it_imports():
    """The packages that are named before anything is imported are those that it and chapters' helpers import."""
    imported = set()
    for path in [*(ROOT / "labkit").glob("*.py"), *(ROOT / "notebooks" / "helpers").glob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names - {"labkit", "helpers", "simgpu"} == set(needs.PACKAGES)
    brought = {module_of(line) for line in [*PROJECT["project"]["dependencies"], *EXTRAS["course"]]}
    assert set(needs.PACKAGES) <= brought


def test_cuda_before_use_gpu_gets_a_line(monkeypatch, tmp_path):
    """In a kernel on a machine without a GPU: after PyTorch's own error a line, and none once a simulated GPU is on."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    code = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
ask = "torch.zeros(1, device='cuda')"
cells = "import torch, labkit", ask, "1 / 0", "gpu = labkit.use_gpu()", ask
for cell in cells:
    print("--", flush=True)
    shell.run_cell(cell)
"""
    done = run(code, cwd=tmp_path)
    parts = [part.strip() for part in done.stdout.split("--\n")[1:]]
    assert parts[1].endswith(gpu.ADVICE), done.stdout + done.stderr
    assert [gpu.ADVICE in part for part in parts] == [False, True, False, False, False]


# --- files that come with the package ---------------------------------------------------------------------


def installed_files():
    return {
        f"{to.removeprefix('share/simgpu')}/{path.name}".lstrip("/"): path.relative_to(ROOT).as_posix()
        for to, names in PROJECT["tool"]["setuptools"]["data-files"].items()
        for name in names
        for path in ROOT.glob(name)
    }


def test_what_is_installed_is_where_the_clone_has_it():
    files = installed_files()
    assert files and all(at == name and (ROOT / name).is_file() for at, name in files.items())
    assert {f"notebooks/helpers/{path.name}" for path in (ROOT / "notebooks" / "helpers").glob("*.py")} <= set(files)


def asked_for():
    """Every name that a chapter or labkit gives to `course_file`."""
    pages = [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "notebooks" / "helpers").glob("*.py")]
    pages += (ROOT / "labkit").glob("*.py")
    for page in pages:
        yield from re.findall(r"course_file\(\\?\"([^\"\\]+)", page.read_text(encoding="utf-8"))


def test_what_chapters_read_is_there_or_of_the_oracle():
    """Chapter 24 runs the oracle's tools, which are not part of the package; all else is installed."""
    asked = set(asked_for())
    assert "notebooks/data/alice.txt" in asked
    assert all((ROOT / name).exists() for name in asked)
    assert {name for name in asked if name not in installed_files()} <= {"tools"}


def test_a_file_of_the_course_is_found(monkeypatch, tmp_path):
    assert labkit.course_file("docs/times.md") == ROOT / "docs" / "times.md"
    monkeypatch.setattr(published, "__file__", str(tmp_path / "site" / "labkit" / "published.py"))
    monkeypatch.chdir(ROOT / "notebooks")  # the clone around the current folder
    assert labkit.course_file("docs/times.md") == ROOT / "docs" / "times.md"
    monkeypatch.chdir(tmp_path)
    placed = tmp_path / "share" / "simgpu" / "docs" / "times.md"

    class Placed(type(Path("docs"))):
        def locate(self):
            return placed

    monkeypatch.setattr(metadata, "files", lambda name: [Placed("../../share/simgpu/docs/times.md")])
    with pytest.raises(FileNotFoundError, match=r"reads docs/times\.md of the course's folder.*in a clone"):
        labkit.course_file("docs/times.md")
    placed.parent.mkdir(parents=True)
    placed.write_text("times")
    assert labkit.course_file("docs/times.md") == placed
    with pytest.raises(FileNotFoundError, match="reads tools of the course's folder"):
        labkit.course_file("tools")


def test_no_chapter_looks_for_files_by_itself():
    by_itself = re.compile(r"labkit\.__file__|Path\.cwd\(\)")
    pages = (ROOT / "notebooks").glob("*.ipynb")
    assert [page.name for page in pages if by_itself.search(page.read_text(encoding="utf-8"))] == []


# --- chapter 00's look at the machine -----------------------------------------------------------------------


def check_of_chapter_00():
    """The cells that define what is needed and print a line for each."""
    import nbformat

    cells = nbformat.read(ROOT / "notebooks" / "00b_this_device.ipynb", as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    defines, prints = (next(source for source in sources if text in source) for text in ("def check", 'check("Python"'))
    return defines, prints


def test_chapter_00_asks_for_what_a_reader_needs():
    """What it wants is in the wheel's own dependencies or in the extra `course`, at the same versions."""
    here = {}
    exec(check_of_chapter_00()[0], here)
    promised = {}
    for requirement in map(Requirement, [*PROJECT["project"]["dependencies"], *EXTRAS["course"]]):
        (lowest,) = requirement.specifier
        promised[requirement.name] = tuple(map(int, lowest.version.split(".")[:2]))
    assert here["needs"] == {name: promised.get(name) for name in here["needs"]}


def test_chapter_00_shows_what_it_finds(monkeypatch, capsys):
    found = {"torch": "2.13.0+cu130", "pandas": "1.5.3", "matplotlib": "3.11.2", "transformers": "5.16.0.dev0"}

    def version(name):
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    here = {}
    exec(check_of_chapter_00()[0], here)
    monkeypatch.setattr(metadata, "version", version)
    exec(check_of_chapter_00()[1], here)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[OK] Python 3.")
    assert "[OK] torch 2.13.0+cu130, wanted 2.11 or later" in lines
    assert "[FAIL] pandas 1.5.3, wanted 2.2 or later" in lines
    assert "[OK] transformers 5.16.0.dev0, wanted 5.16 or later" in lines
    assert "[FAIL] accelerate not found, wanted 1.1 or later" in lines
    assert len(lines) == 1 + len(here["needs"])
