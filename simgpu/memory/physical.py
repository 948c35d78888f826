"""The physical memory of a GPU: what `cudaMalloc`, `cudaFree` and `cudaMemGetInfo` see.

The caching allocator stands between PyTorch and this. Nothing is stored: a device counts bytes and hands out
addresses.
"""

from __future__ import annotations

MIB = 2**20

PAGE = 2 * MIB
"""Granularity of `cudaMalloc` and of `cuMemCreate` on every GPU since Pascal, in bytes."""

SEGMENTS_FROM = 0x7E00_0000_0000
"""First address handed out by `malloc`. The addresses of a real GPU differ; only their order can matter."""

RANGES_FROM = 0x7F00_0000_0000
"""First address handed out by `reserve_range`, above those of `malloc`."""


class Device:
    """The memory of one GPU, in bytes.

    `total_memory`: as `torch.cuda.get_device_properties(0).total_memory` reports it.
    `context`: taken by this process before its first allocation (the CUDA context).
    `non_pytorch`: taken by this process outside PyTorch's allocator (NCCL, other libraries).
    `other_processes`: bytes by process id.

    `context`, `non_pytorch` and `other_processes` are plain attributes and may change at any time.
    Raises ValueError for a size that is negative, and when the context alone does not fit.
    """

    def __init__(
        self,
        total_memory: int,
        context: int = 0,
        *,
        non_pytorch: int = 0,
        other_processes: dict[int, int] | None = None,
    ) -> None:
        if total_memory <= 0 or context < 0 or non_pytorch < 0 or context + non_pytorch > total_memory:
            raise ValueError(
                f"a device needs room for its context: got total_memory={total_memory}, context={context}, "
                f"non_pytorch={non_pytorch} bytes"
            )
        self.total_memory = total_memory
        self.context = context
        self.non_pytorch = non_pytorch
        self.other_processes = dict(other_processes or {})
        self.allocated = 0
        self._segments: dict[int, int] = {}
        self._next_range = RANGES_FROM

    @property
    def process_memory(self) -> int:
        """Bytes this process holds: context + non-PyTorch memory + segments. The figure of `nvidia-smi`."""
        return self.context + self.non_pytorch + self.allocated

    @property
    def free_memory(self) -> int:
        """Bytes that nobody holds."""
        return max(0, self.total_memory - self.process_memory - sum(self.other_processes.values()))

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) bytes, as `cudaMemGetInfo`."""
        return self.free_memory, self.total_memory

    def malloc(self, nbytes: int) -> int | None:
        """The address of `nbytes` bytes of fresh memory, or None when the device is full (`cudaMalloc`).

        Takes whole pages of 2 MiB, at the lowest address where they fit.
        """
        size = -(-nbytes // PAGE) * PAGE
        if size > self.free_memory:
            return None
        address = SEGMENTS_FROM
        for start in sorted(self._segments):
            if start - address >= size:
                break
            address = start + self._segments[start]
        self._segments[address] = size
        self.allocated += size
        return address

    def free(self, address: int) -> None:
        """Give back what `malloc` returned (`cudaFree`). Raises ValueError for any other address."""
        try:
            size = self._segments.pop(address)
        except KeyError:
            raise ValueError(f"no segment of this device starts at {address:#x}") from None
        self.allocated -= size

    def reserve_range(self, nbytes: int) -> int:
        """The start of `nbytes` bytes of address space with no memory behind them (`cuMemAddressReserve`)."""
        address = self._next_range
        self._next_range += -(-nbytes // PAGE) * PAGE
        return address

    def map(self, nbytes: int) -> bool:
        """Put `nbytes` bytes of memory behind a reserved range; False when the device is full."""
        if nbytes > self.free_memory:
            return False
        self.allocated += nbytes
        return True

    def unmap(self, nbytes: int) -> None:
        """Take back `nbytes` bytes of memory from behind a reserved range."""
        self.allocated -= nbytes
