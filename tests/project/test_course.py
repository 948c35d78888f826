"""course.py: which torch is installed, when the environment is made again, and the editions it writes."""

import http.server
import re
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import course

PYTHON = Path(sys.executable)


@pytest.mark.parametrize(
    ("system", "nvidia", "index"),
    [
        ("Linux", False, course.CPU_INDEX),
        ("Linux", True, None),
        ("Darwin", False, None),
        ("Windows", False, None),
        ("Windows", True, course.CUDA_INDEX),
    ],
)
def test_where_torch_comes_from(system, nvidia, index):
    assert course.torch_index({}, system, nvidia) == index
    assert course.torch_index({"LABKIT_TORCH_INDEX": ""}, system, nvidia) is None
    assert course.torch_index({"LABKIT_TORCH_INDEX": "https://a.b/c"}, system, nvidia) == "https://a.b/c"


def test_an_index_answers_or_does_not():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        assert course.answers(here)
        assert course.answers(here + "/")
        assert not course.answers(here + "/elsewhere")
        server.shutdown()
    assert not course.answers(here, seconds=2)


def test_the_environment_depends_on_the_versions_and_on_the_index(tmp_path, monkeypatch):
    for name in ("constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(course, "ROOT", tmp_path)
    before = course.fingerprint(None)
    assert course.fingerprint(None) == before
    assert course.fingerprint(course.CPU_INDEX) != before
    (tmp_path / "constraints.txt").write_text("b")
    assert course.fingerprint(None) != before


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not a virtual environment"):
        course.create(tmp_path, tmp_path / "bin" / "python")
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_wildcards_stand_for_files_of_the_project(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    for name in ("03_a.ipynb", "03_b.ipynb", "04_c.ipynb"):
        (tmp_path / "notebooks" / name).touch()
    expanded = course.expand(["-x", "notebooks/03*", "notebooks/09*", "-k", "a*"])
    assert expanded == ["-x", "notebooks/03_a.ipynb", "notebooks/03_b.ipynb", "notebooks/09*", "-k", "a*"]


@pytest.fixture
def notebook(tmp_path):
    """A notebook with one exercise: a task, a cell to fill in, and its solution."""
    task, stub = new_markdown_cell("How many bytes?"), new_code_cell("answer = None")
    solution = new_code_cell("answer = 4 * 1024")
    for cell, tag in ((task, "exercise"), (stub, "exercise"), (solution, "solution")):
        cell.metadata.update(tags=[tag], slideshow={"slide_type": "skip"})
    stub.outputs = [new_output("stream", text="no answer yet")]
    title = new_markdown_cell("# The title", metadata={"slideshow": {"slide_type": "slide"}})
    path = tmp_path / "01_topic.ipynb"
    nbformat.write(new_notebook(cells=[title, task, stub, solution]), path)
    return path


def test_the_student_edition_has_the_tasks_and_not_the_solutions(notebook, tmp_path):
    done = course.command_student(PYTHON, [str(notebook), f"--output-dir={tmp_path / 'student'}"])
    cells = nbformat.read(tmp_path / "student" / notebook.name, as_version=4).cells
    assert done == 0
    assert [cell.source for cell in cells] == ["# The title", "How many bytes?", "answer = None"]
    assert cells[2].outputs == []
    assert len(nbformat.read(notebook, as_version=4).cells) == 4


def test_the_slides_hold_what_a_lecturer_shows(notebook, tmp_path):
    done = course.command_slides(PYTHON, [str(notebook), f"--output-dir={tmp_path}"])
    page = (tmp_path / "01_topic.slides.html").read_text(encoding="utf-8")
    assert done == 0
    assert "The title" in page and "How many bytes?" not in page


def test_what_fails_is_passed_on():
    assert course.run(PYTHON, "-c", "raise SystemExit(3)") == 3


@pytest.fixture
def ran(monkeypatch):
    """The arguments that course.py gives the environment's Python, which is not started."""
    calls = []
    monkeypatch.setattr(course, "run", lambda python, *given, environment=None: calls.append(given) or 0)
    return calls


@pytest.fixture
def folders(tmp_path, monkeypatch, notebook):
    """A project of one notebook with data: the course's notebooks and the reader's copy, which is not made yet."""
    ours, mine = tmp_path / "notebooks", tmp_path / course.MINE
    (ours / "data").mkdir(parents=True)
    (ours / "data" / "text.txt").write_text("some words")
    notebook.rename(ours / notebook.name)
    monkeypatch.setattr(course, "ROOT", tmp_path)
    monkeypatch.setattr(course, "NOTEBOOKS", ours)
    return ours, mine


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ([], "mine/00_out_of_memory.ipynb"),
        (["notebooks/03_a.ipynb"], "mine/03_a.ipynb"),
        (["my/a.ipynb"], "my/a.ipynb"),
    ],
)
def test_open_shows_the_readers_copy_and_passes_the_rest_on(ran, folders, monkeypatch, given, url):
    monkeypatch.setattr(course.os, "geteuid", lambda: 1000, raising=False)
    course.command_open(PYTHON, [*given, "--port", "8930"])
    root = f"--ServerApp.root_dir={course.ROOT}"
    assert ran == [("-m", "jupyterlab", root, f"--LabApp.default_url=/lab/tree/{url}", "--port", "8930")]
    assert (folders[1] / "01_topic.ipynb").exists()


