"""katt-peers NAME: answers the requests of a sweep as the peer NAME. katt-peers --list names the peers and says what each
can run here, or why it cannot; --check NAME… says it of some. --prefork and --through: prefork.py."""

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .cage import settle
from .catalogue import PEERS, open_case, require
from .operators import modules, operators_with
from .prefork import prefork, through
from .refusal import Refusal
from .server import Server, private_lines


def check(names):
    """Prints a line for each peer: its operators, or why it cannot run here."""
    status = 0
    for name in names:
        try:
            library, functions = require(name).operators.split(":")
            print("runs", ", ".join(operators_with(library, functions.split(","))))
        except Refusal as refusal:
            print(f"not here: {refusal}")
            status = 1
    return status


def answers(names):
    """The lines of --check in a process of its own, which a library may end."""
    command = [sys.executable, "-m", "katt_peers", "--check", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    ended = f"not here: a library ended with status {done.returncode}"
    return lines if len(lines) == len(names) else [ended] * len(names)


def list_peers():
    groups = {}
    for name, peer in PEERS.items():
        groups.setdefault((peer.library, peer.needs), []).append(name)
    lines = {}
    with ThreadPoolExecutor(2) as pool:
        for names, answer in zip(groups.values(), pool.map(answers, groups.values()), strict=True):
            lines |= zip(names, answer, strict=True)
    for name, peer in PEERS.items():
        print(f"{name:<17}{peer.description}\n{'':<17}{lines[name]}")


def serve(name):
    """Answers as the peer of that name until its input ends."""
    settle()
    requests, replies = private_lines()
    Server(lambda case: open_case(name, case)).serve(requests, replies)


def load():
    """Imports what the peers on PyTorch share. A fork cannot use a GPU that its parent opened, so this opens none."""
    importlib.import_module("katt_peers.torch_peers")
    modules("torch")


def sees_gpu():
    """False where the machine has a GPU and this fork cannot use it, since something in its parent has touched it."""
    torch = importlib.import_module("torch")
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError):  # PyTorch has no CUDA, or CUDA's error
        return not Path("/dev/nvidia0").exists()
    return True


def main():
    match sys.argv[1:]:
        case ["--list"]:
            list_peers()
            return 0
        case ["--check", *names] if names:
            return check(names)
        case ["--prefork", path]:
            prefork(path, load, serve, sees_gpu)
        case ["--through", path, name]:
            if not through(path, name):
                serve(name)
            return 0
        case [name] if not name.startswith("-"):
            serve(name)
            return 0
    print("usage: katt-peers NAME | --list | --check NAME...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
