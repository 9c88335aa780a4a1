"""Lines of a shell in documents, and how a test runs each.

| line | what the test does |
|---|---|
| `katt …`, `katt-report …`, in any folder of build/ | runs it on small inputs: SMALL cuts its work down, PLACEHOLDERS stand for the reader's files |
| the same with `…`, `[…]` or `(… | …)`: a pattern | every option is one of the command's `--help` |
| the same with `--backend cuda`, or of build/cuda: needs a GPU | likewise |
| `katt-report readme …`: writes into the tree | likewise; tests/report/test_readme.py runs it on the project's documents |
| `katt tune --replay …`: needs a record of spaces | likewise; tests/cli/test_tune.py runs it |
| `mpirun -n N katt …` | runs it with N ranks |
| `srun … katt …`: needs Slurm | every option of katt is one of the command's `--help` |
| `scripts/NAME …`: installs and builds for minutes | the script is there and names every option |
| a program of ELSEWHERE | nothing; the table says who runs it |

A sweep is planned with `--dry-run` unless the page is a lesson (docs/tutorial, docs/how_to), where it measures for a
moment, since the lines after it read its file. Pages that are no lessons begin with the same files: what one of them has
run with the same inputs does not run again, unless a later line of the page reads its output.
"""

import contextlib
import hashlib
import io
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/cases"
sys.path.insert(0, str(ROOT / "drivers/report"))

from katt_report import cli  # noqa: E402

ELSEWHERE = {
    "cmake": "builds for minutes; scripts/build, `scripts/soak few` and tests/structure/install_and_consume do the same",
    "pip": "compiles the package for minutes; scripts/python does the same",
    "docker": "no engine where tests run; scripts/in_bare_root runs the steps of containers/",
    "python3": "fetches packages; scripts/peers does the same",
    "ncu": "needs a GPU and NVIDIA's profiler",
    "nsys": "needs a GPU and NVIDIA's profiler",
    "cc": "compiles the kernels that the fixture of test_code_blocks.py compiles, too",
    "cd": "the commands run in one folder",
    "qemu-aarch64": "needs a cross build; scripts/test_aarch64 runs it",
    "mine": "the program of the reader; tests/structure/install_and_consume builds and runs one",
    "test_ops": "scripts/test runs it",
    "test_io": "minutes; scripts/test runs it",
    "own_kernel": "tests/structure/install_and_consume builds and runs it",
}
# Names that pages give the reader's files and numbers.
PLACEHOLDERS = {"DIR": "model", "FILE": "text.txt", "FILE.h5": "tokens.h5", "FILE.toml": "sweep.toml",
                "CASE.h5": "case.h5", "OUT.h5": "out.h5", "RESULT.h5": "result.h5", "TUNED": "tuned",
                "TASK.json": "task.json", "VERDICT.json": "verdict.json", "FILES…": "old.h5 new.h5", "OP": "attention"}
# Files of results/ that hold what a command asks for: peers are not installed where tests run.
WITH_PEERS = {
    "baselines": "results/zen4-avx512bf16-2c/baselines/baselines.h5",
    "torch_flash": "results/zen4-avx512bf16-2c/peers_cpu/backward.h5",
}
OUTPUTS = {"-o", "--out", "--output", "--log"}
SMALL = {"--steps": "2", "--max-new-tokens": "4", "--seq": "32", "--batch": "4"}  # of train and generate
QUICK = ["--rounds", "1", "--budget-s", "0.001"]
LESSONS = ("docs/tutorial/", "docs/how_to/")


def commands(text: str) -> list[str]:
    """The lines of a block without comments, prose at their end, prompts and continuation."""
    joined = re.sub(r"\\\n\s*", "", text)
    out = []
    for line in joined.split("\n"):
        line = re.sub(r"^\$ ", "", line)
        line = re.split(r"\s+# |\s{4,}(?=[a-z]+ )(?!-)", line, maxsplit=1)[0].strip()
        if line and not line.startswith("#"):
            out += line.split(" && ")
    return out


def is_pattern(line: str) -> bool:
    return bool(re.search(r"…|\[|\(|(?<![\w.])[A-Z](?=/N|\b(?!\.))", re.sub(r"'[^']*'", "", line)))


