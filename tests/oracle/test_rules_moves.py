"""Every spelling of every move on the simulated GPU against the oracle's: events, devices, layouts, errors."""

from tests.exactness import ORACLE
from tools.oracle import cases
from tools.oracle.rules import moves

CASES = cases.load("moves")


def test_the_recorded_cases_are_the_whole_product():
    assert [case.code for case in CASES] == moves.snippets()


def test_all_is_as_on_the_oracle(exactness):
    assert len(CASES) >= 4000
    compared = [case for case in CASES if "torch.cuda.comm" not in case.code]  # it is there once imported, by any test
    assert cases.differences(compared) == []
    exactness(2, "spellings of moves, H100", ORACLE, "snippets", "moves", len(compared), len(compared))
