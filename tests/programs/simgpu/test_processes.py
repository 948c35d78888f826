"""Processes that a program starts: each is simulated and has a report, and what is not simulated is named."""

import os
import subprocess
import sys
import textwrap

import pytest

import simgpu
from simgpu.command import main
from simgpu.report.report import Report
from simgpu.running import processes
from simgpu.running.startup import _simgpu_startup as startup

MIB = 2**20

TRAIN = """
    import importlib.util, sys
    assert importlib.util.find_spec("torch") is not None
    import torch
    net = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(3):
        net(torch.randn(64, 512).cuda()).sum().backward()
        optimizer.step()
    if sys.argv[1:] == ["too much"]:
        torch.empty(2**40, device="cuda")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a script into a folder of its own, which is the current one, and gives its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="program.py"):
        (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return str(tmp_path / name)

    return write


def figures(report) -> tuple:
    return report.peak, report.reserved, report.nvidia_smi, report.steps


def test_a_started_script_has_the_peak_of_the_plain_one(script):
    """Through a shell's script, and with an environment that the program made itself; --steps counts in each."""
    plain = simgpu.run(script(TRAIN, "train.py"), gpu="H100", steps=2)
    script(f"#!/bin/sh\n{sys.executable} train.py\n", "run.sh")
    report = simgpu.run(
        script("""
        import os, subprocess, sys
        assert os.system("sh run.sh") == 0
        subprocess.run([sys.executable, "train.py"], env={"HOME": os.environ.get("HOME", "")}, check=True)
        subprocess.run([sys.executable, "-I", "-c", "print(1)"], check=True)
        subprocess.run("true")
        """),
        gpu="H100",
        steps=2,
    )
    assert report.peak == 0 and plain.steps == 2
    assert [(one.what, *figures(one)) for one in report.processes] == [("train.py", *figures(plain))] * 2
    assert (report.fits, report.status) == (True, 0)
    isolated, others = report.started
    assert "-I -c 'print(1)' does not read PYTHONPATH (-I, -E, -S): no GPU was simulated there" in isolated
    assert others == "not simulated, because they are not Python: true"
    assert str(report).startswith("program.py fits on a simulated H100, with ")
    assert "\n2 processes used the GPU. The most is " in str(report)
    assert "Its memory is that of train.py." in str(report)


def test_a_process_that_runs_out_of_memory_is_the_verdict(script, tmp_path, capfd):
    script(TRAIN, "train.py")
    path = script("""
        import subprocess, sys
        subprocess.run([sys.executable, "train.py", "too much"])
        """)
    assert main(["run", "--out", str(tmp_path / "out"), path]) == 1
    shown = capfd.readouterr().err
    assert "CUDA out of memory" in shown and "simgpu" not in shown.replace("simgpu-", "")  # no frames of its own
    report = Report.load(tmp_path / "out" / "report.json")
    [one] = report.processes
    assert (one.outcome, report.outcome, report.peak) == ("does not fit", "does not fit", 0)
    page = (tmp_path / "out" / "page.txt").read_text(encoding="utf-8")
    assert "program.py does not fit on a simulated A100-80GB: train.py ran out of memory.\n" in page
    assert "\nFindings\n" in page and page == str(report)


def test_a_process_that_only_asks_for_the_gpu_does_not_change_the_verdict(script):
    """It has a CUDA context and allocates nothing; where it is the only one, no GPU memory was used."""
    asks = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch; torch.cuda.synchronize()'])\n"
    used = simgpu.run(script(f"{asks}import torch\nx = torch.ones(8, device='cuda')"), gpu="T4")
    assert len(used.processes) == 1 and (used.outcome, used.status) == ("fits", 0)
    alone = simgpu.run(script(asks), gpu="T4")
    assert len(alone.processes) == 1 and (alone.outcome, alone.status) == ("undecided", 3)
    assert "no GPU memory was used" in str(alone)