def program_of(words: list[str]) -> str:
    return Path(words[0]).name


@cache
def said(*command: str) -> str:
    """What a command prints that depends on no file."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_option(option: str, text: str) -> bool:
    """True where a text names an option, not only a longer one."""
    return bool(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text))


def digest(path: Path) -> str:
    """The hash of a file, or of the files of a folder with their names."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file()):
        data = file.read_bytes()
        found.update(f"{file.relative_to(path)} {len(data)}\n".encode() + data)
    return found.hexdigest()


def run_report(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    """katt-report within this process: a program of its own loads matplotlib for a second each time."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                status = cli.main(command[1:])
            except SystemExit as end:
                status = end.code
    return subprocess.CompletedProcess(command, status, out.getvalue(), told.getvalue())


def outputs_of(arguments: list[str]) -> list[str]:
    return [value for option, value in zip(arguments, arguments[1:], strict=False) if option in OUTPUTS]


def inputs_of(arguments: list[str]) -> list[str]:
    """The words without the names of outputs."""
    return [word for option, word in zip(["", *arguments], arguments, strict=False) if option not in OUTPUTS]


def is_read(file: str, lines: list[str]) -> bool:
    """True when a line names the file, a pattern that it is one of, or a folder that it is in, and not as its output."""
    words = [re.sub(r"^\./|/$", "", word) for line in lines for word in inputs_of(line.split())]
    return any(fnmatch(file, word) or file.startswith(f"{word}/") for word in words if word)


RAN: set[tuple] = set()  # what pages that are no lessons have run


class Shell:
    """A folder in which the commands of a page run, with what the pages call by name."""

    def __init__(self, folder: Path, page: str, katt: str, report: str):
        self.folder, self.page, self.katt, self.report = folder, page, katt, report
        self.is_lesson = page.startswith(LESSONS)

    def run(self, line: str, status: int = 0, later: list[str] | None = None):
        """Runs a line; `status` is the exit status that it shall have, `later` are the page's lines after it."""
        self.status, self.later = status, later or []
        words = shlex.split(line.replace("FILE… ", "result.h5 "))
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        name = program_of(words)
        if name in ELSEWHERE:
            return
        if words[0].startswith("scripts/"):
            self.check_script(words)
        elif name == "mpirun":
            self.run_ranks(words)
        elif name == "srun":
            self.check_options(words[words.index("katt") :])
        elif name in ("katt", "katt-report"):
            self.run_katt(words, line)
        else:
            raise AssertionError(f"{line}: {words[0]} is in no rule of tests/docs/shell.py")

    # Checks without a run

    def check_script(self, words: list[str]):
        script = ROOT / words[0]
        assert script.is_file(), f"{words[0]}: there is no such script"
        text = script.read_text()
        for option in (word.split("=")[0] for word in words[1:] if word.startswith("--")):
            assert is_option(option, text), f"{words[0]} has no option {option}"

    def check_options(self, words: list[str]):
        name = program_of(words)
        command = [word for word in words[1:2] if re.fullmatch(r"[a-z]+", word)]
        known = said(self.path_of(name), *command, "--help")
        for option in (word.strip("[](),").split("=")[0] for word in words if word.strip("[](,").startswith("--")):
            assert is_option(option, known + self.axes_of(words)), f"{name} {' '.join(command)} has no option {option}"

    def axes_of(self, words: list[str]) -> str:
        """The axes of the operator of a sweep."""
        if words[1] not in ("sweep", "tune"):
            return ""
        op = words[2] if re.fullmatch(r"[a-z_]+", words[2]) else "attention"
        return said(self.katt, "info", op)

    # Runs

    def path_of(self, name: str) -> str:
        return self.katt if name == "katt" else self.report

    def run_katt(self, words: list[str], line: str):
        needs_gpu = "cuda" in words or words[0].startswith("build/cuda")
        if needs_gpu or is_pattern(line) or words[1:2] == ["readme"] or "--replay" in words:
            self.check_options(words)
            return
        if words[1:] == ["info", "--measure"] and not self.is_lesson:
            return  # seconds of ceilings; docs/how_to/my_machine.md has the same line
        if words[1] == "referee" and self.page != "docs/referee.md":
            self.check_options(words)
            return
        if words[1] == "generate" and "--profile" in words:
            self.check_options(words)  # seconds of ceilings; tests/cli/test_model_profile.py has the same line
            words = [word for word in words if word != "--profile"]
        arguments = self.small(words[1:])
        if program_of(words) == "katt-report" and arguments[0].endswith(".h5") and not {"--table", "--formats"} & set(arguments):
            arguments += ["--formats", "svg"]  # half the time of a report is its figures a second time, as PNG
            if set(WITH_PEERS.values()) & set(arguments):
                arguments += ["--only", "dtype=bf16,causal=1"]  # a quarter of the points
        self.finished([self.path_of(program_of(words))], arguments, line)

    def run_ranks(self, words: list[str]):
        start = next(i for i, word in enumerate(words) if program_of([word]) == "katt")
        launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *words[1:3]]
        assert words[1] == "-n", "mpirun: expected -n RANKS first"
        if is_pattern(" ".join(words)):
            self.check_options(words[start:])
            return
        self.finished([*launch, self.katt], self.small(words[start + 1 :]), " ".join(words))

    def small(self, arguments: list[str]) -> list[str]:
        """The arguments with the reader's files in place and little work to do."""
        filled = [part for word in with_outputs(arguments) for part in self.files(word)]
        for asks, file in WITH_PEERS.items():
            if asks in filled:
                filled = [file if word.endswith("mine.h5") else word for word in filled]
        if filled[0] in ("train", "generate"):
            for at, word in enumerate(filled[:-1]):
                if word in SMALL:
                    filled[at + 1] = SMALL[word]
            filled += ["--seq", "32"] if filled[0] == "train" and "--seq" not in filled else []
        if filled[0] in ("sweep", "tune"):
            if self.is_lesson or filled[0] == "tune":
                filled += [word for word in QUICK if not {"--rounds", "--dry-run"} & set(filled)]
                if filled[0] == "sweep":
                    filled.append("--no-ceilings")
            elif "--dry-run" not in filled:
                filled.append("--dry-run")
        if filled[0] == "tune":  # one tile of one short point
            filled = ["tune", filled[1], "--seq", "64", "--variant", "flash", "--heads", "1", *QUICK, "-o",
                      "tuning.json"]
        return filled

    def files(self, word: str) -> list[str]:
        """The files that a word means: a placeholder's, a pattern's, or the word itself."""
        if "*" in word:
            return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word))
        return PLACEHOLDERS.get(word, word).split()

    def finished(self, program: list[str], arguments: list[str], line: str):
        command = [*program, *arguments]
        same = None if self.is_lesson else self.identity(command)
        if same in RAN and not any(is_read(file, self.later) for file in outputs_of(shlex.split(line))):
            return
        kept = self.put_aside(arguments)
        done = run_report(command, self.folder) if program == [self.report] else subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        for path, content in kept.items():
            if not path.exists():
                path.write_bytes(content)
        # compare: 1 for a regression, 3 where it cannot tell, which a file of moments does not.
        allowed = {self.status} if self.status else {0, 1, 3} if {"compare", "baselines"} & set(arguments) else {0}
        told = f"{line}\n→ {' '.join(command)}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        assert done.returncode in allowed, told
        if same:
            RAN.add(same)

    def identity(self, command: list[str]) -> tuple:
        """The command without the names of its outputs, the status that it shall have, and the files that it names."""
        named = inputs_of(command)
        files = [digest(self.folder / word) for word in named[1:] if (self.folder / word).exists()]
        return (*named, self.status, *files)

    def put_aside(self, arguments: list[str]) -> dict[Path, bytes]:
        """Makes room for the outputs; files that a command does not write again come back after it."""
        kept = {}
        for option, value in zip(arguments, arguments[1:], strict=False):
            path = self.folder / value
            if option in OUTPUTS and path.is_file():
                kept[path] = path.read_bytes()
                path.unlink()
        return kept


def with_outputs(arguments: list[str]) -> list[str]:
    """The arguments with a folder of their own for outputs that the page calls DIR."""
    before = ["", *arguments]
    return [
        "made" if word == "DIR" and option in OUTPUTS else word for option, word in zip(before, arguments, strict=False)
    ]
