"""Binds the threads of this process. A sweep binds each of its threads to a processor and requests
the same of a peer: threads that wake on the same processor share it for a time slice while another
is idle."""

import ctypes
import os

from .refusal import Refusal


def allow(processors):
    """Lets this thread, and those that it starts from now on, run on any of these."""
    os.sched_setaffinity(0, processors)


def openmp():
    """The loaded OpenMP library (libgomp), or None."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line]
    return ctypes.CDLL(paths[0]) if paths else None


def bind(library, processors):
    """Binds each thread of OpenMP's team to the processor in its place."""
    if library is None or not processors:
        return

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def bind_one(_):
        os.sched_setaffinity(0, {processors[library.omp_get_thread_num()]})

    # A compiler turns "#pragma omp parallel num_threads(n)" into this call.
    library.GOMP_parallel(bind_one, None, len(processors), 0)


def bind_busy(run, processors):
    """Binds the threads that a call of `run` keeps busy, each to a processor: those of a library without OpenMP. Threads
    that it uses only later stay on all processors of the peer."""
    before = busy_ns()
    run()
    after = busy_ns()
    busiest = sorted(after, key=lambda thread: before.get(thread, 0) - after[thread])
    try:
        for thread, processor in zip(busiest, processors, strict=False):
            os.sched_setaffinity(thread, {processor})
    except PermissionError as error:
        raise Refusal("its threads are bound from outside, which the cage of --untrusted does not allow") from error


def busy_ns():
    """Nanoseconds on a processor of each thread of this process so far."""
    times = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            times[int(thread)] = int(file.read().split()[0])
    return times
