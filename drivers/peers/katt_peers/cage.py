"""The cage of --untrusted (docs/candidates.md) from within: no file can be written, no process started, and no thread
bound from another one."""

import ctypes.util
import tempfile

FOLDER = "/tmp"  # named, never written


def settle():
    """Lets libraries be imported in the cage that only name temporary files and look for others by a compiler and the
    linker, as PyTorch does with cuda.pathfinder: without it both raise. Who does write a file or start a process fails.
    Changes nothing elsewhere."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = FOLDER
        ctypes.util.find_library = lambda name: None
