"""Sizes as text: three decimals or all of them, and exact text reads back to the same bytes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.units import MiB, mib, parse, verdict


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 MiB"),
        (4 * 10_240 * 4096, "160.0 MiB"),
        (8_519_680, "8.125 MiB"),
        (-512, "-0.00048828125 MiB"),
        (1, "0.00000095367431640625 MiB"),
        (176_456_192, "168.28173828125 MiB"),
    ],
)
def test_every_digit_is_shown_where_it_is_asked_for(size, text):
    assert mib(size, exact=True) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 MiB"),
        (4 * 10_240 * 4096, "160.0 MiB"),
        (8_519_680, "8.125 MiB"),
        (176_456_192, "168.282 MiB"),
        (168 * MiB + 512, "168.000 MiB"),  # three noughts: rounded
        (-(3 * MiB + 1), "-3.000 MiB"),
        (-512, "-512 B"),
        (104_857, "104,857 B"),
        (104_858, "0.100 MiB"),
        (2**70 + 1, "1125899906842624.000 MiB"),
    ],
)
def test_three_decimals_or_bytes(size, text):
    assert mib(size) == text


@given(st.integers(-(2**45), 2**45))
def test_a_size_is_never_rounded_to_nought_and_keeps_three_digits(size):
    text = mib(size)
    assert (text == "0.0 MiB") == (size == 0)
    assert len(text.split()[0].partition(".")[2]) <= 3
    shown = float(text.split()[0].replace(",", "")) * (MiB if text.endswith("MiB") else 1)
    assert shown == pytest.approx(size, rel=0.005)


def test_a_notebook_shows_it_without_quotes():
    assert repr(mib(MiB)) == "1.0 MiB"
    assert mib(MiB, places=3, sign=True) == "+1.000 MiB"


@given(st.integers(-(2**70), 2**70), st.integers(1, 25), st.booleans())
def test_text_reads_back_to_the_same_bytes(size, places, sign):
    assert parse(mib(size, places, sign, exact=True)) == size


def test_a_whole_float_is_accepted_and_a_fraction_is_not():
    assert mib(MiB / 2) == "0.5 MiB"
    assert mib(Fraction(MiB, 2)) == "0.5 MiB"
    with pytest.raises(ValueError, match="divide bytes with //"):
        mib(Fraction(1, 2))
    with pytest.raises(ValueError, match="divide bytes with //"):
        mib(0.5)
    with pytest.raises(ValueError, match="whole number"):
        mib(float("nan"))
    with pytest.raises(TypeError, match="not '160' \\(str\\)"):
        mib("160")


def test_parse_says_what_it_wanted():
    with pytest.raises(ValueError, match="wanted a number of MiB"):
        parse("168 MB")
    with pytest.raises(ValueError, match="whole number"):
        parse("0.1")


def test_verdict():
    assert verdict(5, 5) == "equal"
    assert verdict(168 * MiB + MiB // 8, 160 * MiB) == "+8.125 MiB"
    assert verdict(0, 512) == "-512 B"