def test_torchrun_starts_ranks_that_meet(script, capfd):
    """What is in files, objects and barriers is real; each rank has the peak of that rank alone."""
    path = script(
        """
        import os, torch
        import torch.distributed as dist
        dist.init_process_group("nccl")
        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        assert (torch.cuda.device_count(), str(torch.ones(1, device="cuda").device)) == (2, f"cuda:{rank}")
        if rank == 0:
            open("made.txt", "w").close()
        dist.barrier()
        open("made.txt").close()
        given = ["of rank 0"] if rank == 0 else [None]
        dist.broadcast_object_list(given, 0)
        found = [None, None]
        dist.all_gather_object(found, 10 * rank)
        part = [None]
        dist.scatter_object_list(part, ["a", "b"] if rank == 0 else None, 0)
        if rank == 0:
            dist.send_object_list([{"sent": 1}], 1)
        else:
            got = [None]
            dist.recv_object_list(got, 0)
            assert got == [{"sent": 1}]
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[rank])
        net(torch.ones(64, 512, device="cuda")).sum().backward()
        print(given, found, part, flush=True)
        dist.destroy_process_group()
        """,
        "train.py",
    )
    report = simgpu.run(None, ["--nproc-per-node", "2", path], module="torch.distributed.run", gpu="H100")
    assert [one.rank for one in report.processes] == [(0, 2), (1, 2)], capfd.readouterr().err
    assert sorted(capfd.readouterr().out.split("\n"))[1:] == [
        "['of rank 0'] [0, 10] ['a']",
        "['of rank 0'] [0, 10] ['b']",
    ]
    assert report.fits and report.started == ()
    assert {one.peak for one in report.processes} == {report.processes[0].peak}


FORKS = """
    import multiprocessing as mp
    import os, torch
    from torch.utils.data import DataLoader, TensorDataset

    def work(mib):
        torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")

    def after(queue):
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            queue.put(str(error))

    if __name__ == "__main__":
        context = mp.get_context("fork")
        with context.Pool(1) as pool:
            pool.map(work, [3])
            pool.close()
            pool.join()
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        else:
            work(5)
            os._exit(0)
        for [batch] in DataLoader(TensorDataset(torch.ones(4, 2)), num_workers=1):
            pass
        kept = torch.ones(1, device="cuda")
        queue = context.SimpleQueue()
        process = context.Process(target=after, args=(queue,))
        process.start()
        print(queue.get(), process.join())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forks_have_the_gpu_until_their_parent_has_used_it(script, capsys):
    report = simgpu.run(script(FORKS))
    assert [one.peak for one in report.processes] == [3 * MIB, 5 * MIB]
    assert report.peak == 512
    assert "Cannot re-initialize CUDA in forked subprocess" in capsys.readouterr().out


def test_a_fork_that_a_signal_ends_reports_if_it_has_used_the_gpu(script, capsys):
    """Before it has, the signal ends it as on a machine without a simulated GPU: Python would not see it in a call
    that blocks."""
    report = simgpu.run(
        script("""
        import os, signal, time, torch
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        def default():
            return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        for used in (False, True):
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                before = default()
                if used:
                    kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
                os.write(write, f"{before} {default()}".encode())
                time.sleep(600)
                os._exit(1)
            print(os.read(read, 100).decode())
            os.kill(pid, signal.SIGTERM)
            print(os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM)
        """)
    )
    assert capsys.readouterr().out.splitlines() == ["True True", "True", "True False", "True"]
    [process] = report.processes
    assert (process.peak, process.ended) == (MIB, "Another process ended it (SIGTERM).")


def test_a_fork_of_a_process_that_has_read_the_settings_reports_too(script):
    report = simgpu.run(
        script("""
        import os, signal, time, torch
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.cuda.memory._record_memory_history()
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
            os.write(write, b".")
            time.sleep(600)
            os._exit(1)
        os.read(read, 1)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        """)
    )
    assert [(one.peak, one.ended) for one in report.processes] == [(MIB, "Another process ended it (SIGTERM).")]


def test_spawned_processes_are_the_ranks_that_they_say(script):
    report = simgpu.run(
        script("""
        import os, torch
        import torch.distributed as dist
        def main(rank, ranks):
            os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl", init_method=f"file://{os.getcwd()}/met", rank=rank, world_size=ranks)
            x = torch.ones(2**18, device=rank)
            dist.all_reduce(x)
        if __name__ == "__main__":
            torch.multiprocessing.spawn(main, (2,), nprocs=2)
        """)
    )
    assert [(one.rank, one.peak) for one in report.processes] == [((0, 2), MIB), ((1, 2), MIB)]
    assert report.started == ()  # each was on a GPU of its own


def test_exec_and_exit_end_the_program_and_not_the_run(script, capfd):
    report = simgpu.run(script("import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(7)'])"))
    assert (report.completed, capfd.readouterr().out) == (True, "7\n")
    report = simgpu.run(script("import os, torch\nx = torch.ones(1, device='cuda')\nos._exit(3)"))
    assert (report.peak, report.outcome, report.ended) == (512, "failed", "it ended with status 3")


def test_the_environment_is_left_as_it_was(script, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/path")
    before, popen, system = dict(os.environ), subprocess.Popen.__init__, os.system
    simgpu.run(script("import os\nassert os.environ['PYTHONPATH'].endswith(os.pathsep + '/some/path')"))
    assert dict(os.environ) == before
    assert (subprocess.Popen.__init__, os.system) == (popen, system)


def test_a_process_without_torch_imports_nothing_of_ours(script, tmp_path):
    """And the environment's own sitecustomize runs as ever."""
    script("import os\nos.environ['OWN'] = 'ran'", "sitecustomize.py")
    with processes.Processes({"gpu": "T4", "memory": None, "ranks": None, "per_node": None}) as others:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])}
        code = "import os, sys; print(os.environ['OWN'], [x for x in sys.modules if x.startswith('simgpu')], sys.path)"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        [record] = others.collect().records["python"]
    assert done.stdout.startswith("ran [] ")
    assert startup.FOLDER not in done.stdout
    assert record["command"][1:] == ["-c", code] and os.getpid() in record["ancestors"]


