"""Computes the temporary storage of CUB's device-wide algorithms: the bytes that each requests before it runs.

PyTorch's sorts, scans and compactions call CUB twice: first for the size of a temporary, then for the work, with that
size from the caching allocator (aten/src/ATen/cuda/cub.cuh, CUB_WRAPPER). The sizes follow from the tile per thread
block, which CUB tunes by compute capability and by the bytes of keys and values. The tables below are those of CCCL 3.0
(CUDA 13.0), which PyTorch's builds for CUDA 13 contain: cub/device/dispatch/tuning/. Sizes are in bytes, and every
function takes the GPU's `Spec`.

A real GPU runs the same code with the same results, except where CUB queries how many blocks fit on a multiprocessor.
The functions concerned say so.
"""

from math import ceil

ALIGNMENT = 256
SHARED_MEMORY = 48 * 1024  # bytes per thread block, as CUB's scaling of tiles assumes
WARP = 32
RADIX_DIGITS = 256  # of one pass of the sort, which is 8 bits
OFFSET = 8  # bytes: PyTorch counts items in int64, for which CUB counts in unsigned long long
PORTION = 2**28 - 1  # the most items that are sorted at once


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def storage(*parts: int) -> int:
    """Returns the size of one temporary for several parts, each aligned, with room to align its start
    (AliasTemporaries).
    """
    return sum(map(_aligned, parts)) + ALIGNMENT - 1


