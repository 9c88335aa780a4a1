"""Answers a sweep's requests, one JSON line each, with one open case at a time."""

import ctypes
import json
import os
import sys

from .case import MEMORY, Case
from .processors import allow, bind, openmp
from .refusal import Refusal


class Server:
    """A running peer. `open_case(case)` gives an object with run(times) → seconds a run, read(),
    forget(), about; if its allocator counts, memory() → {"host_bytes", "device_bytes"}, the most
    that a run holds at a time; and, where it can take over inputs that have changed, take(spec,
    first, count) → False for one that it has made something of. Such a case is opened again."""

    def __init__(self, open_case, memory=MEMORY):
        self._open_case = open_case
        self._descriptor = memory
        self._case = None
        self._opened = None
        self._memory = None
        self._openmp = None
        self._bound = []

    def answer(self, request):
        match request["do"]:
            case "open":
                self._opened = None
                allow(request["processors"])
                self._case = Case.from_request(request, self._descriptor)
                self._opened = self._open_case(self._case)
                self._memory = None
                self._openmp, self._bound = openmp(), request["bound"]
                engine = getattr(self._opened, "engine", "")
                return {"ok": True, "about": self._opened.about, "engine": engine, "inputs": True}
            case "inputs":
                self._take(request["changed"])
            case "run":
                bind(self._openmp, self._bound)  # again: a smaller team in between ends threads
                return {"seconds": self._opened.run(request["times"])}
            case "forget":
                self._opened.forget()
            case "read":
                self._opened.read()
                if self._memory is None:  # the first read is before the timing
                    self._memory = getattr(self._opened, "memory", dict)()
                return {"ok": True, **self._memory}
            case "close":
                self._opened = self._case = None
            case other:
                return {"failed": f"unknown request {other}"}
        return {"ok": True}

    def _take(self, changed):
        """Takes over elements of the inputs that the sweep has changed in the shared memory."""
        specs = {spec.name: spec for spec in self._case.inputs}
        take = getattr(self._opened, "take", lambda spec, first, count: False)
        if not all([take(specs[one["name"]], one["first"], one["count"]) for one in changed]):
            self._opened = None
            self._opened = self._open_case(self._case)

    def serve(self, requests, replies):
        """Answers in a process of the peer's own."""
        keep_freed_memory()
        self.answer_all(requests, replies)

    def answer_all(self, requests, replies):
        for line in requests:
            try:
                reply = self.answer(json.loads(line))
            except Refusal as refusal:
                reply = {"skipped": str(refusal)}
            except Exception as error:  # every exception of a library is the row's reason
                reply = {"failed": f"{type(error).__name__}: {first_line(error)}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def first_line(error):
    return (str(error).strip().splitlines() or [""])[0]


def keep_freed_memory():
    """Makes malloc keep freed memory, so that outputs go to memory that has been touched before, as
    the outputs of a sweep's own variants do: page faults would dwarf an elementwise operator."""
    m_trim_threshold, m_mmap_max = -1, -4  # <malloc.h>
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def private_lines():
    """The two ends of the sweep's socket; output of libraries goes to standard error instead."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, replies
