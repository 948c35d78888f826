"""torch.cuda.Stream, Event and Generator for the simulated GPU.

Streams affect memory: each has its own free blocks, and a block used on a second stream waits for it. For the
allocator, work takes no time, so a block waits only until the allocator checks its events, at the next request. A GPU
that has caught up by then behaves in the same way. The times that events and streams report are the clock's, which are
estimates.
"""

import torch

from simgpu.device.machine import LOWEST_LEVEL, cuda, current, on


class Stream:
    """A stream of the simulated GPU; `stream_id` 0 is the default stream."""

    def __init__(self, device=None, priority=0, *, stream_id=None, device_index=0, device_type=1):
        self.stream_id = on().new_stream_id(priority) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id
        self.priority = max(-LOWEST_LEVEL, min(0, priority))
        self.device, self.device_index, self.device_type = cuda(), cuda().index, device_type
        self._outer = []  # the streams that were current when it was entered

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the lowest and the highest priority."""
        return 0, -LOWEST_LEVEL

    def wait_event(self, event):
        """Makes later work on this stream wait for the event."""
        event.wait(self)

    def wait_stream(self, stream):
        """Makes later work on this stream wait for all work submitted to `stream` so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        """Records an event (a new one, or the one given) at this point of the stream, and returns it."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Returns whether all work is done."""
        on().forbid_in_capture(self.stream_id)
        clock = on().clock
        return clock.passed(clock.done(self.stream_id))

    def is_capturing(self) -> bool:
        """Returns whether a CUDA graph is being captured on it."""
        capture = on().clock.capture
        return capture is not None and self.stream_id in capture.streams

    def synchronize(self):
        """Waits for the work of this stream, after which blocks that waited for it can be reused."""
        on().forbid_in_capture(self.stream_id)
        on().waits()
        on().allocator.synchronize()
        on().clock.synchronize(self.stream_id)

    def __enter__(self):
        self._outer.append(on().stream)
        on().stream = self.stream_id
        return self

    def __exit__(self, *exception):
        on().stream = self._outer.pop()

    def __eq__(self, other):
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self):
        return hash(self.stream_id)

    def __repr__(self):
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream that a different library has created; `stream_ptr` is its handle."""

    def __init__(self, stream_ptr, device=None, **kwargs):
        super().__init__(device, stream_id=stream_ptr)


class Event:
    """A point of a stream on the simulated GPU, and the time at which the stream passes it."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.device = cuda()
        self.enable_timing = enable_timing
        self._time = None  # the clock's time in seconds, once recorded
        self._capture = None  # the capture of the CUDA graph that it is part of

    @property
    def recorded(self) -> bool:
        """Returns whether it marks a point of a stream."""
        return self._time is not None

    def record(self, stream=None):
        """Marks this point of the stream (the current one by default)."""
        on().initialize()
        stream_id = on().stream if stream is None else stream.stream_id
        capture = on().clock.capture
        self._capture = capture if capture is not None and stream_id in capture.streams else None
        self._time = on().clock.record(stream_id)

    def wait(self, stream=None):
        """Makes the stream wait for the event."""
        stream_id = on().stream if stream is None else stream.stream_id
        if self._capture is not None and self._capture is on().clock.capture:
            self._capture.streams.add(stream_id)  # a stream that waits for a captured one is captured too
        elif self._time is not None:
            on().clock.hold(stream_id, self._time)

    def query(self) -> bool:
        """Returns whether the work before the event is done."""
        self._not_captured()
        return self._time is None or on().clock.passed(self._time)

    def _not_captured(self) -> None:
        if self._capture is not None and self._capture is on().clock.capture:
            on().forbid_in_capture()

    def synchronize(self):
        """Waits for the work before the event."""
        self._not_captured()
        on().allocator.synchronize()
        if self._time is not None:
            on().clock.wait_until(self._time)

    def elapsed_time(self, end_event) -> float:
        """Returns the milliseconds from this event to `end_event` on the clock.

        Raises ValueError if one of them has no time, and RuntimeError if one has not passed yet (c10/cuda/CUDAEvent.h).
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.recorded and end_event.recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1e3 * (end_event._time - self._time)

    def __repr__(self):
        return f"<torch.cuda.Event {'recorded' if self.recorded else 'uninitialized'}>"


class Generator(torch.Generator):
    """A random generator on the GPU, which computes with the CPU's.

    Like CUDA's, its state is a seed and an offset that counts what was drawn, and can be saved and restored. If values
    are requested, they come from a CPU generator with that seed.
    """

    STATE_BYTES = 16  # seed and offset (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)
    DRAWN = 4  # the least increase of the offset when something is drawn
    REMEMBERED = 4096  # recorded states of 5 KB each, which code may return to (checkpointing does)

    def __new__(cls, device="cuda"):
        return super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]

    def __init__(self, device="cuda"):
        self._seed = self._offset = 0
        self._states = {}  # the CPU generator's states, by seed and offset
        self._device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)  # pyright: ignore[reportArgumentType]

    @property
    def device(self):
        return self._device

    def manual_seed(self, seed):
        machine = current()
        captured = machine is not None and machine.clock.capture is not None
        if captured and int(seed) % 2**64 != self._seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )
        self._begin(int(seed) % 2**64, 0)
        return self

    def _begin(self, seed: int, offset: int) -> None:
        """Restores the state at a seed and offset.

        If that state was never recorded, the values drawn after it differ from those drawn before.
        """
        self._seed, self._offset = seed, offset
        known = self._states.get((seed, offset))
        if known is not None:
            super().set_state(known)
        else:
            super().manual_seed(_signed(seed if offset == 0 else hash((seed, offset))))

    def initial_seed(self):
        return self._seed

    def seed(self):
        self._begin(torch.default_generator.seed(), 0)
        return self._seed

    def numbers(self) -> torch.Tensor:
        """Returns the CPU generator's state that gives the next values."""
        return super().get_state()

    def go_on_with(self, numbers: torch.Tensor) -> None:
        """Continues with this state of the CPU generator."""
        super().set_state(numbers)

    def drawn(self, numbers: torch.Tensor) -> None:
        """Advances to a new state of the CPU generator, and increases the offset if anything was drawn."""
        if not torch.equal(numbers, super().get_state()):
            super().set_state(numbers)
            self._offset += self.DRAWN

    def get_state(self):
        if self._offset:
            self._states.pop((self._seed, self._offset), None)
            self._states[self._seed, self._offset] = super().get_state()
            while len(self._states) > self.REMEMBERED:
                del self._states[next(iter(self._states))]
        return torch.tensor([_signed(self._seed), self._offset], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, state):
        if state.numel() != self.STATE_BYTES:
            raise RuntimeError(f"RNG state is wrong size: {state.numel()} bytes, wanted {self.STATE_BYTES}")
        seed, offset = state.view(torch.int64).tolist()
        self._begin(seed % 2**64, offset)
        return self

    def __reduce__(self):
        return _again, (self._device, self.get_state(), self.numbers())


