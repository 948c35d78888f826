"""docs/real_gpus.md says what docs/real_gpus.json says, and the logs of records are read as they are written."""

import pytest

from tools.real_gpus import page, records

LOG = """import torch
class Hyperparameters:
    num_iterations : int = 1480 # number of iterations to run
print("peak memory")
{line}
Running Python 3.12 compiled with GCC
Running PyTorch 2.8.0.dev20250524+cu126 compiled for CUDA 12.6
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:61:00.0 Off |                    0 |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:62:00.0 Off |                    0 |
{line}
step:1/1480 train_time:1ms
peak memory allocated: {allocated} MiB reserved: {reserved} MiB
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "records" / "track" / "one"
    folder.mkdir(parents=True)
    for name, allocated, reserved in ("a.txt", 30724, 45392), ("b.txt", 30730, 45300):
        text = LOG.format(line="=" * 100, allocated=allocated, reserved=reserved)
        (folder / name).write_text(text, encoding="utf-8")
    other = LOG.format(line="=" * 100, allocated=1, reserved=2).replace("import torch", "import torch, os")
    (folder / "c.txt").write_text(other, encoding="utf-8")
    return tmp_path


def test_the_page_is_written_from_the_file():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python -m tools.real_gpus"


def test_the_readme_counts_as_the_page_does():
    off = [page.off(row) for row in page.stored()["rows"] if "here" in row]
    row = next(
        line
        for line in (page.PAGE.parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
        if "real_gpus.md" in line
    )
    near = [abs(one) for one in off if abs(one) <= page.NEAR]
    said = f"{off.count(0)} equal to the MiB, {len(near)} within {max(near)} MiB"
    assert row.startswith(f"| {len(off)} compiled training programs") and said in row


def test_every_record_is_counted_once_and_every_difference_has_a_reason():
    found = page.stored()
    assert len({row["record"] for row in found["rows"]}) == len(found["rows"])
    for name, source in found["sources"].items():
        own = [row for row in found["rows"] if row["source"] == name]
        assert len(own) + sum(source["lacking"].values()) == source["records"]
    for row in found["rows"]:
        assert row["source"] in found["sources"]
        assert ("here" in row) + ("failed" in row) <= 1
        assert row["published"]["allocated"][0] <= row["published"]["allocated"][1]
        if page.off(row) if "here" in row else False:
            assert abs(page.off(row)) <= page.NEAR or row["why"], f"the difference of {row['record']} is not explained"


def test_a_peak_inside_the_range_of_the_logs_is_not_off():
    row = {"published": {"allocated": [10, 20]}, "here": {"allocated": 0, "reserved": 0}}
    for here, off in (9, -1), (10, 0), (20, 0), (23, 3):
        row["here"]["allocated"] = here * 2**20 + 5
        assert page.off(row) == off


def test_the_nearer_bound_counts():
    row = {"published": {"allocated": [15, 15]}, "here": {"allocated": 10 * 2**20, "reserved": 0}}
    for upper, off in (12, -3), (15, 0), (18, 3), (30, -5):
        row["upper"] = {"allocated": upper * 2**20, "reserved": 0}
        assert page.off(row) == off


def test_what_a_program_prints_counts_and_not_its_warm_up(tmp_path):
    row = {"published": {"allocated": [15, 15]}, "here": {"allocated": 2**30, "reserved": 2**30, "printed": [14, 20]}}
    assert (page.off(row), page._bounds(row, "reserved")) == (-1, "20")
    row["here"]["printed"] = [14, None]  # a program may print no reserved memory
    assert page._bounds(row, "reserved") == "1,024"
    folder = tmp_path / "track-one" / "logs"
    folder.mkdir(parents=True)
    assert records.printed(tmp_path, "track/one") is None
    (folder / "a.txt").write_text(LOG.format(line="=" * 100, allocated=7, reserved=8), encoding="utf-8")
    assert records.printed(tmp_path, "track/one") == (7, 8)


def test_both_bounds_are_shown_where_they_differ():
    row = {"here": {"allocated": 2**30, "reserved": 2**31}, "upper": {"allocated": 2**30 + 5, "reserved": 2**32}}
    assert [page._bounds(row, name) for name in ("allocated", "reserved")] == ["1,024", "2,048 to 4,096"]


@pytest.mark.parametrize(
    ("torch", "release"),
    [("2.7.0.dev20250125+cu126", "2.7.0"), ("2.7.0a0+79aa17489c.nv25.04", "2.7.0"), ("2.10.0+cu128", "2.10.0")],
)
def test_a_nightly_build_runs_on_its_release(torch, release):
    """The versions are those of logs."""
    assert records.release(torch) == release
    with pytest.raises(ValueError, match="no version of torch: ''"):
        records.release("")


def test_a_survey_says_why_a_record_cannot_be_run(tmp_path):
    log = LOG.format(line="=" * 100, allocated=1, reserved=2)
    programs = {
        "track_1_short/2024-12-10_Runs": log,
        "track_1_short/2025-09-03_FA3": log.replace("import torch", "import torch\nfrom flash_attn_interface import f"),
        "track_2_medium/2025-01-18": log.replace("import torch", "from kernels import get_kernel"),
        "track_2_medium/2025-01-19": log.split("peak memory allocated")[0],
        "track_2_medium/2025-01-20": log.replace("import torch", "def of a later Python"),
        "track_2_medium/img": log,
        "track_3_optimization/2025-01-20": log,
    }
    for name, text in programs.items():
        (tmp_path / "records" / name).mkdir(parents=True)
        (tmp_path / "records" / name / "log.txt").write_text(text, encoding="utf-8")
    found = records.survey(tmp_path)
    why = [
        "",
        records.NOT_HERE["flash_attn_interface"],
        records.NOT_HERE["kernels"],
        records.NO_PEAK,
        records.NEWER_PYTHON,
    ]
    assert found == dict(zip(programs, why, strict=False))


def test_logs_of_one_code_give_a_range(checkout):
    found = records.published(checkout, "track/one")
    assert (found.logs, found.allocated, found.reserved) == (2, (30724, 30730), (45300, 45392))
    assert (found.torch, found.cards) == ("2.8.0.dev20250524+cu126", "2 × H100 80GB HBM3")
    with pytest.raises(ValueError, match="no log in"):
        records.published(checkout, "track/two")


def test_of_a_program_only_the_number_of_iterations_is_changed(checkout):
    text = LOG.split("{line}")[0]
    assert records.program(checkout, "track/one") == text.replace("int = 1480", "int = 3")
    for path in (checkout / "records" / "track" / "one").iterdir():
        path.write_text(path.read_text(encoding="utf-8").replace("num_iterations", "num_steps"), encoding="utf-8")
    with pytest.raises(ValueError, match="set 0 times"):
        records.program(checkout, "track/one")


def test_files_of_tokens_are_as_records_read_them(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FILES", {"fineweb_val_000000.bin": 1200})
    records.write_tokens(tmp_path)
    data = (tmp_path / records.FOLDER / "fineweb_val_000000.bin").read_bytes()
    assert [int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8)] == [20240520, 1, 1200]
    assert len(data) == 256 * 4 + 1200 * 2
    assert int.from_bytes(data[1024:1026], "little") == 50256