def test_open_says_that_the_copy_cannot_be_written(ran, folders):
    folders[1].write_text("a file where the folder should be")
    with pytest.raises(SystemExit, match="your copy of the notebooks cannot be written"):
        course.command_open(PYTHON, [])
    assert ran == []


def test_on_the_courses_gpu_or_none_the_stored_outputs_are_compared(ran, monkeypatch):
    monkeypatch.setattr(course, "other_gpu", lambda python: None)
    course.command_test(PYTHON, [])
    assert ran == [("-m", "pytest")]


def test_on_another_gpu_its_simulated_twin_goes_first(ran, monkeypatch):
    monkeypatch.setattr(course, "other_gpu", lambda python: "H200")
    course.command_test(PYTHON, [])
    assert ran[0][:4] == ("-m", "nbconvert", "--to=notebook", "--execute")
    assert ran[1] == ("-m", "pytest", "tests", "rehearsed/H200")


def test_arguments_choose_what_is_tested_whatever_the_gpu(ran, monkeypatch):
    monkeypatch.setattr(course, "other_gpu", lambda python: "H200")
    course.command_test(PYTHON, ["notebooks/03_a.ipynb", "-x"])
    assert ran == [("-m", "pytest", "notebooks/03_a.ipynb", "-x")]


def test_the_courses_gpu_is_compared_with_the_stored_outputs(ran, monkeypatch):
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    monkeypatch.setattr(course, "real_gpu", lambda python: course.COURSE_GPU)
    course.command_gpu(PYTHON, ["notebooks/03_a.ipynb", "-x"])
    assert ran == [("-m", "pytest", "notebooks/03_a.ipynb", "-x")]


def test_another_gpu_is_compared_with_its_simulated_twin(ran, monkeypatch):
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    monkeypatch.setattr(course, "real_gpu", lambda python: "H200")
    course.command_gpu(PYTHON, [])
    rehearsed = [f"rehearsed/H200/{path.name}" for path in sorted(course.NOTEBOOKS.glob("*.ipynb"))]
    assert ran[0][:4] == ("-m", "nbconvert", "--to=notebook", "--execute")
    assert ran[1] == ("-m", "pytest", *rehearsed)


def test_a_failed_rehearsal_ends_it(monkeypatch):
    calls = []
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    monkeypatch.setattr(course, "real_gpu", lambda python: "H200")
    monkeypatch.setattr(course, "run", lambda python, *given, environment=None: calls.append(given) or 5)
    assert course.command_gpu(PYTHON, []) == 5
    assert len(calls) == 1