def _again(device: torch.device, state: torch.Tensor, numbers: torch.Tensor) -> Generator:
    """Returns a copy of a generator on the GPU, which draws what that one draws next."""
    generator = Generator(str(device))
    generator.set_state(state)
    generator.go_on_with(numbers)
    return generator


def on_host(state: torch.Tensor) -> torch.Tensor:
    """Returns a generator state from the simulated GPU as PyTorch's C++ needs it, with its bytes in host memory."""
    with torch._C.DisableTorchFunction():
        elsewhere = state.is_meta
    return torch.tensor(state.tolist(), dtype=torch.uint8, device="cpu") if elsewhere else state


class HostGenerator(torch.Generator):
    """PyTorch's own CPU generator, which also accepts states that come from the simulated GPU."""

    def set_state(self, state):
        return super().set_state(on_host(state))


def _signed(word: int) -> int:
    """Converts an unsigned 64-bit number to a signed one."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _any(real: type, simulated: type, default: str, make=None, host: type | None = None) -> type:
    """Returns a replacement for a torch class whose first argument is `device`.

    Calling it creates a simulated object for cuda, and PyTorch's own otherwise (`host` for cpu, if given). Instances of
    both count as its instances.
    """

    class Meta(type):
        def __call__(cls, device=default, *args, **kwargs):
            kind = "cuda" if isinstance(device, int) else torch.device(device).type
            if kind == "cuda":
                return (make or simulated)(device, *args, **kwargs)
            return (host if host is not None and kind == "cpu" else real)(device, *args, **kwargs)

        def __instancecheck__(cls, instance):
            return isinstance(instance, (real, simulated))

    return Meta(real.__name__, (), {"__doc__": real.__doc__})


AnyGenerator = _any(torch.Generator, Generator, "cpu", host=HostGenerator)
AnyStream = _any(torch.Stream, Stream, "cuda")
AnyEvent = _any(torch.Event, Event, "cuda", make=lambda device, *args, **kwargs: Event(*args, **kwargs))
