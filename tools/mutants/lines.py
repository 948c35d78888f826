"""Which test runs which lines of simgpu, and how long each takes: one run of the tests, kept in a file."""

import json
import re
import sys
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import coverage
import pytest

MAP = ".mutants.json"


class Noting:
    """A plugin of pytest: notes the lines of simgpu that each test runs, and which tests pass."""

    def __init__(self, root: Path):
        self.root = root
        self.coverage = coverage.Coverage(
            data_file=None, source=[str(root / "simgpu")], check_preimported=True, config_file=False
        )
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def found(self) -> dict:
        """{"tests": {its id: seconds}, "lines": {file: {line: [numbers of tests]}}}, of the tests that passed."""
        tests = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        number = {test: at for at, test in enumerate(tests)}
        data, lines = self.coverage.get_data(), {}
        for file in sorted(data.measured_files()):
            contexts = data.contexts_by_lineno(file)
            lines[Path(file).relative_to(self.root).as_posix()] = {
                str(line): sorted(number[test] for test in ran if test in number) for line, ran in contexts.items()
            }
        return {"tests": {test: round(seconds, 3) for test, seconds in tests.items()}, "lines": lines}


def make(root: Path, arguments: list[str]) -> None:
    """Runs the tests (pytest's `arguments`, all but the notebooks if there are none), and writes what they run into the
    map. What is there of other tests stays; of files of simgpu that have changed since, its lines are the old ones."""
    noting = Noting(root)
    noting.coverage.start()
    # Some tests interrupt what runs, coverage too; a lock of its own that is never released would then stop everything.
    noting.coverage._collector.data_lock = None
    try:
        pytest.main(["-q", "-p", "no:cacheprovider", *(arguments or ["tests"])], plugins=[noting])
    finally:
        noting.coverage.stop()
    before = json.loads((root / MAP).read_text()) if (root / MAP).exists() else {"tests": {}, "lines": {}}
    (root / MAP).write_text(json.dumps(merged(before, noting.found(), set(noting.seconds))))
    print(f"{len(noting.seconds) - len(noting.failed)} tests pass; what each runs is in {MAP}", file=sys.stderr)


def merged(before: dict, found: dict, ran: set[str]) -> dict:
    """The map `before`, without the tests that `ran` anew, and what was `found` of these."""
    tests = {test: seconds for test, seconds in before["tests"].items() if test not in ran} | found["tests"]
    number = {test: at for at, test in enumerate(tests)}
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for part in (before, found):
        names = list(part["tests"])
        for file, of in part["lines"].items():
            for line, numbers in of.items():
                kept = (names[one] for one in numbers if part is found or names[one] not in ran)
                lines[file][line] += [number[name] for name in kept]
    return {"tests": tests, "lines": lines}


class Map:
    """What `make` wrote: which tests to ask of a line, those that say most of its file in the least time first."""

    def __init__(self, root: Path):
        found = json.loads((root / MAP).read_text())
        self.seconds: dict[str, float] = found["tests"]
        self._tests = list(self.seconds)
        self._lines = {file: {int(line): ran for line, ran in of.items()} for file, of in found["lines"].items()}
        self._in_file = {file: Counter(chain(*of.values())) for file, of in self._lines.items()}
        self._in_all: Counter[int] = Counter()
        for counts in self._in_file.values():
            self._in_all.update(counts)
        self._root = root

    def _importers(self, file: str) -> list[str]:
        """The files that name this one's module in an import."""
        module, _, name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__").rpartition(".")
        said = re.compile(rf"(from {module}\.{name} import|from {module} import[^.]*\b{name}\b)")
        return [one for one in self._lines if said.search((self._root / one).read_text(encoding="utf-8"))]

    def of_lines(self, file: str, first: int, last: int) -> list[str]:
        """The tests that run one of the lines; if they run when the file is imported, those that run any line of it, or
        of the files that import it if it has no functions."""
        ran = self._lines.get(file, {})
        met = [line for line in range(first, last + 1) if line in ran]
        found = {number for line in met for number in ran[line]}
        in_file = self._in_file.get(file, Counter())
        if met and not found and not in_file:
            in_file = Counter(chain.from_iterable(self._in_file[one].elements() for one in self._importers(file)))
        if met and not found:
            found = set(in_file)
        order = sorted(
            found, key=lambda one: (self.seconds[self._tests[one]] + 0.01) * self._in_all[one] / in_file[one]
        )
        return [self._tests[one] for one in order]
