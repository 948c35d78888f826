"""The table of GPUs: its figures agree with each other and with what torch is known to print."""

import dataclasses
import json

import pytest

from simgpu.clock import achieved_rates
from simgpu.gpus.specs import CAPABILITIES, FILE, SPECS, load, spec
from simgpu.ops import attention

GiB = 2**30
MiB = 2**20

GPUS = [
    "T4",
    "V100-16GB",
    "V100-32GB",
    "RTX 3060",
    "RTX 3090",
    "RTX 4090",
    "RTX 5090",
    "A10G",
    "RTX A6000",
    "A100-40GB",
    "A100-80GB",
    "L4",
    "L40S",
    "H100",
    "H200",
    "B200",
]


def test_the_list():
    assert list(SPECS) == GPUS
    assert all(each.key == key for key, each in SPECS.items())


# "total capacity of … GiB" in out-of-memory texts that torch users published.
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("T4", "14.56 GiB"),
        ("V100-16GB", "15.77 GiB"),
        ("V100-32GB", "31.73 GiB"),
        ("RTX 3060", "11.62 GiB"),
        ("RTX 3090", "23.56 GiB"),
        ("RTX 4090", "23.52 GiB"),
        ("RTX 5090", "31.37 GiB"),
        ("A10G", "22.06 GiB"),
        ("RTX A6000", "47.53 GiB"),
        ("A100-40GB", "39.49 GiB"),
        ("A100-80GB", "79.25 GiB"),
        ("L4", "22.03 GiB"),
        ("L40S", "44.39 GiB"),
        ("H100", "79.18 GiB"),
        ("H200", "139.80 GiB"),
        ("B200", "178.35 GiB"),
    ],
)
def test_total_memory_as_out_of_memory_texts_print_it(key, text):
    assert f"{SPECS[key].total_memory / GiB:.2f} GiB" == text


# In MiB as published: CUDA's deviceQuery and Ultralytics' banner round, torch's print of the properties cuts.
@pytest.mark.parametrize(
    ("key", "mebibytes"),
    [
        ("T4", 14913),
        ("V100-16GB", 16144),
        ("V100-32GB", 32494),
        ("RTX 3060", 11901),
        ("RTX 3090", 24124),
        ("RTX 4090", 24081),
        ("RTX 5090", 32120),
        ("A100-40GB", 40441),
        ("L4", 22563),
        ("H100", 81079),
    ],
)
def test_total_memory_as_device_query_prints_it(key, mebibytes):
    assert round(SPECS[key].total_memory / MiB) == mebibytes


@pytest.mark.parametrize(("key", "mebibytes"), [("A10G", 22587), ("H200", 143156), ("B200", 182631)])
def test_total_memory_as_torch_prints_it(key, mebibytes):
    assert SPECS[key].total_memory // MiB == mebibytes


@pytest.mark.parametrize("key", GPUS)
def test_memory_is_what_the_name_promises_less_what_the_driver_keeps(key):
    nominal = {
        "RTX 3060": 12,
        "A10G": 24,
        "RTX A6000": 48,
        "L40S": 48,
        "T4": 16,
        "RTX 3090": 24,
        "RTX 4090": 24,
        "RTX 5090": 32,
        "L4": 24,
        "H100": 80,
        "H200": 141,
        "B200": 180,
    }
    size = nominal.get(key) or int(key.removesuffix("GB").rpartition("-")[2])
    assert 0.88 * size * GiB < SPECS[key].total_memory < size * GiB
    assert 0 < SPECS[key].context < 1 * GiB


@pytest.mark.parametrize("key", GPUS)
def test_threads_go_with_the_compute_capability(key):
    threads = {
        (7, 0): 2048,
        (7, 5): 1024,
        (8, 0): 2048,
        (8, 6): 1536,
        (8, 9): 1536,
        (9, 0): 2048,
        (10, 0): 2048,
        (12, 0): 1536,
    }
    each = SPECS[key]
    assert each.max_threads_per_multiprocessor == threads[each.compute_capability]


