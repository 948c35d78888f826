"""The command `simgpu`: parses its arguments, and reports what is wrong with them in one line."""

import argparse
import contextlib
import difflib
import re
import sys
from dataclasses import replace
from pathlib import Path

import simgpu
from simgpu.gpus.specs import SPECS
from simgpu.stub.engine import EngineError

FIT = (
    "whether a model's training fits on a GPU: a config.json of transformers, or a name of timm, torchvision or the Hub"
)
INTERRUPTED = 130
"""Exit status after Ctrl-C, which shells set to 128 plus SIGINT's number."""

STATUS = "Exit status: 0 it fits, 1 it does not fit, 2 it failed for another reason, 3 undecided, 130 after Ctrl-C."

SERVER = ("weights", "requests", "block_size", "utilization", "prefill_chunk", "kv_dtype")

OF_SIMGPU = {"--gpu", "--memory", "--values", "--backward-passes", "--ranks"}
"""Options that programs rarely have themselves: after a program's name they are probably meant for simgpu."""

TRAIN = "adamw, adamw-fused, adamw-8bit, adam, sgd, sgd-momentum, adafactor, muon, or none, which is --serve"

REPORT = "show the report of an earlier run again, as text, as JSON, or as an HTML file"
JSON = "print one JSON document (docs/report_json.md) and nothing else; what a script prints goes to standard error"
DIFF = "two snapshots, or two runs' folders: what has grown at the peak, by line"
ENGINE = "the stub engine, PyTorch's own CUDA build on a machine without a GPU: fetch it, or show its status"
EXPLAIN = "what this project has for one operator of PyTorch: rules, checks, shapes, costs, with file and line"
PATCHES = (
    "the attributes that a simulated GPU replaces while it is on: whether this torch has each, and where it is done"
)
RUN = "run a script, unmodified, on a simulated GPU, and say on one page what it takes"


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 it fits, 1 it does not fit, 2 it failed, 3 undecided."""
    options = _parser().parse_args(argv)
    options.given = sys.argv[1:] if argv is None else list(argv)
    options.own_process = argv is None
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print(f"simgpu {options.name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, EngineError) as error:
        print(f"simgpu {options.name}: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, with the nearest known word."""

    def error(self, message: str):
        found = re.search(r"invalid choice: '([^']+)' \(choose from (.*)\)|unrecognized arguments: (--[\w-]+)", message)
        known = [one.strip("' ") for one in (found[2] or "").split(",")] if found else []
        known = self.options() if found and found[3] else known
        near = difflib.get_close_matches(found[1] or found[3], known, n=1) if found else []
        guess = f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: {message}{guess} ({self.prog} --help lists what there is)\n")

    def options(self) -> list[str]:
        """Returns the long options of this parser and of its commands."""
        found = [one for one in self._option_string_actions if one.startswith("--")]
        for action in self._subparsers._group_actions if self._subparsers else ():
            for parser in dict(action.choices or {}).values():  # pyright: ignore
                found += parser.options()
        return found


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="simgpu", description="PyTorch's CUDA memory, to the byte, without a GPU.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"simgpu {simgpu.__version__}")
    epilog = f"GPUs: {', '.join(SPECS)}. For any other GPU, give the most similar one and --memory. {STATUS}"
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    _run(commands.add_parser("run", help=RUN, description=RUN, epilog=epilog, allow_abbrev=False))
    _fit(commands.add_parser("fit", help=FIT, description=FIT, epilog=epilog, allow_abbrev=False))
    _diff(commands.add_parser("diff", help=DIFF, description=DIFF, allow_abbrev=False))
    _report(commands.add_parser("report", help=REPORT, description=REPORT, allow_abbrev=False))
    _engine(commands.add_parser("engine", help=ENGINE, description=ENGINE, allow_abbrev=False))
    _explain(commands.add_parser("explain", help=EXPLAIN, description=EXPLAIN, allow_abbrev=False))
    _patches(commands.add_parser("patches", help=PATCHES, description=PATCHES, allow_abbrev=False))
    return parser


