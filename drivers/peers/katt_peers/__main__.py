"""katt-peers NAME: answers the requests of a sweep as the peer NAME. katt-peers --list names the peers and says what each
can run here, or why it cannot; --check NAME… says it of some."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from .catalogue import PEERS, open_case, require
from .operators import operators_with
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


def main():
    match sys.argv[1:]:
        case ["--list"]:
            list_peers()
            return 0
        case ["--check", *names] if names:
            return check(names)
        case [name] if not name.startswith("-"):
            requests, replies = private_lines()
            Server(lambda case: open_case(name, case)).serve(requests, replies)
            return 0
    print("usage: katt-peers NAME | --list | --check NAME...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