# Peak fp32 rate = multiprocessors × fp32 lanes × 2 × boost clock, up to the datasheets' rounding.
@pytest.mark.parametrize(
    ("key", "lanes", "boost_mhz"),
    [
        ("T4", 64, 1590),
        ("V100-16GB", 64, 1530),
        ("V100-32GB", 64, 1530),
        ("RTX 3060", 128, 1777),
        ("RTX 3090", 128, 1695),
        ("RTX 4090", 128, 2520),
        ("RTX 5090", 128, 2407),
        ("A100-40GB", 64, 1410),
        ("A100-80GB", 64, 1410),
        ("A10G", 128, 1710),
        ("RTX A6000", 128, 1800),
        ("L4", 128, 2040),
        ("L40S", 128, 2520),
        ("H100", 128, 1980),
        ("H200", 128, 1980),
    ],
)
def test_fp32_rate_agrees_with_the_multiprocessors(key, lanes, boost_mhz):
    each = SPECS[key]
    clock = each.peak_flops["float32"] / (each.multiprocessors * lanes * 2)
    assert clock / 1e6 == pytest.approx(boost_mhz, rel=0.01)


@pytest.mark.parametrize("key", GPUS)
def test_rates(key):
    each = SPECS[key]
    rates = each.peak_flops
    assert rates["float16"] >= 2 * rates["float32"] * 0.99 >= rates["float64"]
    tensor_cores_for_bf16 = each.compute_capability >= (8, 0)
    assert ("bfloat16" in rates) == ("tf32" in rates) == tensor_cores_for_bf16
    if tensor_cores_for_bf16:
        assert rates["bfloat16"] == rates["float16"] == pytest.approx(2 * rates["tf32"], rel=0.03)
    assert 3e11 <= each.bandwidth <= 8e12


@pytest.mark.parametrize("key", GPUS)
def test_every_figure_has_a_source(key):
    each = SPECS[key]
    named = {"key", "name", "compute_capability", "multiprocessors", "sources", "also"}  # "hardware" covers these
    links = {"host_link", "nvlink", "network"}  # "links" covers these
    for field in {f.name for f in dataclasses.fields(each)} - named - links | {"hardware", "links"}:
        assert each.sources[field], field
    assert each.context_source == each.sources["context"]


