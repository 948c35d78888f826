"""Recorded figures: verdicts by the digits printed, and the tables."""

import pytest

import labkit
from labkit import published
from labkit.units import MiB

FIGURES = [figure for _, _, figure in published._figures()]


def test_verdict_by_the_digits_that_were_printed():
    bert = published.find("bert-base", "parameters")
    assert bert.mib == "418.7295"
    assert bert.verdict(int(418.7294921875 * MiB)) == "equal to 4 decimals"
    assert bert.verdict(419 * MiB) == "+0.271 MiB"
    exact = published.find("three-linear", "forward adds", "notes")
    assert exact.verdict(168 * MiB + MiB // 8) == "equal"


def test_a_figure_is_found_or_the_choice_is_shown():
    assert published.find("three-linear", "peak", gpu="A100").mib == "364.27880859375"
    with pytest.raises(LookupError, match="3 figures match 'peak'"):
        published.find("three-linear", "peak")
    with pytest.raises(LookupError, match=r"experiments .*cuda-context"):
        published.find("GPT-5", "peak")


def test_every_figure_is_a_number_with_a_source():
    for figure in FIGURES:
        assert float(figure.mib) >= 0
        assert figure.source and figure.experiment and figure.quantity
    keys = [(f.experiment, f.quantity, f.source, f.gpu) for f in FIGURES]
    assert len(set(keys)) == len(keys)


def test_tables():
    assert len(published.table()) == len(FIGURES)
    assert set(published.table("cuda-context")["published (MiB)"]) == {"1351", "1639"}
    peak = published.find("three-linear", "peak", "notes")
    with labkit.simulated_gpu("A100-80GB"):
        frame = published.elsewhere([(peak, 381_974_016, "the bias gradient's staging buffer")])
    assert frame.index.name == "simulated A100-80GB"
    row = frame.loc["peak"]
    assert row["here"] == "364.279 MiB" and row["published (MiB)"] == "360.274"
    assert row["here - published"] == "+4.004 MiB"
    with labkit.simulated_gpu("T4"):  # the bytes may have been measured on another GPU than the one in use
        assert published.elsewhere([(peak, 0, "")], gpu="simulated V100-16GB").index.name == "simulated V100-16GB"
