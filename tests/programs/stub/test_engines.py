"""Which engine runs a program, and why."""

import pytest

from simgpu import engines
from simgpu.stub import engine
from simgpu.stub.engine import Engine, EngineError


@pytest.fixture
def there(monkeypatch, tmp_path):
    """A stub engine that is installed."""
    found = Engine("2.13.0", tmp_path, False, None)
    monkeypatch.setattr(engines.stub, "find", lambda version=None: found)
    monkeypatch.delenv(engines.VARIABLE)
    return found


@pytest.fixture
def missing(monkeypatch):
    def find(version=None):
        raise EngineError("the stub engine is not installed: simgpu engine install")

    monkeypatch.setattr(engines.stub, "find", find)
    monkeypatch.setattr(engines.stub, "supported", str)
    monkeypatch.delenv(engines.VARIABLE)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nmodel = torch.compile(model)\n")
    return path


def test_auto_takes_the_stub_engine_where_it_is(there, script):
    choice = engines.choose(None, script)
    assert (choice.name, choice.stub) == ("stub", there)
    assert str(choice) == (
        "Engine stub (PyTorch's own CUDA code without a GPU, torch 2.13.0): "
        "it is installed, and the script uses torch.compile."
    )


def test_values_and_functions_need_meta(there, script):
    assert engines.choose("auto", script, values=True).name == "meta"
    assert engines.choose("auto", print).name == "meta"


def test_auto_takes_meta_for_an_option_that_only_meta_has(there, script):
    assert engines.choose("auto", script, only_meta="--link").name == "meta"
    with pytest.raises(ValueError, match="does not have --link; use --engine meta"):
        engines.choose("stub", script, only_meta="--link")


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(train, nprocs=2)", "meta"),
        ("subprocess.run([sys.executable, 'train.py'])", "meta"),
        ("torch.compile(model)\nmp.spawn(train, nprocs=2)", "stub"),
        ("import torch", "stub"),
    ],
)
def test_auto_takes_the_engine_that_reports_each_process(there, tmp_path, text, engine):
    path = tmp_path / "train.py"
    path.write_text(text)
    assert engines.choose("auto", path).name == engine


@pytest.mark.parametrize("module", ["torch.distributed.run", "accelerate.commands.launch", "trl"])
def test_auto_takes_meta_for_a_launcher(there, module):
    assert engines.choose("auto", None, module=module).name == "meta"
    assert engines.choose("auto", "/usr/bin/torchrun").name == "meta"
    assert engines.choose("auto", None, module="train.main").name == "stub"


def test_without_it_the_reason_says_how_to_get_it(missing, script):
    choice = engines.choose("auto", script)
    assert choice.name == "meta"
    assert "the script uses torch.compile" in str(choice)
    assert "simgpu engine install" in str(choice)
    with pytest.raises(EngineError, match="simgpu engine install"):
        engines.choose("stub", script)
    with pytest.raises(EngineError):
        engines.choose("auto", script, torch="2.9.0")


def test_the_variable_names_the_engine(there, script, monkeypatch):
    monkeypatch.setenv(engines.VARIABLE, "meta")
    assert engines.choose(None, script).name == "meta"
    assert engines.choose("stub", script).name == "stub"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"wanted": "cuda"}, "no engine 'cuda'; there are auto, stub, meta"),
        ({"wanted": "stub", "values": True}, "computes no values"),
    ],
)
def test_what_cannot_be(there, script, arguments, text):
    with pytest.raises(ValueError, match=text):
        engines.choose(arguments.pop("wanted"), script, **arguments)
    with pytest.raises(ValueError, match="not a function"):
        engines.choose("stub", print)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("from torch.nn.attention.flex_attention import flex_attention", "FlexAttention"),
        ("import triton\n", "Triton"),
        ("    from bitsandbytes import nn", "a CUDA extension"),
        ("model.compile()", "torch.compile"),
        ("import re\nre.compile('x')", ""),
        ("import torch", ""),
    ],
)
def test_what_a_script_uses(tmp_path, text, needed):
    path = tmp_path / "script.py"
    path.write_text(text)
    assert engines.needs(path) == needed


@pytest.mark.parametrize(
    "line, requirement",
    [
        ('triton==3.7.1; platform_system == "Linux"', "triton==3.7.1"),
        ('triton~=3.9.0; platform_system == "Linux" and python_version < "3.16"', "triton~=3.9.0"),
        ("triton (==3.3.1)", "triton==3.3.1"),
        ("triton >=3.9, <4 ; extra == 'gpu'", "triton>=3.9,<4"),
        ('sympy>=1.13; extra == "triton"', ""),
    ],
)
def test_the_triton_that_a_wheel_requires(tmp_path, monkeypatch, line, requirement):
    """torch 2.13 names one version, and 2.15 a range: the triton belongs to the engine in both cases."""
    monkeypatch.setenv("SIMGPU_ENGINES", str(tmp_path))
    folder = tmp_path / "torch-2.15.0"
    (folder / "torch-2.15.0.dist-info").mkdir(parents=True)
    (folder / "torch-2.15.0.dist-info" / "METADATA").write_text(f"Name: torch\nRequires-Dist: {line}\n")
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "lib" / "libtorch_cuda.so").touch()
    assert engine.required_triton(folder) == requirement
    assert engine.unpacked("2.15.0").triton is None
    if requirement:
        place = engine.triton_folder(requirement)
        (place / "triton").mkdir(parents=True)
        assert engine.unpacked("2.15.0").triton == place