def test_started_processes_change_no_files_of_the_users(script, tmp_path):
    """Neither one that imports no torch, nor one with an environment of its own that saves a checkpoint."""
    script("import os, pathlib\nos.remove('old.txt')\npathlib.Path('log.txt').write_text('new')\n", "tidy.py")
    script("import torch\ntorch.save(torch.ones(9, device='cuda'), 'model.pt')\n", "save.py")
    users = {"old.txt": "old", "log.txt": "log", "model.pt": "model"}
    for name, text in users.items():
        (tmp_path / name).write_text(text)
    report = simgpu.run(
        script("""
        import os, subprocess, sys
        subprocess.run([sys.executable, "tidy.py"], check=True)
        assert not os.path.exists("old.txt") and open("log.txt").read() == "new"
        subprocess.run([sys.executable, "save.py"], env={"HOME": os.environ.get("HOME", "")}, check=True)
        """),
        gpu="H100",
    )
    assert report.completed, report
    assert {name: (tmp_path / name).read_text() for name in users} == users
    assert {os.path.basename(one.path) for one in report.files} == set(users)


@pytest.mark.skipif(os.name != "posix", reason="the program nvidia-smi is a shell script")
def test_nvidia_smi_describes_the_simulated_gpu(script):
    before = os.environ["PATH"]
    report = simgpu.run(
        script("""
        import os, shutil, subprocess, sys, torch
        def ask(*arguments, **options):
            command = ["nvidia-smi", *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout.strip()
        query = "--query-gpu=name,memory.total,memory.used,compute_cap", "--format=csv,noheader,nounits"
        assert ask(*query) == "Tesla T4, 4096, 0, 7.5", ask(*query)
        kept = torch.empty(2**28, device="cuda")
        used = torch.cuda.device_memory_used() // 2**20
        assert used > 1024 and ask(*query) == f"Tesla T4, 4096, {used}, 7.5", (used, ask(*query))
        assert ask("-L", env={}).startswith("GPU 0: Tesla T4 (UUID: GPU-")
        assert shutil.which("nvidia-smi") and os.popen("nvidia-smi").read().count("Tesla T4") == 1
        child = "import subprocess; print(subprocess.check_output(['nvidia-smi', '-L'], text=True))"
        assert "Tesla T4" in subprocess.check_output([sys.executable, "-c", child], text=True)
        """),
        gpu="T4",
        memory="4 GiB",
    )
    assert report.outcome == "fits", report
    assert os.environ["PATH"] == before


@pytest.mark.skipif(os.name != "posix", reason="the program nvidia-smi is a shell script")
def test_nvidia_smi_shows_as_many_gpus_as_pytorch_sees(script):
    report = simgpu.run(
        script("""
        import subprocess, torch
        assert subprocess.check_output(["nvidia-smi", "-L"]).count(b"GPU-") == torch.cuda.device_count() == 4
        torch.ones(1).cuda()
        """),
        gpu="T4",
        ranks=4,
        rank=1,
    )
    assert report.outcome == "fits", report
