"""The name of the call that a line of a stack makes."""

import linecache

import pytest

from simgpu.running.stub import called

FILE = "<lines of a test>"


@pytest.mark.parametrize(
    ("code", "line", "function", "name"),
    [
        ("return F.linear(input, self.weight, self.bias)", 1, "forward", "linear"),
        ("out = torch.nn.functional.softmax(\n    scores,\n    dim=-1)", 1, "f", "softmax"),
        ("self.weight = Parameter(torch.empty((a, b), **kwargs))", 1, "__init__", "empty"),
        ("return self._apply(lambda t: t.cuda(device))", 1, "<lambda>", "cuda"),
        ("return t.to(device, dtype if t.is_floating_point() else None)", 1, "convert", "to"),
        ("with torch.no_grad():\n    y = x.clone()", 2, "f", "clone"),
        ("y = self.down(self.act(x) * self.up(x))", 1, "f", "y = self.down(self.act(x) * self.up(x))"),
        ("self.storage.resize_(size * self.element_size())", 1, "f", "resize_"),
        ("y = a * b", 1, "f", "y = a * b"),
        ("not ( python", 1, "f", "not ( python"),
    ],
)  # fmt: skip
def test_the_call_of_a_line(code, line, function, name):
    called.at.cache_clear()
    called._statements.cache_clear()
    source = f"def {'f'}():\n" + "".join(f"    {one}\n" for one in code.splitlines())
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    assert called.at(FILE, line + 1, function) == name


@pytest.mark.parametrize(
    ("file", "function", "hands_on"),
    [
        ("/x/torch/_native/registry.py", "wrapped", True),
        ("/x/torch/utils/_device.py", "__torch_function__", True),
        (called.__file__, "kernel", True),
        ("/x/torch/nn/modules/module.py", "_call_impl", True),
        ("/x/torch/nn/modules/module.py", "convert", False),
        ("/x/torch/nn/modules/linear.py", "forward", False),
    ],
)
def test_frames_that_hand_a_call_on(file, function, hands_on):
    assert called.is_plumbing(file, function) == hands_on
