"""The stages of gpu_run: the work of each on the device, and its report."""

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Shape of LLaMA 3.2 1B; a folder with this alone is a random model.
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False}  # fmt: skip
METRICS = ("sm__warps_active.avg.pct_of_peak_sustained_active",
           "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "launch__registers_per_thread", "gpu__time_duration.sum")
# A device in software (--small): axes end here, and have two values at most; these tests alone, since
# scripts/test_device has run them all.
SMALL_AXES = {"seq": 64, "seq_q": 64, "seq_kv": 96, "kv_len_min": 40, "heads": 2, "kv_heads": 1, "head_dim": 128,
              "tokens": 4, "hidden": 256, "intermediate": 256, "vocab": 512}  # fmt: skip
SMALL_TESTS = ("memory.transfer", "ops.rmsnorm", "ops.softmax", "ops.swiglu")


@dataclass(frozen=True)
class Stage:
    """A part of the work: its share of the time in seconds, and the fewest that are worth beginning with."""

    name: str
    share_s: float
    least_s: float


class Failed(Exception):
    """A part of a stage went wrong; the text says what."""


class LeftOut(Exception):
    """The machine lacks what a stage needs; the text says what."""


class OutOfTime(Exception):
    """A stage came to the end of its seconds."""


def die(message):
    print(f"katt: {message}", file=sys.stderr)
    sys.exit(2)


def furthest_rows(rows, count=3):
    """The rows, dictionaries, that are furthest from their ceilings: measured ones of our own variants, no two of one
    operator, pass and variant."""
    ours = [row for row in rows if row["status"] == "ok" and row["ceiling_fraction"] == row["ceiling_fraction"]
            and row["variant"] != "naive" and not row["variant"].startswith(("torch", "triton"))]  # fmt: skip
    chosen, kinds = [], set()
    for row in sorted(ours, key=lambda row: row["ceiling_fraction"]):
        kind = (row["op"], row["pass"], row["variant"])
        if kind not in kinds and len(chosen) < count:
            chosen.append(row)
            kinds.add(kind)
    return chosen


def sweep_arguments(row, axes):
    """The command line of `katt sweep` that runs a row again, once; `axes`: those of its operator."""
    arguments = [row["op"], "--variant", row["variant"], "--rounds", "1", "--budget-s", "0"]
    if row.get("tile_q"):
        arguments += ["--tile-q", str(row["tile_q"]), "--tile-kv", str(row["tile_kv"])]
    for axis in axes:
        if axis in row and axis != "threads":
            arguments += ["--" + axis.replace("_", "-"), str(row[axis])]
    return arguments


class Run:
    """The state that all stages share: the options, the programs, the clock and the results of
    former calls."""

    def __init__(self, options):
        self.options = options
        self.out = pathlib.Path(options.output).resolve()
        self.file = self.out / "gpu_run.json"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self.state = json.loads(self.file.read_text()) if self.file.exists() else {"stages": {}}
        except OSError as error:
            die(f"-o {options.output}: {error.strerror}, expected a folder to write to")
        except ValueError as error:
            die(f"{self.file}: no JSON ({error})")
        # Folder of what nobody needs later: the unpacked bundle, the model.
        self.work = ROOT / "build" / "gpu_first" if options.first else self.out
        self.work.mkdir(parents=True, exist_ok=True)
        self.deadline = math.inf
        self.log = None
        self.peer = self.write_peer()
        self.program = self.find_program()

    def find_program(self):
        if self.options.program:
            program = pathlib.Path(self.options.program).resolve()
            self.begin(str(program))
        else:
            bundle = pathlib.Path(self.options.bundle)
            if not bundle.is_file():
                die(f"{bundle} is missing: scripts/build cuda --bundle makes it")
            digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
            self.begin(digest)
            program = self.work / "katt-bundle" / "katt"
            unpacked = program.with_name("sha256")
            if not unpacked.exists() or unpacked.read_text() != digest:
                shutil.rmtree(program.parent, ignore_errors=True)
                with tarfile.open(bundle) as archive:
                    archive.extractall(self.work)
                unpacked.write_text(digest)
        if not os.access(program, os.X_OK) or program.is_dir():
            die(f"{program} is no program")
        return program

    def begin(self, program):
        """Refuses to go on with what another program or other options have done: it would not be run again."""
        now = {"bundle or program": program, "--backend": self.options.backend, "--small": self.options.small}
        held = self.state.setdefault("begun_with", now)
        for name in now:
            if held.get(name) != now[name]:
                die(f"-o {self.options.output}: was begun with another {name}, expected the same or a new folder")

    def write_peer(self):
        """A program for --peer-program, where Python has PyTorch. One process imports PyTorch for all peers, beside
        the first stage (drivers/peers/katt_peers/prefork.py); it ends with this one."""
        if not has("torch") or not has("numpy"):
            return None
        path, line = self.work / "peers", pathlib.Path(tempfile.mkdtemp()) / "line"
        path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}/drivers/peers${{PYTHONPATH:+:$PYTHONPATH}}" '
                        f'exec "{sys.executable}" -m katt_peers "$@"\n')  # fmt: skip
        path.chmod(0o755)
        self.prefork = subprocess.Popen([path, "--prefork", line], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        through = path.with_name("peers_through")
        through.write_text(f'#!/bin/sh\nexec "{path}" --through "{line}" "$@"\n')
        through.chmod(0o755)
        return through

    def say(self, text):
        print(text, flush=True)
        if self.log:
            self.log.write(text + "\n")
            self.log.flush()

    def left_s(self):
        return self.deadline - time.monotonic()

    def on_device(self):
        arguments = ["--backend", self.options.backend]
        if self.options.device is not None:
            arguments += ["--device", str(self.options.device)]
        return arguments

    def run(self, command, what=None, good=(0,)):
        """Runs a command, its output in the stage's log, until the stage's time ends; returns what it said. Raises
        OutOfTime, and Failed for an exit status that is not `good`."""
        command = [str(part) for part in command]
        if self.left_s() < 1:
            raise OutOfTime
        self.log.write("$ " + " ".join(command) + "\n")
        self.log.flush()
        begin = self.log.tell()
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.log,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            process.wait(max(1, self.left_s()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            stop(process)
            if isinstance(error, KeyboardInterrupt):
                raise
            raise OutOfTime from error
        with open(self.log.name, errors="replace") as log:
            log.seek(begin)
            said = log.read()
        self.log.seek(0, os.SEEK_END)
        if process.returncode not in good:
            raise Failed(f"{what or command[0]}: exit status {process.returncode}: {last_line(said)}")
        return said

    def part(self, name):
        """True when a former call has done a part of a stage; `done()` marks it as done."""
        return name in self.state.get("parts", [])

    def done(self, name):
        self.state.setdefault("parts", []).append(name)
        self.save()

    def save(self):
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1) + "\n")
        fresh.replace(self.file)


def stop(process, patience_s=10):
    """Ends a command and its children: by a request first, since a sweep then closes its file."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, number)
            process.wait(patience_s)
            return


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def has(module):
    return importlib.util.find_spec(module) is not None


def find_tool(name):
    """The path of one of CUDA's tools; raises LeftOut when it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        raise LeftOut(f"{name} is not installed")
    return found


def probe(run, prefix, limit_s=40):
    """Runs a short kernel under a tool; raises LeftOut when the tool does not work here, as under some hypervisors."""
    end = run.deadline
    run.deadline = min(end, time.monotonic() + limit_s)
    try:
        run.run([*prefix, run.program, "sweep", "softmax", *run.on_device(), "--variant", "naive", "--tokens", 4,
                 "--vocab", 64, "--rounds", 1, "--budget-s", 0, "--overwrite", "-o", run.work / "probe.h5"],
                prefix[0])  # fmt: skip
    except (Failed, OutOfTime) as error:
        if end - time.monotonic() < 1:
            raise OutOfTime from error
        raise LeftOut(f"{pathlib.Path(prefix[0]).name} does not work here: {error or 'it takes too long'}") from error
    finally:
        run.deadline = end


def small_sweep(text):
    """A sweep file with its axes cut to SMALL_AXES."""

    def cut(match):
        name, values = match[1], match[2]
        if name not in SMALL_AXES:
            return match[0]
        numbers = dict.fromkeys(min(int(value), SMALL_AXES[name]) for value in values.strip("[]").split(","))
        return f"{name} = {list(numbers)[:2]}"

    return re.sub(r"^(\w+) = (\[?-?\d[-\d, ]*\]?)$", cut, text, flags=re.MULTILINE)


def sweep(run, experiment, *arguments, prefix=(), name=None, file="sweep.toml"):
    """A sweep of experiments/, which continues where it was stopped. Failed rows are a failure."""
    file = ROOT / "experiments" / experiment / file
    if run.options.small:
        small = run.work / f"{experiment}_{file.name}"
        small.write_text(small_sweep(file.read_text()))
        file, arguments = small, ("--rounds", "1", "--budget-s", "0", *arguments)
    command = [*prefix, run.program, "sweep", os.path.relpath(file, ROOT), *run.on_device(), "--resume",
               "-o", run.out / f"{name or experiment}.h5", *arguments]  # fmt: skip
    if run.peer:
        command += ["--peer-program", run.peer]
    return last_line(run.run(command, f"katt sweep {experiment}"))


def stage_info(run):
    device = [] if run.options.device is None else ["--device", run.options.device]
    text = run.run([run.program, "info", "--measure", "--json", *device])
    (run.out / "info.json").write_text(text[text.index("{") :])
    return "info.json"


def tests_of(run):
    """(name, filter) of the tests of a device that the bundle holds."""
    table = run.program.parent / "tests.tsv"
    tests = [line.split("\t") for line in table.read_text().splitlines()] if table.is_file() else []
    return [test for test in tests if not run.options.small or test[0] in SMALL_TESTS]


def run_tests(run, stage, prefix=()):
    """Runs the tests that no former call has passed, one after the other; gives the output of each
    failed one."""
    run.run([run.program, "--prepare"], "the bundle")
    program = run.program.parent / "bin" / "test_device"
    failed = []
    for name, test_filter in tests_of(run):
        if run.part(f"{stage} {name}"):
            continue
        try:
            run.run([*prefix, program, "--gtest_brief=1", f"--gtest_filter={test_filter}"], name)
            run.done(f"{stage} {name}")
        except Failed as error:
            failed.append(str(error))
            run.say(f"FAILED: {error}")
    return failed


def stage_tests(run):
    count = len(tests_of(run))
    if count == 0:
        raise LeftOut("the bundle has no tests, or -p was given")
    if failed := run_tests(run, "tests"):
        raise Failed(f"{len(failed)} of {count} tests: " + "; ".join(failed)[:1000])
    return f"{count} tests passed"


def stage_sanitizer(run):
    """Each check has an equal share of what is left: the sweep first, every kernel once, then the tests."""
    tool = find_tool("compute-sanitizer")
    probe(run, [tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9"])
    checks = ("memcheck", "racecheck", "synccheck")
    failed, unfinished = [], []
    end = run.deadline
    for number, check in enumerate(checks):
        run.deadline = time.monotonic() + (end - time.monotonic()) / (len(checks) - number)
        prefix = [tool, "--tool", check, "--target-processes", "all", "--error-exitcode", "9"]
        try:
            if not run.part(f"sanitizer {check}"):
                sweep(run, "cuda_sanitizer", name=f"cuda_sanitizer_{check}", prefix=prefix)
                run.done(f"sanitizer {check}")
            if tests_of(run):
                failed += [f"{check}: {one}" for one in run_tests(run, f"sanitizer {check}", prefix)]
        except Failed as error:
            failed.append(f"{check}: {error}")
        except OutOfTime:
            unfinished.append(check)
    run.deadline = end
    if failed:
        raise Failed("; ".join(failed)[:1000])
    if unfinished:
        run.say("not all of it: " + ", ".join(unfinished))
        raise OutOfTime
    count = len(tests_of(run))
    return "memcheck, racecheck and synccheck found nothing, in " + (
        f"the sweep and {count} tests" if count else "the sweep; the bundle has no tests, or -p was given")


def operator_of(case):
    """The operator of a case file: its name begins with it, the dtype or "real" follows."""
    words = case.stem.split("_")
    ends = [i for i, word in enumerate(words) if word in ("f32", "f16", "bf16", "real")]
    name = "_".join(words[: ends[0]]) if ends and ends[0] > 0 else "attention"
    return {"ternary": "ternary_linear"}.get(name, name)


def stage_cases(run):
    folder = pathlib.Path(run.options.cases).resolve() if run.options.cases else ROOT / "tests" / "cases"
    results = run.out / "cases"
    results.mkdir(exist_ok=True)
    failed = []
    cases = sorted(folder.glob("*.h5"))
    for case in cases:
        try:
            files = ["--in", case, "--out", results / case.name, "--overwrite"]
            run.run([run.program, "run", operator_of(case), *files, *run.on_device()], case.stem)
            if has("h5py") and has("numpy"):
                run.run([sys.executable, folder / "check_case.py", case, results / case.name], f"check of {case.stem}")
        except Failed as error:
            failed.append(str(error))
            run.say(f"FAILED: {error}")
    if failed:
        raise Failed(f"{len(failed)} of {len(cases)} cases: " + "; ".join(failed)[:1000])
    judged = "right" if has("h5py") and has("numpy") else "ran, not judged: Python has no h5py"
    return f"{len(cases)} cases {judged}"


def stage_model(run):
    """Training and decoding write their logs as HDF5. A device in software gets the tiny model of the tests."""
    model = run.out / "model"
    if run.options.small:
        model, size = ROOT / "tests" / "cases" / "llama_tiny", ("--steps", 2, "--batch", 1, "--seq", 16)
    else:
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(MODEL))
        size = ("--steps", 12, "--batch", 4, "--seq", 2048)
    said = []
    for dtype in ("bf16",):
        common = ["--model", model, "--dtype", dtype, *run.on_device()]
        if not run.part(f"train {dtype}"):
            files = ["--text", ROOT / "docs" / "measuring.md", "--overwrite", "--log", run.out / f"train_{dtype}.h5"]
            text = run.run([run.program, "train", *common, "--profile", *files, *size, "--lr", "1e-4"], "katt train")
            said.append(last_line(text))
            run.done(f"train {dtype}")
        if not run.part(f"decode {dtype}"):
            count = 4 if run.options.small else 128
            prompt = ",".join(str(1 + i % 200) for i in range(8 if run.options.small else 1024))
            decode = [run.program, "generate", *common, "--tokens", prompt, "--max-new-tokens", count, "--overwrite", "--log"]
            # With a profile launches are submitted one by one.
            run.run([*decode, run.out / f"decode_{dtype}.h5"], "katt generate")
            run.run([*decode, run.out / f"decode_{dtype}_profile.h5", "--profile"], "katt generate --profile")
            run.done(f"decode {dtype}")
    return "; ".join(said) or "train and decode"


def stage_ranks(run):
    """A rank a GPU. mpirun must be of the MPI that the bundle was built with, Open MPI 4."""
    text = (run.out / "info.json").read_text() if (run.out / "info.json").is_file() else "{}"
    count = len(json.loads(text).get("devices", []))
    mpirun = shutil.which("mpirun")
    if count < 2:
        raise LeftOut("there are not several GPUs, or the stage info has not run")
    if mpirun is None:
        raise LeftOut("mpirun is not installed")
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    ranks = [mpirun, "--bind-to", "none", "-n", count, *as_root]
    tests = run.program.parent / "bin" / "test_device"
    if tests.is_file() and not run.part("ranks tests"):
        run.run([*ranks, tests, "--gtest_brief=1", "--gtest_filter=Communicator.*", "--transport", "NCCL"],
                "the communicator's tests")  # fmt: skip
        run.done("ranks tests")
    sweeps = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
    size = "4096" if run.options.small else "65536:268435456:x16"
    for op in sweeps:
        if not run.part(f"ranks {op}"):
            run.run([*ranks, run.program, "sweep", op, "--bytes", size, "--dtype", "f32,bf16", "--ranks", count,
                     "--backend", run.options.backend, "--resume", "-o", run.out / f"links_{op}.h5"], op)  # fmt: skip
            run.done(f"ranks {op}")
    return f"{count} ranks over NCCL"


def measured_rows(paths):
    import h5py

    rows = []
    for path in paths:
        if path.is_file():
            with h5py.File(path) as file:
                table = file["points"][:]
            for row in table:
                values = {name: row[name] for name in table.dtype.names}
                rows.append({name: v.decode() if isinstance(v, bytes) else v.item() for name, v in values.items()})
    return rows


def stage_ncu(run):
    tool = find_tool("ncu")
    if not has("h5py"):
        raise LeftOut("Python has no h5py, which tells the rows that are the furthest from their ceilings")
    axes = {op["name"]: [axis["name"] for axis in op["axes"]]
            for op in json.loads((run.out / "info.json").read_text())["operators"]}  # fmt: skip
    rows = furthest_rows(measured_rows([run.out / "cuda_attention.h5", run.out / "cuda_operators.h5"]))
    options = ["--clock-control", "none", "--csv", "--target-processes", "all", "--metrics", ",".join(METRICS)]
    probe(run, [tool, *options])
    for number, row in enumerate(rows, 1):
        name = f"ncu_{number}_{row['op']}_{row['variant']}"
        if run.part(name):
            continue
        table = run.out / f"{name}.csv"
        run.run([tool, *options, "--log-file", table, "--kernel-name-base", "demangled", "--kernel-name",
                 f"regex:katt::{row['op']}", "--launch-count", "40", run.program, "sweep",
                 *sweep_arguments(row, axes[row["op"]]), "--overwrite", "-o", run.out / f"{name}_sweep.h5"],
                "ncu")  # fmt: skip
        counts = run.out / f"{name}.h5"
        counts.unlink(missing_ok=True)
        run.run([sys.executable, ROOT / "scripts" / "ncu_to_hdf5", table, counts], "ncu_to_hdf5")
        run.done(name)
    return ", ".join(f"{row['op']} {row['pass']} {row['variant']} at {row['ceiling_fraction']:.2f} of {row['ceiling']}"
                     for row in rows) or "no row has a share of a ceiling"  # fmt: skip


def load_script(name):
    """A file of scripts/ as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


def stage_report(run):
    if not all(has(module) for module in ("h5py", "pandas", "matplotlib")):
        raise LeftOut("Python lacks h5py, pandas or matplotlib; katt-report makes the report from the files")
    results = [run.out / f"cuda_{name}.h5" for name in ("attention", "operators", "verify")]
    results = [path for path in results if path.is_file()]
    if not results:
        raise LeftOut("there is no result yet")
    main = "import sys; sys.path[0] = 'drivers/report'; from katt_report.cli import main; sys.exit(main())"
    run.run([sys.executable, "-c", main, *results, "-o", run.out / "report"], "katt-report")
    return "report/report.html"


ALL = {name.removeprefix("stage_"): function for name, function in list(globals().items()) if name.startswith("stage_")}
ALL |= {name: functools.partial(sweep, experiment=f"cuda_{name}") for name in ("attention", "operators", "verify")}