def test_cublas_workspace(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # a Spec describes the GPU, not this process
    large = {"RTX 5090", "H100", "H200", "B200"}
    for key, each in SPECS.items():
        assert each.cublas_workspace == (33_554_432 if key in large else 8_519_680)


@pytest.mark.parametrize(
    ("name", "key"),
    [(each.name, key) for key, each in SPECS.items()]
    + [(key.lower(), key) for key in GPUS]
    + [
        ("rtx4090", "RTX 4090"),
        ("GeForce RTX 3090", "RTX 3090"),
        ("3090", "RTX 3090"),
        (" a100 80gb ", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("Tesla V100-PCIE-16GB", "V100-16GB"),
        ("NVIDIA T4", "T4"),
        ("H100 80GB", "H100"),
        ("nvidia_h200", "H200"),
        ("A6000", "RTX A6000"),
        ("GeForce RTX 3060 12GB", "RTX 3060"),
    ],
)
def test_names(name, key):
    assert spec(name) is SPECS[key]


# H100 PCIe and H100 NVL have other numbers of multiprocessors; "A100" alone is two GPUs.
@pytest.mark.parametrize(
    "name", ["", "A100", "V100", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "RTX 3090 Ti", "L40", "RTX 3060 Ti"]
)
def test_unknown_name(name):
    with pytest.raises(ValueError, match="unknown GPU") as error:
        spec(name)
    assert repr(name) in str(error.value)
    assert all(key in str(error.value) for key in GPUS)
    assert "total_memory=" in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "'A100-40GB' or 'A100-80GB'"),
        ("V100", "'V100-16GB' or 'V100-32GB'"),
        ("H100 PCIe", "'H100'"),
        ("RTX 3090 Ti", "'RTX 3090'"),
        ("RTX 3060 Ti", "'RTX 3060'"),
        ("A10", "'A10G'"),
        ("A100 SXM 80", "'A100-80GB'"),
        ("RTX4O90", "'RTX 4090'"),
        ("AMD Instinct MI300X", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_nearly_right_is_guessed(name, meant):
    with pytest.raises(ValueError, match="unknown GPU") as error:
        spec(name)
    assert (f"did you mean {meant}" in str(error.value)) if meant else ("did you mean" not in str(error.value))


def test_every_gpu_has_what_its_compute_capability_says():
    """What a new GPU of a new compute capability needs besides its literal."""
    for each in SPECS.values():
        assert each.capability is CAPABILITIES[each.compute_capability]
        assert each.capability.shared_memory_per_block <= each.capability.shared_memory
        assert (5, 0) <= each.compute_capability <= attention.LATEST


def test_a_spec_cannot_be_changed():
    each = spec("A100-80GB")
    with pytest.raises(dataclasses.FrozenInstanceError):
        each.context = 0
    with pytest.raises(TypeError):
        each.peak_flops["float32"] = 0
    with pytest.raises(TypeError):
        SPECS["A100-80GB"] = None
    assert dataclasses.replace(each, context=1).context == 1
    assert len({*SPECS.values()}) == len(GPUS)


@pytest.mark.parametrize(("key", "gigabytes"), [("V100-16GB", 15.75), ("A100-80GB", 31.5), ("H100", 63.0)])
def test_links_are_pcie_of_their_generation(key, gigabytes):
    """Per direction, as tables of PCIe's versions give it for 16 lanes."""
    assert SPECS[key].host_link / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert SPECS[key].nvlink > 4 * SPECS[key].host_link


# CUDA C++ Programming Guide, technical specifications per compute capability: threads and KiB of shared memory of a
# multiprocessor, and KiB that a block of threads may ask for.
@pytest.mark.parametrize(
    ("capability", "threads", "shared", "per_block"),
    [
        ((7, 0), 2048, 96, 96),
        ((7, 5), 1024, 64, 64),
        ((8, 0), 2048, 164, 163),
        ((8, 6), 1536, 100, 99),
        ((8, 9), 1536, 100, 99),
        ((9, 0), 2048, 228, 227),
        ((10, 0), 2048, 228, 227),
        ((12, 0), 1536, 100, 99),
    ],
)
def test_what_a_capability_has(capability, threads, shared, per_block):
    assert CAPABILITIES[capability] == (threads, shared * 1024, per_block * 1024)


# What the datasheets and whitepapers print (`Spec.sources`; contexts: MiB, derived as said there): multiprocessors,
# context, MiB of L2 cache, GB/s of memory, lanes' generation of PCIe x16, GB/s of NVLink in each direction.
@pytest.mark.parametrize(
    ("key", "multiprocessors", "context", "l2_cache", "bandwidth", "generation", "nvlink"),
    [
        ("T4", 40, 133, 4, 320, 3, 0),
        ("V100-16GB", 80, 379, 6, 900, 3, 150),
        ("V100-32GB", 80, 379, 6, 900, 3, 150),
        ("RTX 3060", 28, 328, 2.25, 360, 4, 0),
        ("RTX 3090", 82, 317, 6, 936, 4, 56.25),
        ("RTX 4090", 128, 448, 72, 1008, 4, 0),
        ("RTX 5090", 170, 607, 96, 1792, 5, 0),
        ("A10G", 80, 282, 6, 600, 4, 0),
        ("RTX A6000", 84, 262, 6, 768, 4, 56.25),
        ("A100-40GB", 108, 481, 40, 1555, 4, 300),
        ("A100-80GB", 108, 481, 40, 2039, 4, 300),
        ("L4", 58, 211, 48, 300, 4, 0),
        ("L40S", 142, 471, 96, 864, 4, 0),
        ("H100", 132, 666, 50, 3350, 5, 450),
        ("H200", 132, 594, 60, 4800, 5, 450),
        ("B200", 148, 712, 126.5, 8000, 5, 900),
    ],
)
def test_what_the_datasheets_print(key, multiprocessors, context, l2_cache, bandwidth, generation, nvlink):
    each = SPECS[key]
    assert each.multiprocessors == multiprocessors
    assert each.context == context * MiB and each.l2_cache == l2_cache * MiB
    assert each.bandwidth == pytest.approx(bandwidth * 1e9)
    assert each.host_link == pytest.approx(2 ** (generation - 3) * 16 * 8e9 * 128 / 130 / 8)
    assert each.nvlink == pytest.approx(nvlink * 1e9)


# Gb/s of InfiniBand in each direction for each GPU of NVIDIA's own machine with it, by the datasheets of DGX-1 (4 ports
# of 100 for 8 GPUs), DGX A100 (8 of 200), DGX H100, H200 and B200 (8 of 400).
NETWORKS = {"V100-16GB": 50, "V100-32GB": 50, "A100-40GB": 200, "A100-80GB": 200, "H100": 400, "H200": 400, "B200": 400}


@pytest.mark.parametrize("key", GPUS)
def test_the_network_between_machines(key):
    assert SPECS[key].network * 8 / 1e9 == pytest.approx(NETWORKS.get(key, 0))
    assert ("DGX" in SPECS[key].sources["links"]) == (key in NETWORKS)


# Dense peaks in TFLOP/s: float64, float32, tf32, float16 (bfloat16 is its equal), and int8 in TOP/s.
@pytest.mark.parametrize(
    ("key", "peaks"),
    [
        ("T4", (8.1 / 32, 8.1, None, 65, 130)),
        ("V100-16GB", (7.8, 15.7, None, 125, None)),
        ("V100-32GB", (7.8, 15.7, None, 125, None)),
        ("RTX 3060", (12.74 / 64, 12.74, 12.74, 25.4, 101.6)),
        ("RTX 3090", (35.6 / 64, 35.6, 35.6, 71, 284)),
        ("RTX 4090", (82.58 / 64, 82.6, 82.6, 165.2, 660.6)),
        ("RTX 5090", (104.8 / 64, 104.8, 104.8, 209.6, 838.4)),
        ("A10G", (35 / 64, 35, 35, 70, 140)),
        ("RTX A6000", (38.7 / 64, 38.7, 77.4, 154.8, 309.7)),
        ("A100-40GB", (19.5, 19.5, 156, 312, 624)),
        ("A100-80GB", (19.5, 19.5, 156, 312, 624)),
        ("L4", (30.3 / 64, 30.3, 60, 121, 242.5)),
        ("L40S", (91.6 / 64, 91.6, 183, 362.05, 733)),
        ("H100", (66.9, 66.9, 494.7, 989.4, 1978.9)),
        ("H200", (66.9, 66.9, 494.7, 989.4, 1978.9)),
        ("B200", (40, 80, 1100, 2250, 4500)),
    ],
)
def test_the_peaks_that_the_datasheets_print(key, peaks):
    named = dict(zip(("float64", "float32", "tf32", "float16", "int8"), peaks, strict=True))
    found = {name: rate / 1e12 for name, rate in SPECS[key].peak_flops.items() if name != "bfloat16"}
    assert found == pytest.approx({name: rate for name, rate in named.items() if rate is not None}, rel=2e-3)


@pytest.mark.parametrize(("key", "published"), [("T4", 15.75), ("A100-80GB", 31.51), ("H100", 63.02)])
def test_the_link_to_the_host(key, published):
    """GB/s of 16 lanes of PCIe 3.0, 4.0 and 5.0 in each direction, as PCI-SIG's figures are quoted."""
    assert spec(key).host_link / 1e9 == pytest.approx(published, abs=0.01)


@pytest.mark.parametrize("key", GPUS)
def test_what_products_reach_is_near_the_datasheet_s_peak(key):
    """Above it by no more than the clock is, of cards that boost beyond the clock that their datasheet counts with."""
    for precision, peak in spec(key).peak_flops.items():
        if precision in achieved_rates.MEASURED.get(key, ()):
            assert 0.3 * peak < achieved_rates.rate(spec(key), precision) < 1.2 * peak, precision


def test_a_block_of_threads_may_have_all_shared_memory_but_a_kibibyte():
    """NVIDIA, CUDA C++ Programming Guide, "Shared Memory" of each compute capability: from 8.0 on a multiprocessor
    keeps 1 KiB for each block for itself."""
    for number, one in CAPABILITIES.items():
        assert one.shared_memory - one.shared_memory_per_block == (1024 if number >= (8, 0) else 0)
    of_guide = {(8, 0): 164, (9, 0): 228, (10, 0): 228, (12, 0): 100}
    assert {number: CAPABILITIES[number].shared_memory // 1024 for number in of_guide} == of_guide


def _drop(row, key):
    del row[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: _drop(row, "l2_cache"), "T4: wanted the fields"),
        (lambda row: row.update(colour="green"), "T4: wanted the fields"),
        (lambda row: _drop(row["sources"], "context"), "T4: wanted a source for each of"),
        (lambda row: row["sources"].update(context=""), "T4: wanted a source for each of"),
        (lambda row: row.update(host_link="PCIe 9.0 x16"), "T4: wanted one of the links .* not 'PCIe 9.0 x16'"),
    ],
)
def test_an_entry_without_all_fields_or_sources_is_an_error(tmp_path, change, message):
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    change(rows["T4"])
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load(path)
