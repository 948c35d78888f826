"""Checks a test's GPU memory against a limit, on every machine: `@pytest.mark.gpu_memory(gpu="T4", peak="12 GiB")`.

The test runs on a simulated GPU, so it gives the same figures everywhere and needs no GPU. If it exceeds its limit it
fails, and the message says by how many bytes, in which stage, operator and line, what the memory consists of, and what
would help. The fixture `simulated_gpu` provides a GPU without a limit. Neither simgpu nor torch is imported before one
of the two is used.
"""

import contextlib

import pytest

MARK = "gpu_memory"
OPTIONS = ("gpu", "peak", "reserved", "nvidia_smi", "memory", "values")
DEFAULT = "A100-80GB"


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        f'{MARK}(gpu="{DEFAULT}", peak=None, reserved=None, nvidia_smi=None, memory=None, values=False): the test runs '
        'on this simulated GPU, and fails if it allocates more than peak ("12 GiB", or bytes), reserves more, or shows '
        "more in nvidia-smi, or does not fit; memory is another capacity",
    )


@pytest.fixture
def simulated_gpu(request):
    """Provides a simulated GPU for one test: that of its mark `gpu_memory`, or the fixture's parameter, or an
    A100-80GB.
    """
    from simgpu import machine, session

    if request.node.get_closest_marker(MARK) is not None:  # the mark's GPU is in use around the test
        spec = machine.on().spec
        yield session.SimulatedGPU(spec.key, spec.total_memory, machine.on().left_out)
        return
    with session.simulated_gpu(getattr(request, "param", DEFAULT)) as gpu:
        yield gpu


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Enters the GPU around fixtures too, so that a model that a fixture creates counts."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return (yield)
    with contextlib.ExitStack() as stack:
        try:
            item.stash[_GATE] = stack.enter_context(_gate(mark))
        except (ValueError, TypeError) as error:
            item.stash[_WRONG] = str(error)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Compares the test's peak with the limit."""
    if _WRONG in item.stash:
        pytest.fail(f"@pytest.mark.{MARK}: {item.stash[_WRONG]}", pytrace=False)
    gate = item.stash.get(_GATE, None)
    if gate is None:
        return (yield)
    try:
        result = yield
    except Exception as error:
        if gate.ran_out(error):
            pytest.fail(gate.out_of_memory(), pytrace=False)
        raise
    above = gate.above()
    if above:
        pytest.fail(above, pytrace=False)
    return result


def _gate(mark):
    from simgpu.report.gate import Gate

    unknown = set(mark.kwargs) - set(OPTIONS)
    if mark.args or unknown:
        given = ", ".join(map(repr, mark.args)) or ", ".join(sorted(unknown))
        raise ValueError(f"it takes {', '.join(f'{name}=' for name in OPTIONS)}; not {given}")
    return Gate(**{"gpu": DEFAULT, **mark.kwargs})


_GATE: pytest.StashKey = pytest.StashKey()
_WRONG: pytest.StashKey = pytest.StashKey()
