"""The program `katt-report`: finds the command and turns its errors into a line and a status."""

import os
import signal
import sys
from importlib import import_module

from katt_report.commands import NAMES
from katt_report.commands.parser import Parser, meant
from katt_report.errors import FAILURES, InputError
from katt_report.text import printable


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done; 1 `compare` found a regression, `baselines` an unexplained case above the limit, `--check` a
    difference, or the output cannot be written (one line on stderr); 2 bad usage or input (one line); 3 `compare`
    cannot tell; 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:  # print(file=None) would write to standard output
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        print("katt-report: standard output: cannot be written (it is closed)", file=sys.stderr)
        return 1
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files, and a terminal that cannot show µ or ×
            stream.reconfigure(errors="backslashreplace")
    if arguments[:1] == ["complete"]:
        return _complete(arguments[1:])
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # katt_report/__init__.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        named = bool(arguments) and arguments[0] in NAMES
        if not named and len(arguments) > 1 and not os.path.exists(arguments[0]):
            near = meant(arguments[0], NAMES)
            if near:
                raise InputError(arguments[0], f"neither a command nor a file{near}", f"{', '.join(NAMES)} or a result file")
        command = import_module(f"katt_report.commands.{arguments[0] if named else 'report'}")
        status = command.run(arguments[1:] if named else arguments)
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"katt-report: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the interpreter would print a traceback
        return 130
    except BrokenPipeError:
        # The reader of the output went away (head, less): not an error of the report.
        sys.stdout = None
        return 0
    except OSError as error:
        if not error.filename:  # the rest of its buffer would be written, and reported, again at the end
            sys.stdout = None
        elif error.errno not in FAILURES:  # a writer has made those an InputError
            holds = f"nothing that can be read ({error.strerror})"
            print(f"katt-report: {InputError(error.filename, holds, 'a file or folder')}", file=sys.stderr)
            return 2
        name = error.filename or "standard output"
        print(f"katt-report: {printable(f'{name}: cannot be written ({error.strerror})')}", file=sys.stderr)
        return 1


def _complete(words: list[str]) -> int:
    """Prints the candidates for the last word, for a shell (katt_report.commands.completion)."""
    named = len(words) > 1 and words[0] in NAMES
    if len(words) == 1:
        print("".join(f"{name}\n" for name in NAMES if name.startswith(words[0])), end="")
    Parser.completes = True
    try:
        import_module(f"katt_report.commands.{words[0] if named else 'report'}").run(words[1:] if named else words)
    finally:
        Parser.completes = False
    return 0
