"""torch.cuda.Stream, Event and Generator as they are on the simulated GPU.

A stream matters to memory: each has its own free blocks, and a block used on another stream waits for it. To the
allocator work takes no time, so a block waits until it looks at its events, at the next request, as on a GPU that has
caught up by then. The time that events and streams tell is the clock's, an estimate.
"""

import torch

from simgpu.machine import LOWEST_LEVEL, cuda, current, on


class Stream:
    """A stream of the simulated GPU; `stream_id` 0 is the default stream."""

    def __init__(self, device=None, priority=0, *, stream_id=None, device_index=0, device_type=1):
        self.stream_id = on().new_stream_id(priority) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id
        self.priority = max(-LOWEST_LEVEL, min(0, priority))
        self.device, self.device_index, self.device_type = cuda(), cuda().index, device_type
        self._outer = []  # the streams that were current where it was entered

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -LOWEST_LEVEL

    def wait_event(self, event):
        """Later work here waits for the event."""
        event.wait(self)

    def wait_stream(self, stream):
        """Later work here waits for what `stream` was given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        """An event (a new one, or the one given) at this point of the stream."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done."""
        on().forbid_in_capture(self.stream_id)
        clock = on().clock
        return clock.passed(clock.done(self.stream_id))

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured on it."""
        capture = on().clock.capture
        return capture is not None and self.stream_id in capture.streams

    def synchronize(self):
        """Waits for the work of this stream; blocks that waited for it can then be reused."""
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
    """A stream that another library has made; `stream_ptr` is its handle."""

    def __init__(self, stream_ptr, device=None, **kwargs):
        super().__init__(device, stream_id=stream_ptr)


class Event:
    """An event of the simulated GPU: a point of a stream, and the time at which the stream comes past it."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.device = cuda()
        self.enable_timing = enable_timing
        self._time = None  # in seconds of the clock, once recorded
        self._capture = None  # of the CUDA graph that it is part of

    @property
    def recorded(self) -> bool:
        """Whether it marks a point of a stream."""
        return self._time is not None

    def record(self, stream=None):
        """Marks this point of the stream (the current one if none is given)."""
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
        """Whether the work before the event is done."""
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
        """Milliseconds from this event to `end_event`, by the clock. ValueError if one of them has no time,
        RuntimeError if one is still to come (c10/cuda/CUDAEvent.h)."""
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
    """A random generator that says it is on the GPU. It has a state to save and restore, as CUDA's has: a seed, and how
    much was drawn. The numbers, where values are asked for, are those of a generator of the CPU's with that seed.
    """

    STATE_BYTES = 16  # seed and offset (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)
    DRAWN = 4  # what the offset grows by, at least, where something is drawn
    REMEMBERED = 4096  # states that were asked for, of 5 KB, which code may go back to (checkpointing does)

    def __new__(cls, device="cuda"):
        return super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]

    def __init__(self, device="cuda"):
        self._seed = self._offset = 0
        self._states = {}  # the CPU's, by seed and offset
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
        """Goes to where so much was drawn; where it never was, the numbers are others than those that were drawn."""
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
        """The state of the CPU's generator that gives the next numbers."""
        return super().get_state()

    def go_on_with(self, numbers: torch.Tensor) -> None:
        """Gives the next numbers from this state of the CPU's generator on."""
        super().set_state(numbers)

    def drawn(self, numbers: torch.Tensor) -> None:
        """Goes on to where the CPU's generator is now, if that has drawn anything."""
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
    """A copy of a generator on the GPU, which draws what that one draws next."""
    generator = Generator(str(device))
    generator.set_state(state)
    generator.go_on_with(numbers)
    return generator


def on_host(state: torch.Tensor) -> torch.Tensor:
    """A state that came back from the simulated GPU, as PyTorch's C++ takes it: with its bytes in the host's memory."""
    with torch._C.DisableTorchFunction():
        elsewhere = state.is_meta
    return torch.tensor(state.tolist(), dtype=torch.uint8, device="cpu") if elsewhere else state


class HostGenerator(torch.Generator):
    """PyTorch's own generator of the CPU, which also takes states that came back from the simulated GPU."""

    def set_state(self, state):
        return super().set_state(on_host(state))


def _signed(word: int) -> int:
    """A number of 64 bits with its first bit as a sign."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


def _any(real: type, simulated: type, default: str, make=None, host: type | None = None) -> type:
    """What takes the place of one of torch's classes whose first argument, `device`, says whose it is:
    simulated for cuda, PyTorch's own otherwise (for cpu `host`, where there is one). Both are its instances."""

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
