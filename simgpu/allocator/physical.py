"""Models the physical memory of a GPU, as `cudaMalloc`, `cudaFree` and `cudaMemGetInfo` see it.

The caching allocator is the layer between PyTorch and this. No data is stored: a device counts bytes and returns
addresses.
"""

from __future__ import annotations

MIB = 2**20

PAGE = 2 * MIB
"""Granularity of `cudaMalloc` and of `cuMemCreate` on every GPU since Pascal, in bytes."""

SEGMENTS_FROM = 0x7E00_0000_0000
"""First address that `malloc` returns. The addresses of a real GPU differ; only their order can matter."""

RANGES_FROM = 0x7F00_0000_0000
"""First address that `reserve_range` returns, above those of `malloc`."""


class Device:
    """The memory of one GPU, in bytes.

    `total_memory` is what `torch.cuda.get_device_properties(0).total_memory` reports. `context` is what this process
    uses before its first allocation (the CUDA context), and `non_pytorch` what it uses outside PyTorch's allocator
    (NCCL, other libraries). `other_processes` gives bytes by process id. The last three are plain attributes and may
    change at any time.

    Raises ValueError for a negative size, and if the context alone does not fit.
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
        """Returns the bytes that this process uses, as `nvidia-smi` shows them: context, non-PyTorch memory and
        segments.
        """
        return self.context + self.non_pytorch + self.allocated

    @property
    def free_memory(self) -> int:
        """Returns the bytes that no process uses."""
        return max(0, self.total_memory - self.process_memory - sum(self.other_processes.values()))

    def mem_get_info(self) -> tuple[int, int]:
        """Returns (free, total) bytes, as `cudaMemGetInfo` does."""
        return self.free_memory, self.total_memory

    def malloc(self, nbytes: int) -> int | None:
        """Returns the address of `nbytes` bytes of new memory, or None if the device is full (`cudaMalloc`).

        It allocates whole pages of 2 MiB, at the lowest address where they fit.
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
        """Frees what `malloc` returned (`cudaFree`). Raises ValueError for any other address."""
        try:
            size = self._segments.pop(address)
        except KeyError:
            raise ValueError(f"no segment of this device starts at {address:#x}") from None
        self.allocated -= size

    def reserve_range(self, nbytes: int) -> int:
        """Returns the start of `nbytes` bytes of address space without memory (`cuMemAddressReserve`)."""
        address = self._next_range
        self._next_range += -(-nbytes // PAGE) * PAGE
        return address

    def map(self, nbytes: int) -> bool:
        """Maps `nbytes` bytes of memory to a reserved range; returns False if the device is full."""
        if nbytes > self.free_memory:
            return False
        self.allocated += nbytes
        return True

    def unmap(self, nbytes: int) -> None:
        """Unmaps `nbytes` bytes of memory from a reserved range."""
        self.allocated -= nbytes
