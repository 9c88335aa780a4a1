"""`katt-report complete WORD…`: candidates for the last word, for the script of `katt completion bash|zsh`.

A candidate is a line. Files are for the shell to find: ":files .h5" asks for files with this ending, ":files" for any,
":folders" for folders. The words come from the parser of each command.
"""

import argparse


def candidates(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Words that may stand for the last of `words`, which follow the command's name."""
    if not words:
        return []
    *before, typed = words
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = {name: action for action in actions for name in action.option_strings}
    places = [action for action in actions if not action.option_strings]
    waiting, place = None, 0
    for word in before:
        if waiting:
            waiting = None
        elif not word.startswith("-"):
            place += 1
        elif "=" not in word and word in options and options[word].nargs != 0:
            waiting = options[word]
    if waiting:
        return _values(waiting, typed)
    if typed.startswith("-"):
        name, equals, value = typed.partition("=")
        if equals:
            return _values(options[name], value) if name in options else []
        return [one for one in options if one.startswith(typed) and (one.startswith("--") or len(typed) < 3)]
    if place < len(places) or (places and places[-1].nargs == "+"):
        return _values(places[min(place, len(places) - 1)], typed)
    return []


def _values(action: argparse.Action, typed: str) -> list[str]:
    """The choices of an argument, or the files that its metavar names: RESULT.h5, DIR|FILE.md, OUT."""
    if action.choices:
        return [choice for choice in action.choices if choice.startswith(typed)]
    kinds = str(action.metavar or "").split("|")
    endings = [f".{kind.rpartition('.')[2]}" for kind in kinds if "." in kind]
    if endings:
        return [f":files {' '.join(endings)}"]
    if {"FILE", "OUT"} & set(kinds):
        return [":files"]
    return [":folders"] if "DIR" in kinds else []
