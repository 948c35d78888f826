"""PYTORCH_CUDA_ALLOC_CONF: what it means and how it is refused. Texts compared with torch 2.13.0."""

import re

import pytest
import torch

import simgpu
from simgpu.allocator.physical import MIB
from simgpu.allocator.settings import AllocatorSettings, SettingsError, signed
from simgpu.errors import NotModelledError
from tools.oracle import settings_texts

parse = AllocatorSettings.parse


def test_defaults():
    settings = parse("")
    assert settings == AllocatorSettings()
    assert settings.max_split_size is None
    assert settings.max_non_split_rounding_size == settings.large_segment_size == 20 * MIB
    assert settings.as_snapshot() == {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "max_round_threshold": -1,
        "max_cached_size": -1,
        "roundup_power2_divisions": {str(2**i): 0 for i in range(16)},
    }


def test_every_option():
    settings = parse(
        "max_split_size_mb:64,max_non_split_rounding_mb:30,garbage_collection_threshold:0.8,"
        "expandable_segments:True,large_segment_size_mb:24,per_process_memory_fraction:0.5,"
        "throw_on_cudamalloc_oom:True,backend:native,pinned_num_register_threads:4,"
        "pinned_use_cuda_host_register:True,pinned_max_cached_size_mb:10"
    )
    assert settings.max_split_size == 64 * MIB
    assert settings.max_non_split_rounding_size == 30 * MIB
    assert settings.garbage_collection_threshold == 0.8
    assert settings.expandable_segments
    assert settings.large_segment_size == 24 * MIB
    assert settings.per_process_memory_fraction == 0.5
    assert settings.throw_on_cudamalloc_oom
    snapshot = settings.as_snapshot()
    assert snapshot["pinned_num_register_threads"] == 4
    assert snapshot["pinned_use_cuda_host_register"] is True
    assert snapshot["max_cached_size"] == 10 * MIB


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ("4", [4] * 16),
        ("1", [1] * 16),
        ("[64:8,256:4,1024:4,>:1]", [8] * 7 + [0, 4, 0, 4] + [1] * 5),
        ("[256:4,64:2,>:1]", [4] * 6 + [2] + [1] * 9),
        ("[64:0,>:8]", [0] * 7 + [8] * 9),
        ("[>:8]", [0] + [8] * 15),
        ("[1:4]", [4] + [0] * 15),
        ("[2:4]", [4, 4] + [0] * 14),
        ("[131072:4]", [4] * 16),
        (" [ 64 : 8 , > : 2 ] ", [8] * 7 + [2] * 9),
    ],
)
def test_roundup_power2_divisions(value, table):
    """Each table is what torch 2.13.0 gave for the same text."""
    assert parse(f"roundup_power2_divisions:{value}").roundup_power2_divisions == tuple(table)