def test_without_a_gpu_nothing_is_compared_with_one(ran, monkeypatch):
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    monkeypatch.setattr(course, "real_gpu", lambda python: None)
    with pytest.raises(SystemExit, match="no CUDA GPU"):
        course.command_gpu(PYTHON, [])
    monkeypatch.setenv("LABKIT_GPU", "H100")
    with pytest.raises(SystemExit, match="LABKIT_GPU=H100 asks for a simulated one"):
        course.main(["gpu"])
    assert ran == []


# --- what may have happened before, or happens meanwhile ---------------------------------------------------


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The steps of a set-up, which are noted and not taken; making the environment is pretended too."""
    taken = []

    def create(folder, python):
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text("")
        taken.append("create")

    monkeypatch.setattr(course, "create", create)
    monkeypatch.setattr(course, "pip", lambda python, *arguments, optional=False: taken.append("pip") or True)
    monkeypatch.setenv("LABKIT_TORCH_INDEX", "")
    return taken


def test_a_set_up_is_done_once(steps, tmp_path):
    for _ in range(2):
        course.set_up(tmp_path / "venv", {"course"})
    assert steps == ["create", "pip"]


def test_another_command_adds_what_it_needs(steps, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(course, "pip", lambda python, *given, optional=False: asked.append(given[-1]) or True)
    for command in ("open", "slides", "open", "site", "slides", "setup"):
        course.set_up(tmp_path / "venv", course.needs(command))
    extras = [one.rpartition("[")[2] for one in asked]
    assert extras == ["course]", "course,docs]", "course,docs]", "flet-web", "course,docs,test]", "flet-web"]
    assert capsys.readouterr().out.count(str(tmp_path / "venv" / course.LOG)) == 4


def test_what_a_step_prints_goes_to_the_log(tmp_path, capsys):
    log = tmp_path / course.LOG
    assert course.call([sys.executable, "-c", "print('much')"], log)
    assert capsys.readouterr().out == "" and log.read_text().splitlines()[1:] == ["much"]
    fails = "import sys; print(*range(99), sep='\\n'); print('why', file=sys.stderr); sys.exit(3)"
    assert not course.call([sys.executable, "-c", fails], log, optional=True)
    assert capsys.readouterr().out == ""
    with pytest.raises(SystemExit) as ended:
        course.call([sys.executable, "-c", fails], log)
    said = capsys.readouterr().out
    assert ended.value.code == 3 and str(log) in said and "  why\n" in said and "  90\n" not in said


def test_a_step_is_one_line(capsys):
    with course.step("this"):
        pass
    with pytest.raises(KeyboardInterrupt), course.step("that"):
        raise KeyboardInterrupt
    first, second, *_ = capsys.readouterr().out.split("\n")
    assert re.fullmatch(r"course: installs this \.\.\. \d+ s", first) and second == "course: installs that ..."


def test_root_may_open_jupyterlab(ran, folders, monkeypatch, capsys):
    for user, given, expected in ((0, [], 1), (0, ["--allow-root"], 1), (1000, [], 0)):
        monkeypatch.setattr(course.os, "geteuid", lambda user=user: user, raising=False)
        course.command_open(PYTHON, given)
        assert ran[-1].count("--allow-root") == expected
    assert capsys.readouterr().out.count("you are root") == 1


@pytest.mark.parametrize("text", ["", "{", '{"python":', "[]", "\x00\xff"])
def test_a_stamp_that_cannot_be_read_is_none(steps, tmp_path, text):
    course.set_up(tmp_path / "venv", {"course"})
    (tmp_path / "venv" / course.STAMP).write_text(text)
    course.set_up(tmp_path / "venv", {"course"})
    assert steps == ["create", "pip"] * 2


def test_an_interrupted_set_up_goes_on(steps, tmp_path, monkeypatch, capsys):
    def interrupted(python, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(course, "pip", interrupted)
        assert course.main(["--venv", str(tmp_path / "venv"), "setup"]) == 130
    assert "the same command goes on from here" in capsys.readouterr().out
    assert course.main(["--venv", str(tmp_path / "venv"), "setup"]) == 0
    assert steps == ["create", "create", "pip"]


def test_an_environment_without_pip_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "venv"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    (folder / "pyvenv.cfg").write_text("")
    made = []
    monkeypatch.setattr(course.venv.EnvBuilder, "create", lambda builder, folder: made.append(builder.clear))
    monkeypatch.setattr(course, "version_of", lambda python: course.platform.python_version())
    for pip, expected in ((True, []), (False, [True])):
        monkeypatch.setattr(course, "has_pip", lambda python, pip=pip: pip)
        course.create(folder, python)
        assert made == expected


def test_has_pip(tmp_path):
    assert course.has_pip(PYTHON)
    assert not course.has_pip(tmp_path / "no-python")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["setup", "now"], "setup takes no arguments; given: now"),
        (["rehearse"], "rehearse wants the name of a GPU"),
        (["rehearse", "H2000"], "unknown GPU 'H2000'.* H200"),
        (["open", "notebooks/99_no_such.ipynb"], "no such notebook: notebooks/99_no_such.ipynb$"),
        (["open", "notebooks/03_a_linaer_model.ipynb"], "did you mean notebooks/03_a_linear_model.ipynb"),
        (["open", "03"], "open wants a notebook, not '03'; did you mean notebooks/03_a_linear_model.ipynb"),
        (["open", "03_a_linear_model"], "did you mean notebooks/03_a_linear_model.ipynb"),
        (["open", "notebooks/97*"], r"no such file: notebooks/97\*"),
        (["test", "tests/unit/test_alocator.py"], "no such file: tests/unit/test_alocator.py"),
        (["test", "tests/unit/test_no.py::test_one"], "no such file: tests/unit/test_no.py"),
        (["open", "--venv", "elsewhere"], "--venv goes before the command"),
        (["student", "--venv=elsewhere"], "--venv goes before the command"),
        (["translate"], "translate wants a language"),
        (["translate", "tlh"], "no language 'tlh' in translations/"),
    ],
)
def test_wrong_arguments_are_found_before_the_set_up(steps, tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message):
        course.main(["--venv", str(tmp_path / "venv"), *arguments])
    assert steps == [] and not (tmp_path / "venv").exists()


@pytest.mark.parametrize("arguments", [[], ["opne"], ["Open"], ["op"], ["--vnev", "x", "setup"]])
def test_an_unknown_command_is_told_before_the_set_up(steps, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        course.main(arguments)
    assert ended.value.code == 2 and steps == []
    assert capsys.readouterr().err.splitlines()[-1].startswith("course.py: error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["test", "tests/unit", "-k", "a or b"],
        ["open", "--port", "8930"],
        ["translate", "zh-cn"],
        ["site", "--strict"],
    ],
)
def test_what_may_be_passed_on_is_let_through(arguments):
    course.check(arguments[0], arguments[1:])


@pytest.mark.parametrize("index", ["not a url", "https://a b/c", "/srv/wheels", "https://[", "ftp//x"])
def test_what_is_no_address_does_not_answer(index):
    assert not course.answers(index, seconds=1)


def test_a_stamp_that_is_too_deep_is_none(tmp_path):
    (tmp_path / "stamp").write_text("[" * 100_000)
    assert course.written(tmp_path / "stamp") is None


@pytest.mark.parametrize("where", ["check", "command"])
def test_an_interrupt_before_and_after_the_set_up_is_one_line(steps, tmp_path, monkeypatch, capsys, where):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    if where == "check":
        monkeypatch.setattr(course, "check", interrupted)
    else:
        monkeypatch.setitem(course.COMMANDS, "setup", interrupted)
    assert course.main(["--venv", str(tmp_path / "venv"), "setup"]) == 130
    assert "interrupted; the same command goes on from here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ([], {"PYTHONSAFEPATH": "1"}),
        (["-I"], {}),
        (["-W", "error"], {}),
        (["-O"], {}),
        (["-X", "dev"], {}),
        ([], {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    ],
    ids=["safe path", "isolated", "warnings as errors", "optimized", "dev", "locale C"],
)
def test_it_starts_however_python_is_called(tmp_path, options, more):
    program = Path(course.__file__).parents[1] / "course.py"
    ran = course.subprocess.run(
        [sys.executable, *options, str(program), "--venv", str(tmp_path / "venv"), "rehearse", "H2000"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**course.os.environ, **more},
    )
    assert ran.returncode == 1 and ran.stderr.startswith("course: unknown GPU 'H2000'"), ran.stderr
    assert not (tmp_path / "venv").exists()


def test_the_courses_own_tools_are_found_where_python_leaves_their_folder_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert course.run(PYTHON, "-m", "tools.minutes", "--help") == 0


def test_a_file_is_no_environment(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="is a file: choose a folder"):
        course.main(["--venv", str(tmp_path / "file"), "setup"])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "x"), OSError(28, "No space left", "x")])
def test_a_folder_that_cannot_be_written_is_one_line(steps, tmp_path, monkeypatch, error):
    def fails(folder, python):
        raise error

    monkeypatch.setattr(course, "create", fails)
    with pytest.raises(SystemExit, match=r"the set-up in .*venv stopped: .*(Permission denied|No space left)"):
        course.main(["--venv", str(tmp_path / "venv"), "setup"])


@pytest.mark.parametrize(("output", "said"), [(b"Traceback\nOSError: No space", "No space"), (None, "status 1")])
def test_an_ensurepip_that_fails_is_one_line(steps, tmp_path, monkeypatch, output, said):
    def fails(folder, python):
        raise course.subprocess.CalledProcessError(1, ["python", "-m", "ensurepip"], output)

    monkeypatch.setattr(course, "create", fails)
    with pytest.raises(SystemExit, match=rf"the set-up in .*venv stopped in ensurepip: .*{said}"):
        course.main(["--venv", str(tmp_path / "venv"), "setup"])


def test_a_disk_that_is_nearly_full_is_told(tmp_path, monkeypatch):
    assert course.nearly_full(tmp_path) == "" or "MB are free" in course.nearly_full(tmp_path)
    usage = type(course.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(course.shutil, "disk_usage", lambda folder: usage(10**9, 10**9 - 5 * 10**6, 5 * 10**6))
    assert course.nearly_full(tmp_path / "not" / "there") == " (5 MB are free on this disk, and some 2 GB are wanted)"


def test_a_missing_file_of_the_course_is_named(steps, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"constraints\.txt is missing"):
        course.main(["--venv", str(tmp_path / "venv"), "setup"])


def test_an_old_python_is_told_so():
    """course.py itself parses and runs up to its check on Pythons that are too old for the rest."""
    text = (Path(course.__file__).parents[1] / "course.py").read_text(encoding="utf-8")
    before, _ = text.split("from tools.course import main")
    assert 'f"' not in before and ":=" not in before and "sys.version_info < (3, 10)" in before
    said = before.replace("sys.version_info < (3, 10)", "sys.version_info > (3, 0)")
    with pytest.raises(SystemExit, match=r"Python 3\.10 or later is needed, this is 3\."):
        exec(compile(said, "course.py", "exec"), {})


def test_the_site_is_built_with_what_is_passed_on(ran):
    assert course.command_site(PYTHON, ["elsewhere", "--strict"]) == 0
    assert ran == [("-m", "tools.site", "elsewhere", "--strict")]


def test_an_edition_in_another_language_is_made_of_what_is_passed_on(ran):
    assert course.command_translate(PYTHON, ["zh", "notebooks/00_out_of_memory.ipynb"]) == 0
    assert ran == [("-m", "tools.translation", "build", "zh", "notebooks/00_out_of_memory.ipynb")]


def test_translate_wants_a_language_and_lists_them():
    with pytest.raises(SystemExit, match="translate wants a language: zh_CN"):
        course.check("translate", [])