def _engine(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    install = actions.add_parser("install", help="find or fetch a CUDA build of PyTorch, and compile its libraries")
    install.add_argument("--torch", metavar="VERSION", help="which version (default: the installed one, or 2.13.0)")
    install.set_defaults(command=_install_engine)
    status = actions.add_parser("status", help="show the installed parts, their PyTorch versions, and what is missing")
    status.set_defaults(command=_engine_status)
    kernel = actions.add_parser("kernel", help="install a Jupyter kernel that runs notebooks on it")
    kernel.add_argument("--gpu", default="A100-80GB", metavar="NAME", help="which GPU (default: A100-80GB)")
    kernel.add_argument("--torch", metavar="VERSION", help="which version, of those that are installed")
    kernel.set_defaults(command=_install_kernel)


def _install_kernel(options) -> int:
    from simgpu.stub.kernel import install

    print(install(options.gpu, options.torch))
    return 0


def _install_engine(options) -> int:
    from simgpu.stub.install import install

    install(options.torch)
    return 0


def _engine_status(options) -> int:
    from simgpu.stub.install import status

    print(status())
    return 0


def _add_world(parser: argparse.ArgumentParser, ranks: str) -> None:
    add = parser.add_argument
    add("--ranks", type=int, metavar="N", help=ranks)
    add("--rank", type=int, metavar="R", help="which one (default: 0)")
    add("--per-node", type=int, metavar="N", help="GPUs of a machine (default: 8, or 1 for a launcher)")
    add("--link", type=_link, metavar="LINK", help="between them: nvlink, pcie, infiniband, or bytes a second")


def _link(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _chunks(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _world(options) -> dict:
    return {name: getattr(options, name) for name in ("ranks", "rank", "per_node", "link")}


def _fit(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a config.json or its folder, a name of timm or torchvision, or one in the local Hub cache")
    add("--gpu", metavar="NAME", help="which GPU, of those below (default: A100-80GB, and H100 for fp8)")
    add("--memory", metavar="SIZE", help="another capacity, with its unit: 12GiB, 500MiB, 16GB")
    add("--train", default="adamw", metavar="OPTIMIZER", help=f"{TRAIN} (default: adamw)")
    add("--serve", action="store_true", help="inference: a prompt of the whole length, and one token more")
    help_of_dtype = "of the weights: fp32, bf16, fp16 (default: the model's own); fp8: bf16 weights and matmuls in fp8"
    add("--dtype", metavar="TYPE", help=help_of_dtype)
    add("--autocast", metavar="TYPE", help="around the forward pass")
    add("--batch", type=int, default=1, metavar="N")
    add("--length", type=int, metavar="N", help="tokens")
    add("--accumulate", type=int, default=1, metavar="N", help="batches a step")
    add("--lora", type=int, metavar="RANK", help="frozen weights, and adapters on every linear layer")
    add("--qlora", type=int, metavar="RANK", help="the same with weights of 4 bits, by formula")
    add("--checkpoint", nargs="?", const=True, default=False, choices=["half"], help="each layer, or half of them")
    add("--offload", action="store_true", help="activations wait on the host")
    add("--attention", choices=["eager", "sdpa"])
    chunks = "the logits and the loss of a few tokens at a time, as Liger's kernel does: in N chunks, or as many as it"
    add("--chunked-loss", nargs="?", const="auto", type=_chunks, metavar="N", help=chunks)
    add("--dpo", action="store_true", help="pairs of sequences, and a frozen reference (with LoRA the model itself)")
    add("--weights", metavar="TYPE", help="with --serve: int8, int4 or fp8 in all linear layers except the head")
    _add_server(parser)
    _add_world(parser, "one rank of N GPUs that train it together; with --requests: GPUs that share a server's model")
    add("--parallel", choices=["fsdp", "ddp"], help="with --ranks: FSDP2 (default) or DDP")
    add("--context-parallel", type=int, metavar="N", help="N ranks share a sequence, of which each computes length / N")
    add("--expert-parallel", type=int, metavar="N", help="N ranks share the experts of each layer")
    add("--imbalance", type=float, metavar="X", help="times the even share of tokens for this rank's experts (1)")
    add("--rotate", choices=["allgather", "alltoall"], help="how its attention brings keys and values (allgather)")
    add("--engine", choices=["meta", "stub"], help="what runs it (default: meta, and stub with --compile)")
    add("--compile", action="store_true", help="with torch.compile, on the stub engine")
    add("--largest", choices=["batch", "length"], help="the largest that fits")
    add("--every-gpu", action="store_true", help="on which GPUs it fits, the smallest first")
    add("--table", action="store_true", help="GPUs by batch sizes, in Markdown")
    add("--techniques", action="store_true", help="what each way of saving memory does")
    add("--budget", metavar="SIZE", help="a fast combination of them that fits into this capacity")
    add("--out", metavar="FOLDER", help="the answer's page and report, as text, HTML and JSON, go there")
    add("--json", action="store_true", help=JSON)
    parser.set_defaults(command=_fit_it)


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--requests", type=int, metavar="N", help="with --serve: a server's paged KV cache for N requests of --length")
    add("--block-size", type=int, metavar="N", help="with --requests: tokens of a KV block (default: 16)")
    add("--utilization", type=float, metavar="X", help="with --requests: the share of the GPU it uses (default: 0.9)")
    add("--prefill-chunk", type=int, metavar="N", help="with --requests: tokens it prefills at once (default: 2048)")
    add("--kv-dtype", metavar="TYPE", help="with --requests: of the KV cache, such as fp8 (default: the model's own)")


def _fit_it(options) -> int:
    from simgpu.fitting.fit import fit
    from simgpu.fitting.progress import Progress
    from simgpu.fitting.show import Shown
    from simgpu.report import folder, provenance, stored

    plan = {name: getattr(options, name) for name in ("dtype", "autocast", "accumulate", "checkpoint", "offload")}
    plan |= {"chunked_loss": options.chunked_loss, "dpo": options.dpo}
    plan |= {
        "attention": options.attention,
        "lora": options.qlora or options.lora,
        "four_bit": options.qlora is not None,
    }
    plan |= {name: getattr(options, name) for name in SERVER}
    plan |= _world(options) | {"parallel": options.parallel, "compile": options.compile}
    plan |= {name: getattr(options, name) for name in ("context_parallel", "rotate", "expert_parallel", "imbalance")}
    plan["ranks"] = options.ranks or options.context_parallel or options.expert_parallel
    plan["engine"] = options.engine or ("stub" if options.compile else "meta")
    if plan["engine"] == "stub" and (options.techniques or options.budget):
        raise ValueError("--techniques and --budget compare memory with time, which only the meta engine does")
    if options.length is not None:
        plan["length"] = options.length
    train = None if options.serve or options.train == "none" else options.train
    out = None if options.out is None else folder.prepare(Path(options.out))
    progress, shown = Progress(), Shown(options)

    def first():
        progress.stage("reads the configuration")
        gpu = options.gpu or ("H100" if "fp8" in (options.dtype, options.weights) else "A100-80GB")
        return fit(options.model, options.batch, train, gpu=gpu, memory=options.memory, tell=progress, **plan)

    try:
        shown.make(first)
    except KeyboardInterrupt:
        progress.clear()
        print(shown.so_far().rstrip(), file=sys.stderr if options.json else sys.stdout)
        return INTERRUPTED
    finally:
        progress.clear()
    assert shown.report is not None
    report, text = replace(shown.report, command=provenance.command(["simgpu", *options.given])), shown.text
    if out is not None:
        report = folder.described(out, report)
        text += "\n" + "\n".join(report.written) + "\n"
    print(stored.written(report.document()) if options.json else text, end="")
    return shown.status


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", help="a snapshot of PyTorch's (.pickle), a run's folder, or its report.json")
    parser.add_argument("after", help="the second one; the exit status is 1 if its peak is higher")
    parser.add_argument("--out", metavar="FOLDER", help="the difference, as text, HTML and JSON, goes there")
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.set_defaults(command=_diff_it)


def _diff_it(options) -> int:
    from simgpu.report import diff_html, folder, stored
    from simgpu.report.compare import Difference

    found = Difference.of(options.before, options.after)
    text = str(found)
    if options.out is not None:
        out = folder.prepare(Path(options.out))
        folder.write_texts(out, found.document(), text, diff_html.document(found))
        text += f"\n{out / folder.HTML}: this page with timelines, to open in a browser\n"
    print(stored.written(found.document()) if options.json else text, end="")
    return 1 if found.grown > 0 else 0


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="of simgpu run --out or simgpu fit --out, or its report.json")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print the report as JSON")
    how.add_argument("--html", nargs="?", const="", metavar="FILE", help="write it as HTML (default: into the folder)")
    parser.set_defaults(command=_report_it)


def _report_it(options) -> int:
    from simgpu.report import folder, html, stored
    from simgpu.report.report import Report

    place = Path(options.folder)
    if not place.exists():
        raise ValueError(f"no file and no folder {options.folder!r}")
    place = place / folder.REPORT if place.is_dir() else place
    if not place.exists():
        raise ValueError(f"the folder {options.folder!r} holds no {folder.REPORT}: simgpu run --out writes one")
    report = Report.load(place)
    if options.html is not None:
        path = Path(options.html) if options.html else place.parent / folder.HTML
        html.save(html.document(report), path)
        print(f"{path}: the report with a timeline, to open in a browser")
    else:
        print(stored.written(report.document()) if options.json else report, end="")
    return report.status


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operator", nargs="?", metavar="OPERATOR", help="aten::sort, aten::sort.stable, or sort")
    parser.add_argument("--all", action="store_true", help="every operator, without lines and descriptions")
    parser.set_defaults(command=_explain_it)


def _explain_it(options) -> int:
    if options.all == (options.operator is not None):
        raise ValueError("wanted an operator, as in simgpu explain aten::sort, or --all")
    from simgpu.explain import everything, explained

    print(everything() if options.all else explained(options.operator), end="")
    return 0


def _patches(parser: argparse.ArgumentParser) -> None:
    missing = "only those that no build of the installed torch has; the exit status is 1 if there are any"
    parser.add_argument("--missing", action="store_true", help=missing)
    parser.set_defaults(command=_patches_it)


def _patches_it(options) -> int:
    from simgpu import used_names

    gone = used_names.gone() if options.missing else {}
    for name, where in gone.items():
        print(f"torch lacks {name}, which is used at {where}")
    try:
        from simgpu.patch_manifest import Manifest
    except (AttributeError, ImportError) as error:
        print(f"simgpu cannot be imported with this torch: {error}")
        return 1
    manifest = Manifest.of_entering()
    print(manifest.drift() if options.missing else manifest, end="")
    return 1 if gone or manifest.error or (options.missing and manifest.gone()) else 0


def _run(parser: argparse.ArgumentParser) -> None:
    parser.usage = "simgpu run [--gpu NAME] [options] (script.py | -m module) [its own arguments]"
    parser.add_argument(
        "--gpu", default="A100-80GB", metavar="NAME", help="which GPU, of those below (default: A100-80GB)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="another capacity, with its unit: 12GiB, 500MiB, 16GB")
    _add_world(parser, "the script is one rank of N, as torchrun starts it")
    parser.add_argument("--engine", metavar="NAME", help="stub, meta, or auto (default; see docs/engines.md)")
    parser.add_argument("--torch", metavar="VERSION", help="of the stub engine: simgpu engine status lists them")
    parser.add_argument("--steps", type=int, metavar="N", help="end when each optimizer has made N steps")
    parser.add_argument(
        "--backward-passes",
        type=int,
        metavar="N",
        help="end after N backward passes: for a script without an optimizer",
    )
    parser.add_argument("--values", action="store_true", help="tensors have values, computed on the CPU")
    parser.add_argument("--out", metavar="FOLDER", help="pages, report, timeline and snapshot go there")
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="as python -m takes it")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its own arguments")
    parser.set_defaults(command=_run_it)


def _run_it(options) -> int:
    from simgpu.report import stored
    from simgpu.running.printing import nothing_more, on_stderr
    from simgpu.running.run import run

    module: str | None = None
    rest: list[str] = options.script
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if options.module is not None:
        module, rest = (options.module or [None])[0], options.module[1:]
    if options.module == []:
        raise ValueError("wanted a module after -m: simgpu run --gpu H100 -m package.train --its --own --flags")
    if module is None and not rest:
        raise ValueError("wanted a script: simgpu run --gpu H100 train.py --its --own --flags")
    program = None if module is not None else rest.pop(0)
    for own in OF_SIMGPU & set(rest):
        what = f"{own} comes after {module or program}, so it is an argument of that program"
        print(f"simgpu run: {what}; options of simgpu come before it", file=sys.stderr)
    with on_stderr() if options.json else contextlib.nullcontext():
        report = run(
            program,
            rest,
            gpu=options.gpu,
            module=module,
            values=options.values,
            steps=options.steps,
            backward_passes=options.backward_passes,
            memory=options.memory,
            out=options.out,
            engine=options.engine,
            torch_version=options.torch,
            **_world(options),
        )
    sys.stdout.flush()
    if options.json:
        print(stored.written(report.document()), end="", flush=True)
        if options.own_process:
            nothing_more()
    else:
        print(f"\n{'─' * 100}\n{report}", end="", flush=True)
    return INTERRUPTED if report.interrupted else report.status