@pytest.mark.parametrize(
    "text",
    [
        "release_lock_on_cudamalloc:True",
        "release_lock_on_hipmalloc:False",
        "pinned_use_background_threads:True",
        "pinned_free_catch_all:True",
        "graph_capture_record_stream_reuse:True",
        "pinned_reserve_segment_size_mb:5",
        "pinned_max_round_threshold_mb:5",
        " expandable_segments : False ",
        "expandable_segments:False,",
    ],
)
def test_options_that_change_nothing_here_are_accepted(text):
    settings = parse(text)
    assert settings == AllocatorSettings(text=text, ignored=settings.ignored)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("30.5", 30), ("+30", 30), ("3 0", 30), ("\t3\n0", 30), ("30,max_split_size_mb:40", 40), ("-1", 17592186044415)],
)
def test_numbers_are_read_as_pytorch_reads_them(text, megabytes):
    assert parse(f"max_split_size_mb:{text}").max_split_size == megabytes * MIB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:19", "CachingAllocator option max_split_size_mb too small, must be >= 20, got 19"),
        (
            "large_segment_size_mb:40,max_split_size_mb:30",
            "CachingAllocator option max_split_size_mb too small, must be >= 40, got 30",
        ),
        (
            "max_split_size_mb:30,large_segment_size_mb:40",
            "CachingAllocator option max_split_size_mb too small, must be >= 40, got 30",
        ),
        (
            "max_non_split_rounding_mb:19",
            "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20, got 19",
        ),
        ("garbage_collection_threshold:0", "garbage_collect_threshold is invalid, set it in (0.0, 1.0), got 0.0"),
        ("garbage_collection_threshold:1", "garbage_collect_threshold is invalid, set it in (0.0, 1.0), got 1.0"),
        ("garbage_collection_threshold:abc", "stod: expected a number but got 'abc'"),
        ("max_split_size_mb:abc", "stoull: expected a whole number but got 'abc'"),
        ("max_split_size_mb:[30]", "stoull: expected a whole number but got '['"),
        ("foo:1", "Unrecognized key 'foo' in CUDA allocator config."),
        ("expandable_segments:True,,x:1", "Unrecognized key ',' in CUDA allocator config."),
        ("expandable_segments:true", "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'"),
        ("throw_on_cudamalloc_oom:1", "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got '1'"),
        ("expandable_segments=True", "Allocator config ends where ':' was expected: 'expandable_segments=True'"),
        ("expandable_segments,x", "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'x'"),
        ("expandable_segments:True:foo:1", "Unrecognized key 'foo' in CUDA allocator config."),
        ("expandable_segments", "Allocator config ends where ':' was expected: 'expandable_segments'"),
        ("max_split_size_mb:", "Allocator config ends where a value for max_split_size_mb was expected"),
        ("large_segment_size_mb:10", "CachingAllocator option large_segment_size_mb must be > 10 MB, got 10"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction is invalid, set it in [0.0, 1.0], got 1.5"),
        ("pinned_num_register_threads:3", "Number of register threads has to be power of 2, got 3"),
        (
            "pinned_num_register_threads:256",
            "Number of register threads should be less than or equal to 128, got 256",
        ),
        ("pinned_reserve_segment_size_mb:0", "Pinned reserve segment size has to be greater than 0, got 0"),
        ("backend:foo", "Unknown allocator backend, options are native and cudaMallocAsync, got 'foo'"),
        ("roundup_power2_divisions:3", "For roundups, the divisions has to be power of 2, got 3"),
        ("roundup_power2_divisions:0", "For roundups, the divisions has to be power of 2, got 0"),
        (
            "roundup_power2_divisions:[64:3]",
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup, got 3",
        ),
        ("roundup_power2_divisions:[65:4]", "For roundups, the intervals have to be power of 2, got 65"),
        ("roundup_power2_divisions:[x:4]", "stoull: expected a whole number but got 'x'"),
        ("roundup_power2_divisions:[64:4", "Allocator config ends where ']' was expected"),
        ("roundup_power2_divisions:[64:4,", "Allocator config ends where ']' was expected"),
        (
            "roundup_power2_divisions:[64]",
            "Allocator config ends where a value for roundup_power2_divisions was expected",
        ),
        ("per_process_memory_fraction:0x10", "per_process_memory_fraction is invalid, set it in [0.0, 1.0], got 16.0"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


def test_the_other_backend_is_not_modelled():
    with pytest.raises(NotImplementedError, match="cudaMallocAsync is not modelled"):
        parse("backend:cudaMallocAsync")


def test_environment():
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:50", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"}
    assert AllocatorSettings.from_environment(both).max_split_size == 40 * MIB
    del both["PYTORCH_CUDA_ALLOC_CONF"]
    assert AllocatorSettings.from_environment(both).max_split_size == 50 * MIB
    assert AllocatorSettings.from_environment({**both, "PYTORCH_CUDA_ALLOC_CONF": ""}).max_split_size is None
    assert AllocatorSettings.from_environment({}) == AllocatorSettings()


def test_later_settings_reset_some_options_and_keep_others():
    first = parse(
        "expandable_segments:True,large_segment_size_mb:40,max_split_size_mb:64,garbage_collection_threshold:0.5,"
        "roundup_power2_divisions:4,max_non_split_rounding_mb:50,pinned_num_register_threads:4"
    )
    later = first.updated("per_process_memory_fraction:0.5")
    assert later.expandable_segments
    assert later.large_segment_size == later.max_non_split_rounding_size == 40 * MIB
    assert later.max_split_size is later.roundup_power2_divisions is None
    assert later.garbage_collection_threshold == 0.0
    assert later.per_process_memory_fraction == 0.5
    assert later.as_snapshot()["pinned_num_register_threads"] == 4
    with pytest.raises(ValueError, match="must be >= 40, got 30"):
        first.updated("max_split_size_mb:30")


def test_what_stands_before_an_error_counts():
    settings = parse("max_split_size_mb:64,expandable_segments:True")
    with pytest.raises(SettingsError, match="Unrecognized key 'foo' in Accelerator allocator config") as raised:
        settings.updated("garbage_collection_threshold:0.5,foo:1")
    assert raised.value.settings.garbage_collection_threshold == 0.5
    assert raised.value.settings.max_split_size is None
    assert raised.value.settings.expandable_segments


def test_random_texts_are_read_as_by_the_oracle():
    """400 texts, one after another on the same allocator: what is refused, in which words, and what holds then."""
    assert settings_texts.replay() == []


def test_settings_change_the_running_allocator():
    """The figures are the oracle's. A freed segment of 1024 MiB is not cut any more."""
    with simgpu.simulated_gpu("H100"):
        freed = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
        del freed
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:32")
        assert torch._C._accelerator_getAllocatorSettings() == "max_split_size_mb:32"
        kept = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
        assert kept.numel() and torch.cuda.memory_reserved() == 1034 * MIB
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        assert (settings["max_split_size"], torch.cuda.memory_stats()["max_split_size"]) == (32 * MIB, -1)
        with pytest.raises(ValueError, match="max_split_size_mb too small, must be >= 20"):
            torch._C._accelerator_setAllocatorSettings("max_split_size_mb:1")
        with pytest.warns(FutureWarning, match="Use torch._C._accelerator_setAllocatorSettings"):
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        grown = torch.empty(1100 * MIB, dtype=torch.uint8, device="cuda")
        assert grown.numel() and torch.cuda.memory_snapshot()[-1]["is_expandable"]


@pytest.mark.parametrize(("word", "number"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_words_as_signed_numbers(word, number):
    assert signed(word) == number


def split_and_filled(*sizes):
    """A segment of the sum of these sizes (MiB), cut into them; the rest of a GPU of 2 GiB is to be asked for."""
    whole = torch.empty(sum(sizes) * MIB, dtype=torch.uint8, device="cuda")
    del whole
    return [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in sizes]


def test_a_lowered_max_split_size_gives_a_part_of_a_segment_back():
    """PyTorch asks CUDA to free the part (release_available_cached_blocks), and CUDA refuses the address."""
    with simgpu.simulated_gpu("T4", total_memory=2 * 2**30):
        parts = split_and_filled(30, 150)
        del parts[1]
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:100")
        before = torch.cuda.memory_stats()
        with pytest.raises(torch.AcceleratorError, match=r"CUDA error: invalid argument\n.*cudaErrorInvalidValue"):
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
        after = torch.cuda.memory_stats()
        assert {key for key in after if after[key] != before[key]} == {"num_device_free"}
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
        again = torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 180 * MIB and again.numel()


def test_a_lowered_max_split_size_at_the_start_of_a_segment_is_refused():
    """CUDA would free the whole segment, with a tensor in it."""
    with simgpu.simulated_gpu("T4", total_memory=2 * 2**30):
        parts = split_and_filled(150, 30)
        del parts[0]
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:100")
        with pytest.raises(NotModelledError, match="gives this segment back to CUDA with blocks in use"):
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 180 * MIB and torch.cuda.memory_allocated() == 30 * MIB
