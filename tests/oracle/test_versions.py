"""Which answers of another torch are kept."""

from tools.oracle import cases, versions


def test_an_answer_is_kept_if_it_comes_twice(monkeypatch):
    found = [cases.Case("H100", code, "a512 f512", None) for code in ("steady", "its last free slips")]
    again = [found[0], found[1]._replace(events="a512")]
    monkeypatch.setattr(cases, "on_oracle", lambda codes, gpu, version: again if len(codes) == 2 else [])
    assert versions.twice(found, "H100", "2.11.0") == found[:1]
    assert versions.twice([], "H100", "2.11.0") == []


def test_families_written_out_in_tests_are_asked_too():
    families = dict(versions.written())
    assert set(families) == set(versions.WRITTEN)
    assert all(len(found) >= 5 for found in families.values())
    assert {case.gpu for case in families["rare_paths"]} >= {"H100", "A100-80GB", "T4", "B200"}