def _register_tile(threads: int, items: int, element: int) -> int:
    """Returns the items of a tile tuned for 4 bytes, if registers limit it (RegBoundScaling)."""
    items = max(1, items * 4 // max(4, element))
    return min(threads, ceil(SHARED_MEMORY // (element * items) / WARP) * WARP) * items


def _memory_tile(threads: int, items: int, element: int) -> int:
    """Returns the items of a tile tuned for 4 bytes, if memory limits it (MemBoundScaling)."""
    items = max(1, min(items * 4 // element, items * 2))
    return min(threads, ceil(SHARED_MEMORY // (element * items) / WARP) * WARP) * items


def _tile_states(tiles: int, value: int, foreign: bool = False) -> int:
    """Returns the bytes with which the blocks of a scan communicate (ScanTileState).

    They are one word per tile, with a status and a value of `value` bytes. If the value's type is `foreign` to CUB
    (PyTorch's own half types), status and two values are stored separately.
    """
    if foreign:
        return storage((WARP + tiles) * 4, (WARP + tiles) * value, (WARP + tiles) * value)
    word = {8: 16, 4: 8}.get(value, 4)
    return storage((WARP + tiles) * word, 0, 0)


# bytes of a key: (threads, items) of Hopper's tiles for values of 8 bytes
_SMALL_KEYS = {1: (384, 18), 2: (512, 23)}


def radix_sort(n: int, key: int, value: int, spec, bits: int | None = None) -> int:
    """Returns the storage of cub::DeviceRadixSort::SortPairs for n keys of `key` and values of `value` bytes.

    With `value` 0 it is SortKeys. `bits` is the number of key bits to sort by (default: all).
    """
    widest = max(key, value)
    if n <= _register_tile(256, 19, widest):
        return 1
    if spec.compute_capability >= (9, 0):
        if key == 8:
            threads, items = 384, 24 if value == 8 else 30
        elif key == 4:
            threads, items = 384, 29 if value == 8 else 17 if value else 19
        else:
            threads, items = _SMALL_KEYS[key]
    elif key < 4:
        return _sort_in_two_sweeps(n, key, value, spec)
    elif spec.compute_capability >= (8, 0):
        threads, items = 384, 17 if key == 4 and value else 21
    else:
        threads, items = 256, 46 if key == value == 4 else 23
    tile = _register_tile(threads, items, widest)
    portion = PORTION // tile * tile
    portions, passes = ceil(n / portion), ceil((bits or 8 * key) / 8)
    spare = passes > 1
    return storage(
        portions * passes * RADIX_DIGITS * OFFSET,
        ceil(min(n, portion) / tile) * RADIX_DIGITS * 4,
        spare * n * key,
        spare * n * value,
        portions * passes * 4,
    )


def _sort_in_two_sweeps(n: int, key: int, value: int, spec) -> int:
    """Returns the storage for sorting keys of 1 or 2 bytes before Hopper (DispatchRadixSort::InvokePasses).

    It has as many histograms as blocks fit on the GPU. CUB queries the driver for that number. Here it is the number
    that the threads of a multiprocessor allow, at most 32, as with the oracle. On a GPU registers may allow fewer.
    """
    threads, digits = (256, 2**7) if key == 2 else (128, 2**5)
    fitting = min(32, spec.max_threads_per_multiprocessor // threads)
    grid = fitting * spec.multiprocessors * 5  # blocks per fitting block: CUB's subscription_factor
    return storage((grid * digits + _memory_tile(512, 23, OFFSET)) * OFFSET, n * key, n * value)


def segmented_sort(n: int, key: int, value: int) -> int:
    """Returns the storage of cub::DeviceSegmentedRadixSort::SortPairs for n keys in total."""
    return storage(n * key, n * value)


def scan(n: int, accumulator: int, foreign: bool = False) -> int:
    """Returns the storage of cub::DeviceScan for n values, accumulated in `accumulator` bytes by a functor of PyTorch.

    CUB has no tuning for such functors. `foreign` says that the accumulator is one of PyTorch's own types.
    """
    tile = _memory_tile(128, 15, accumulator)
    return storage(_tile_states(ceil(min(n, 2**30) / tile), accumulator, foreign))


def _tuned(tables, spec, default):
    """Returns the table for a compute capability; CUB has tuned 8.0, 9.0 and 10.0, and uses the default for 8.6 and
    8.9.
    """
    major, minor = spec.compute_capability
    if major < 8 or (major == 8 and minor):
        return default
    return tables[max(tuned for tuned in tables if tuned <= major)]


# compute capability: bytes of a key: (threads, items of each)
_UNIQUE_BY_KEY = {8: {4: (256, 11), 8: (192, 7)}, 9: {4: (512, 14), 8: (448, 11)}}
_UNIQUE_BY_KEY_TO_2_12 = {  # threads × items were found with the oracle, for torch 2.11.0 and 2.12.1
    8: {4: (256, 11), 8: (256, 7)},
    9: {4: (512, 14), 8: (448, 10)},
    10: {4: (512, 14), 8: (384, 10)},
}


def unique_by_key(n: int, key: int, spec, torch_version: tuple[int, int] = (2, 13)) -> int:
    """Returns the storage of cub::DeviceSelect::UniqueByKey for n keys of 4 or 8 bytes, in the CUB of that torch.

    Values are as wide as the keys.
    """
    tuned = _UNIQUE_BY_KEY if torch_version >= (2, 13) else _UNIQUE_BY_KEY_TO_2_12
    threads, items = _tuned(tuned, spec, {4: (64, 11), 8: (64, 5)})[key]
    return storage(_tile_states(ceil(n / (threads * items)), OFFSET), 0)


_SCAN_BY_KEY = {
    8: {4: (256, 15), 8: (224, 10)},
    9: {4: (288, 14), 8: (224, 11)},
    10: {4: (224, 20), 8: (256, 23)},
}


def scan_by_key(n: int, key: int, spec) -> int:
    """Returns the storage of cub::DeviceScan::InclusiveSumByKey and InclusiveScanByKey with maximum.

    Values are as wide as the keys.
    """
    threads, items = _tuned(_SCAN_BY_KEY, spec, {4: (256, 9), 8: (256, 9)})[key]
    tiles = ceil(n / (threads * items))
    return storage((WARP + tiles) * 16, key * (tiles + 1))


def reduction_to_int(n: int, spec) -> int:
    """Returns the storage of cub::DeviceReduce::Sum of n values into an int.

    It is a partial sum per thread block that the GPU holds at once, times five, unless one block is enough. CUB queries
    the driver for the number of blocks. Here it is the number that the threads of a multiprocessor allow, as with the
    oracle. On a GPU registers may allow fewer.
    """
    threads, items = 256, 16
    if n <= threads * items:
        return 1
    blocks = spec.max_threads_per_multiprocessor // threads * spec.multiprocessors * 5
    return storage(blocks * 4)


# compute capability: items of a tile, for items of 8 bytes with flags
_SELECT_FLAGGED = {8: 4608, 9: 8448}


def select_flagged(n: int, spec) -> int:
    """Returns the storage of cub::DeviceSelect::Flagged for n items of 8 bytes. The tiles were read from oracle
    traces.
    """
    tile = _tuned(_SELECT_FLAGGED, spec, 1280)
    return _tile_states(ceil(n / tile), OFFSET)


# compute capability: bytes of an item: items of a tile; read from oracle traces, like those above
_UNIQUE = {
    8: {1: 19840, 2: 8064, 4: 4608, 8: 1920},
    9: {1: 5632, 2: 5632, 4: 6528, 8: 4224},
    10: {1: 8448, 2: 5632, 4: 5760, 8: 4224},
}
_RUN_LENGTHS = 768


def unique(n: int, element: int, spec) -> int:
    """Returns the storage of cub::DeviceSelect::Unique for n items of `element` bytes."""
    tile = _tuned(_UNIQUE, spec, {1: 1280, 2: 1280, 4: 1280, 8: 640})[element]
    return storage((WARP + ceil(n / tile)) * 8, 1)


def run_lengths(n: int) -> int:
    """Returns the storage of cub::DeviceRunLengthEncode::Encode for n items, with lengths of 8 bytes."""
    return _tile_states(ceil(n / _RUN_LENGTHS), 8)


_INCLUSIVE_SUM = {8: 7680, 9: 6144}  # compute capability: items of a tile, of 8 bytes


def inclusive_sum(n: int, spec) -> int:
    """Returns the storage of cub::DeviceScan::InclusiveSum of n values into 8 bytes each."""
    return _tile_states(ceil(n / _tuned(_INCLUSIVE_SUM, spec, 3840)), 8)
