"""The reader's guesses: read with their units, shown next to the estimate and the measurement, and scored."""

import pytest
import torch

import labkit
from labkit import guesses
from labkit.units import MiB
from tools.workspace_copy import refresh


@pytest.fixture(autouse=True)
def no_questions():
    guesses.forget()
    yield
    guesses.forget()


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_guess_estimate_and_measurement_next_to_each_other(capsys):
    guesses.compare("forward adds", guess="150 MiB", estimate=160 * MiB, measured=168 * MiB + MiB // 8)
    assert lines(capsys) == [
        "forward adds",
        "  your guess    150.0 MiB  18.125 MiB too low, 10.8 %",
        "  estimate      160.0 MiB  8.125 MiB too low, 4.8 %",
        "  measured    168.125 MiB",
    ]


def test_without_a_guess_it_says_so_and_goes_on(capsys):
    guesses.compare("after", guess=..., estimate=MiB, measured=MiB)
    assert lines(capsys) == [
        "after",
        "  your guess  none yet",
        "  estimate     1.0 MiB  equal to the byte",
        "  measured     1.0 MiB",
    ]


def test_a_guess_without_an_estimate(capsys):
    guesses.compare("peak", guess=2 * MiB, measured=MiB)
    assert lines(capsys)[1:] == ["  your guess  2.0 MiB  1.0 MiB too high, 100.0 %", "  measured    1.0 MiB"]


def test_a_time_of_the_simulated_clock_is_called_simulated(capsys):
    guesses.compare("a step", guess=3, estimate=4, simulated=2, unit="s")
    assert lines(capsys) == [
        "a step",
        "  your guess  3 s  1 s too high, 50.0 %",
        "  estimate    4 s  2 s too high, 100.0 %",
        "  simulated   2 s",
    ]


def test_a_simulated_time_has_two_digits(capsys):
    guesses.compare("a step", guess="12 ms", estimate=13.251, simulated=12.345, unit="ms")
    assert lines(capsys)[1:] == [
        "  your guess  12 ms  0.35 ms too low, 2.8 %",
        "  estimate    13 ms  0.91 ms too high, 7.3 %",
        "  simulated   12 ms",
    ]
    guesses.compare("rows", guess=..., simulated=12.345, unit="rows")
    assert lines(capsys)[-1] == "  simulated   12.345 rows"


def test_a_result_of_arithmetic_is_called_calculated(capsys):
    guesses.compare("GPUs", guess=..., calculated=77, unit="GPUs")
    assert capsys.readouterr().out.splitlines()[-1] == "  calculated   77 GPUs"


@pytest.mark.parametrize("values", [{}, {"measured": 1, "simulated": 1}, {"measured": 1, "calculated": 0}])
def test_a_value_is_measured_simulated_or_calculated(values):
    with pytest.raises(TypeError, match=r"one of measured=\.\.\., simulated=\.\.\. and calculated=\.\.\."):
        guesses.compare("a step", guess=3, unit="s", **values)


def test_a_cell_run_twice_counts_once_and_later_guesses_replace():
    for guess in (..., 90, 100):
        guesses.compare("a", guess=guess, measured=100)
    assert guesses.score() == "1 guess: 1 within a factor of 2, 1 within 10 %, 1 within 1 %, 1 to the byte"


def test_the_score(capsys):
    assert "no question was asked" in guesses.score()
    for name in "abcd":
        guesses.compare(name, guess=..., measured=1000 * MiB)
    assert guesses.score() == "no guess yet: 4 questions to go back to, each a cell with three dots"
    for name, guess in zip("abcd", (1000, 1009, 900, 501), strict=True):
        guesses.compare(name, guess=guess * MiB, measured=1000 * MiB)
    scored = "4 guesses: 4 within a factor of 2, 3 within 10 %, 2 within 1 %, 1 to the byte"
    assert guesses.score() == scored
    guesses.compare("rows", guess=..., measured=7, unit="rows")
    assert guesses.score() == f"{scored}; 1 question without a guess"
    guesses.compare("rows", guess="skip", measured=7, unit="rows")
    assert guesses.score() == f"{scored}; 1 question skipped"
    guesses.compare("rows", guess=7, measured=7, unit="rows")
    assert guesses.score() == "5 guesses: 5 within a factor of 2, 4 within 10 %, 3 within 1 %, 2 exact"


@pytest.mark.parametrize(
    ("guess", "measured", "inside"),
    [(50, 100, True), (49, 100, False), (200, 100, True), (201, 100, False), (-60, -100, True), (60, -100, False),
     (0, 0, True), (1, 0, False)],
)  # fmt: skip
def test_a_factor_of_two(guess, measured, inside):
    guesses.compare("a", guess=guess, measured=measured)
    assert f"{int(inside)} within a factor of 2" in guesses.score()


@pytest.fixture
def workspace_copy(tmp_path, monkeypatch):
    """A working directory as a kernel has it that runs a notebook of the reader's copy."""
    (tmp_path / "notebooks").mkdir()
    refresh(tmp_path / "notebooks", tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")


@pytest.mark.parametrize(("guess", "why"), [(..., "no guess yet"), ("many", "a guess is a number of")])
def test_the_readers_copy_shows_nothing_before_a_guess(workspace_copy, capsys, guess, why):
    guesses.compare("after", guess=guess, estimate=123 * MiB, measured=124 * MiB)
    out = capsys.readouterr().out
    assert out.startswith(f"after: {why}")
    assert "123" not in out
    assert "124" not in out
    assert guesses.score() == "no guess yet: 1 question to go back to, each a cell with three dots"


def test_the_readers_copy_shows_it_after_a_guess_or_skip(workspace_copy, capsys):
    guesses.compare("after", guess="skip", measured=124 * MiB)
    assert lines(capsys) == ["after", "  your guess    skipped", "  measured    124.0 MiB"]
    assert guesses.score() == "0 guesses; 1 question skipped"
    guesses.compare("after", guess=124 * MiB, measured=124 * MiB)
    assert "equal to the byte" in lines(capsys)[1]


@pytest.mark.parametrize(
    ("guess", "size"),
    [
        (512, 512),
        (2.5 * MiB, 2.5 * MiB),
        ("512 B", 512),
        ("1,024 KiB", MiB),
        ("160MiB", 160 * MiB),
        (" 1.5 GiB ", 1536 * MiB),
        ("10_240", 10_240),
        ("-3 MiB", -3 * MiB),
        (..., None),
        (None, None),
        ("...", None),
        ("", None),
    ],
)
def test_units_are_read(guess, size):
    assert guesses.read(guess) == size


@pytest.mark.parametrize("guess", ["a lot", "160 MB", "5 apples", True, [1], float("nan"), float("inf"), 1j, object()])
def test_nonsense_is_one_clear_line_and_no_guess(guess, capsys):
    guesses.compare("x", guess=guess, measured=MiB)
    first, *rest = lines(capsys)
    assert first.startswith("a guess is a number of bytes such as 100 * MiB, or a text such as '100 MiB'; ")
    assert rest == ["x", "  your guess  none yet", "  measured     1.0 MiB"]
    assert "1 question" in guesses.score()


def test_a_tensor_is_nonsense_and_is_not_printed(capsys):
    guesses.compare("x", guess=torch.zeros(100, 100), measured=MiB)
    assert "; a Tensor is neither" in capsys.readouterr().out


def test_bytes_that_were_meant_as_mib_are_asked_back(capsys):
    guesses.compare("x", guess=160, measured=168 * MiB)
    assert lines(capsys)[0] == "160 without a unit is 160 B; if you meant MiB, write 160 * MiB"


def test_other_units(capsys):
    guesses.compare("step", guess="12 ms", estimate=12.25, measured=12.25, unit="ms")
    assert lines(capsys)[1:3] == ["  your guess      12 ms  0.250 ms too low, 2.0 %", "  estimate    12.250 ms  equal"]
    guesses.compare("step", guess="12 s", measured=12.25, unit="ms")
    assert lines(capsys)[0] == "a guess is a number of ms; '12 s' is none"
    guesses.compare("nothing", guess=3, measured=0)
    assert lines(capsys)[1] == "  your guess      3 B  3 B too high"


def test_a_guess_about_a_stage(capsys):
    with labkit.simulated_gpu("A100-80GB"):
        ledger = labkit.Ledger()
        with ledger("input"):
            x = torch.zeros(MiB, device="cuda")
        ledger.compare(input=4 * MiB, guess=..., recorded="4.0")
        ledger.compare(input=4 * MiB, guess=None, of="peak")
        ledger.compare(input=4 * MiB)
        with pytest.raises(ValueError, match="one alone with recorded= or guess="):
            ledger.compare(input=4 * MiB, other=3, guess=...)
    out = lines(capsys)
    assert (out[0], out[4], out[5]) == (
        "input adds to allocated",
        "  recorded 4.0 MiB, equal",
        "allocated peak in input",
    )
    assert out[9] == "input: predicted 4.000 MiB, measured 4.000 MiB, equal"
    assert [row.counter for row in ledger.comparisons.values()] == ["added", "peak"]
    assert x.shape
