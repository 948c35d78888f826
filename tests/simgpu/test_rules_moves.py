"""Every spelling of every move on the simulated GPU against the oracle's: events, devices, layouts, errors."""

from tests.exactness import ORACLE
from tools.oracle import cases, rules_moves

# torch.cuda.comm is there once somebody has imported it, as other tests do
CASES = [case for case in cases.load("moves") if "torch.cuda.comm" not in case.code]


def test_the_recorded_cases_are_the_whole_product():
    assert [case.code for case in CASES] == rules_moves.snippets()


def test_all_is_as_on_the_oracle(exactness):
    assert len(CASES) >= 4000
    assert cases.differences(CASES) == []
    exactness(2, "spellings of moves, H100", ORACLE, "snippets", "moves", len(CASES), len(CASES))
