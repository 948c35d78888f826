"""TorchScript on a simulated GPU: files that torch.jit.load reads, modules that move, functions that are compiled."""

import io
import zipfile

import pytest
import torch
from torch import nn
from torch.jit._builtins import _get_builtin_table

import simgpu
from simgpu.errors import NotModelledError

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = [(name, getattr(torch._C, name)) for name in ("import_ir_module", "import_ir_module_from_buffer")]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A file that was written without a simulated GPU: 6,144 B, and five tensors of 512 B in a block each."""
    path = tmp_path_factory.mktemp("foreign") / "net.pt"
    torch.jit.script(nn.Sequential(nn.Linear(192, 8), nn.BatchNorm1d(8))).save(str(path))
    return path


def devices(module) -> set[str]:
    return {str(one.device) for one in (*module.parameters(), *module.buffers())}


@pytest.mark.parametrize("where", ["cuda", "cuda:0", torch.device("cuda"), "a file"])
def test_a_foreign_file_is_loaded_to_the_gpu(foreign, where):
    """The allocator's events are those of PyTorch's CUDA code on stub libraries (34 of them, backward included)."""
    with simgpu.simulated_gpu("T4"):
        source = io.BytesIO(foreign.read_bytes()) if where == "a file" else str(foreign)
        module = torch.jit.load(source, map_location="cuda" if where == "a file" else where)
        assert devices(module) == {"cuda:0"}
        assert torch.cuda.memory_allocated() == 6144 + 6 * 512
        result = module(torch.randn(4, 192, device="cuda"))
        assert str(result.device) == "cuda:0" and result.shape == (4, 8)
        result.sum().backward()
        assert all(one.grad.is_cuda for one in module.parameters())


@pytest.mark.parametrize("where", [None, "cpu"])
def test_a_file_of_the_host_stays_there(foreign, where):
    with simgpu.simulated_gpu("T4"):
        assert devices(torch.jit.load(str(foreign), map_location=where)) == {"cpu"}
        assert torch.cuda.memory_allocated() == 0


def placed(path, place):
    """The file `path` as a build with CUDA would have written it: with its storages on another device."""
    source, target = zipfile.ZipFile(path), io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/data.pkl"):
                old = b"X\x03\x00\x00\x00cpu"  # a string of three characters; later ones are taken from the memo
                assert content.count(old) == 1
                content = content.replace(old, b"X" + len(place).to_bytes(4, "little") + place.encode())
            archive.writestr(name, content)
    return io.BytesIO(target.getvalue())


def test_a_file_of_a_gpu_is_loaded_there_where_nothing_else_is_asked_for(foreign):
    with simgpu.simulated_gpu("T4"):
        assert devices(torch.jit.load(placed(foreign, "cuda:0"))) == {"cuda:0"}
        assert devices(torch.jit.load(placed(foreign, "cuda:0"), map_location="cpu")) == {"cpu"}


def test_constants_are_refused_by_name(tmp_path):
    path = str(tmp_path / "frozen.pt")
    torch.jit.freeze(torch.jit.script(nn.Linear(3, 3).eval())).save(path)
    with simgpu.simulated_gpu("T4"):
        with pytest.raises(NotModelledError, match=r"2 of the 2 tensors .* are neither parameters nor buffers"):
            torch.jit.load(path, map_location="cuda")
        torch.jit.load(path)


def test_what_is_no_file_of_torchscript_is_refused_as_by_pytorch(tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    with simgpu.simulated_gpu("T4"), pytest.raises(RuntimeError, match="PytorchStreamReader"):
        torch.jit.load(str(tmp_path / "text.pt"), map_location="cuda")


def test_a_scripted_module_moves_there_and_back():
    with simgpu.simulated_gpu("T4"):
        module = torch.jit.script(nn.Sequential(nn.Linear(192, 8), nn.BatchNorm1d(8)))
        weight = module[0].weight
        module.cuda()
        assert devices(module) == {"cuda:0"} and torch.cuda.memory_allocated() == 6144 + 6 * 512
        assert weight is module[0].weight  # which an optimizer may have been given
        module(torch.randn(4, 192, device="cuda")).sum().backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        del weight
        module.cpu()
        assert devices(module) == {"cpu"}


MODULES = {
    "batch norm": lambda: nn.BatchNorm2d(3),
    "layer norm": lambda: nn.LayerNorm(8),
    "embedding": lambda: nn.Embedding(7, 3),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2),
    "LSTM": lambda: nn.LSTM(8, 8),
    "loss": nn.CrossEntropyLoss,
}


@pytest.mark.parametrize("name", MODULES)
def test_pytorchs_modules_are_compiled(name):
    """Their functions ask has_torch_function first, which the compiler knows by identity."""
    with simgpu.simulated_gpu("T4"):
        assert isinstance(torch.jit.script(MODULES[name]()), torch.jit.ScriptModule)


def test_everything_is_put_back():
    table = dict(_get_builtin_table())
    with simgpu.simulated_gpu("T4"):
        pass
    assert _get_builtin_table() == table
    assert "_apply" not in vars(torch.jit.RecursiveScriptModule)
    assert all(getattr(torch._C, name) is function for name, function in NAMES)
