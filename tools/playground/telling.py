"""What a move did, in sentences: read off the allocator's history and counters, before and after it."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.allocator.caching import Block, CachingAllocator
from simgpu.allocator.rounding import SMALL_SIZE, round_size

MIB = 2**20
GOT = ("segment_alloc", "segment_map")
GIVEN = ("segment_free", "segment_unmap")


def exact(nbytes: int) -> str:
    """Bytes as text: MiB where three decimals say them exactly, else every byte."""
    if nbytes * 1000 % MIB == 0 and nbytes >= MIB // 10:
        return f"{nbytes / MIB:,.3f}".rstrip("0").rstrip(".") + " MiB"
    return f"{nbytes:,} B" + (f" ({nbytes / MIB:,.1f} MiB)" if nbytes > 10 * MIB else "")


class Watch:
    """Watches one move: make it before the move, ask it after."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        allocator.history.entries.clear()
        self.holes = {
            block["address"]: block["size"]
            for segment in allocator.snapshot_segments()
            for block in segment["blocks"]
            if block["state"] == "inactive"
        }
        allocator.history.entries.clear()  # a look is an event, too
        stats = allocator.stats()
        self.retries = stats["num_alloc_retries"]

    def events(self, actions: Sequence[str]) -> list[int]:
        """The bytes of each event of these kinds."""
        return [entry[2] for entry in self.allocator.history.entries if entry[0] in actions]

    def asked(self, nbytes: int, blocks: list[Block], failed: bool) -> list[str]:
        """Of requests of `nbytes` bytes each, which got these blocks, and then failed or not."""
        said = [self._rounding(nbytes)]
        given = self.events(GIVEN)
        if given:
            said.append(f"First {_segments(given)} went back to the device: {self._why()}.")
        elif self.retries < self.allocator.stats()["num_alloc_retries"]:
            said.append("The device was full, and there was no free segment to give back (a retry).")
        if len(blocks) == 1:
            said += self._one(nbytes, blocks[0])
        elif blocks:
            got = self.events(GOT)
            source = f"{_segments(got)} came from the device" if got else "all were cut from free blocks"
            said.append(f"{len(blocks):,} blocks with {exact(sum(block.size for block in blocks))}; {source}.")
        if failed:
            said.append("No free block is large enough, and no new segment fits: out of memory.")
        return said

    def _rounding(self, nbytes: int) -> str:
        rounded = round_size(nbytes, self.allocator.settings.roundup_power2_divisions)
        pool = "small" if rounded <= SMALL_SIZE else "large"
        same = "needs no rounding" if rounded == nbytes else f"becomes a block of {exact(rounded)}"
        return f"{exact(nbytes)} {same}, and is served from the {pool} pool."

    def _one(self, nbytes: int, block: Block) -> list[str]:
        rounded = round_size(nbytes, self.allocator.settings.roundup_power2_divisions)
        got = self.events(GOT)
        if got and block.segment.granule:
            said = [f"No free block was large enough: {exact(sum(got))} were mapped behind the expandable segment."]
            whole = self.holes.get(block.address, 0) + sum(got)
        elif got:
            said = [f"No free block was large enough: the device gave a segment of {exact(got[-1])}."]
            whole = got[-1]
        else:
            whole = self.holes.get(block.address, block.size)
            said = [f"The smallest free block that is large enough had {exact(whole)}: best fit, nothing is reserved."]
        if whole > block.size:
            said.append(f"{exact(whole - block.size)} of it stay free.")
        if block.size > rounded:
            said.append(
                f"{exact(block.size - rounded)} would be left over, too little to be split off: "
                "the block keeps them, and they count as allocated."
            )
        return said

    def _why(self) -> str:
        if self.retries < self.allocator.stats()["num_alloc_retries"]:
            return "the device was full (a retry)"
        if self.allocator.settings.garbage_collection_threshold > 0:
            return "garbage_collection_threshold was passed"
        return "max_split_size_mb lets large free blocks go first"

    def freed(self, freed: list[int], last: Block) -> list[str]:
        """Of blocks of these sizes, the last of which is `last`."""
        said = [f"{len(freed):,} blocks with {exact(sum(freed))} are free." if len(freed) > 1 else ""]
        if len(freed) == 1:
            merged = last.size > freed[0]
            with_neighbours = f" and merged with free neighbours to {exact(last.size)}" if merged else ""
            said = [f"{exact(freed[0])} are free{with_neighbours}."]
            if last.segment.granule:
                said.append("Its pages can go back to the device with empty_cache.")
            elif last.is_split:
                said.append("Other blocks of its segment are in use, so empty_cache cannot return it.")
            else:
                said.append("Its segment is free as a whole: empty_cache would return it.")
        return [*said, "Reserved stays: PyTorch keeps the memory for the next request."]

    def emptied(self) -> list[str]:
        """Of `empty_cache`."""
        given, left = self.events(GIVEN), self.allocator.reserved
        said = f"{_segments(given)} went back to the device." if given else "There was nothing to give back."
        kept = f" {exact(left)} stay reserved: something in each segment is in use." if left else ""
        return [said + kept]


def _segments(sizes: list[int]) -> str:
    return f"{len(sizes):,} segment{'s' * (len(sizes) > 1)} with {exact(sum(sizes))}"
