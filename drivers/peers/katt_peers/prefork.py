"""A process that imports PyTorch once and forks a peer for each that asks: `katt-peers --prefork SOCKET` is that
process, and `katt-peers --through SOCKET NAME` is a peer whose work a fork does. An import takes ten seconds on some
machines, and a sweep starts a process for each of its peers.

The fork has the descriptors 0 to 3 of the process that asks, and ends with it."""

import contextlib
import os
import signal
import socket
import threading

DESCRIPTORS = 4
READY, NAME_BYTES = b"+", 256


def through(path, name):
    """Has a fork do the work of the peer; False where no process answers, and the caller must do it."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(path)
            socket.send_fds(line, [name.encode()], list(range(DESCRIPTORS)))
            if line.recv(1) != READY:
                return False
        except OSError:
            return False
        line.recv(1)  # until the fork ends
        return True


def prefork(path, load, work, fit=lambda: True):
    """Answers at the socket `path` until standard input ends: load(), then work(name) in a fork for every peer. A fork
    that is not fit() leaves the work to the process that asked."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        end_with(lambda: os.read(0, 1))  # a fork must not inherit the lock of sys.stdin
        load()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while True:
            line, _ = listener.accept()
            with line:
                name, descriptors, _, _ = socket.recv_fds(line, NAME_BYTES, DESCRIPTORS)
                if len(descriptors) == DESCRIPTORS and os.fork() == 0:
                    listener.close()
                    become(line, name.decode(), descriptors, work, fit)
                for descriptor in descriptors:
                    os.close(descriptor)


def become(line, name, descriptors, work, fit):
    """The rest of a fork's life."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        if fit():
            line.sendall(READY)
            end_with(lambda: line.recv(1))
            work(name)
            status = 0
    finally:
        os._exit(status)


def end_with(wait):
    """Ends this process when wait() returns, or fails: a sweep that is killed may reset its connection."""

    def watch():
        with contextlib.suppress(OSError):
            wait()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
