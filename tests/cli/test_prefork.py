"""Peers that are forks of one process (drivers/peers/katt_peers/prefork.py), with a work of a few lines."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import ROOT

# The work answers lines until its input ends, with the number of times that load() ran.
SERVER = """
import os, sys
from katt_peers.prefork import prefork
loads = []
def work(name):
    for line in sys.stdin:
        os.write(1, f"{name} {line.strip()} {len(loads)} {os.fstat(3).st_size}\\n".encode())
        if line == "die\\n":
            os._exit(3)
def fit():
    return len(sys.argv) == 2
prefork(sys.argv[1], lambda: loads.append(1), work, fit)
"""
CLIENT = """
import sys
from katt_peers.prefork import through
sys.exit(0 if through(sys.argv[1], sys.argv[2]) else 7)
"""
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT / "drivers" / "peers"))


def start(code, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=ENVIRONMENT, **options)


@pytest.fixture
def server(tmp_path):
    process = start(SERVER, tmp_path / "line", stdin=subprocess.PIPE)
    while not (tmp_path / "line").exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def peer(folder, name):
    """A peer as a sweep starts it: a socket for its input and output, a file on descriptor 3."""
    ours, theirs = socket.socketpair()
    memory = os.open(folder / "memory", os.O_RDWR | os.O_CREAT)
    os.write(memory, b"12345")
    process = start(f"import os; os.dup2({memory}, 3)\n{CLIENT}", folder / "line", name, stdin=theirs, stdout=theirs,
                    pass_fds=(memory,), start_new_session=True)  # fmt: skip
    theirs.close()
    os.close(memory)
    ours.settimeout(20)
    return process, ours.makefile("rw")


def ask(lines, text):
    lines.write(text + "\n")
    lines.flush()
    return lines.readline().split()


def test_forks_do_the_work_of_peers_and_one_process_loads(server, tmp_path):
    (first, lines), (second, others) = peer(tmp_path, "flash"), peer(tmp_path, "math")
    assert ask(lines, "hello") == ["flash", "hello", "1", "5"]
    assert ask(others, "hello") == ["math", "hello", "1", "5"]
    assert ask(lines, "again") == ["flash", "again", "1", "5"]
    lines.close()
    assert first.wait(20) == 0
    assert ask(others, "die") == ["math", "die", "1", "5"]
    assert second.wait(20) == 0 and others.readline() == "", "the sweep sees that the peer is gone"


def test_a_fork_ends_with_the_peer_and_with_the_server(server, tmp_path):
    process, lines = peer(tmp_path, "flash")
    ask(lines, "hello")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert lines.readline() == "", "no fork is left that holds the descriptors"
    server.stdin.close()
    assert server.wait(20) == 0


def test_a_fork_that_is_not_fit_leaves_the_work_to_the_peer(tmp_path):
    server = start(SERVER, tmp_path / "line", "unfit", stdin=subprocess.PIPE)
    while not (tmp_path / "line").exists():
        time.sleep(0.01)
    process, _ = peer(tmp_path, "flash")
    assert process.wait(20) == 7
    server.stdin.close()
    assert server.wait(20) == 0


def test_without_a_server_the_peer_does_its_own_work(tmp_path):
    process, _ = peer(tmp_path, "flash")
    assert process.wait(20) == 7
