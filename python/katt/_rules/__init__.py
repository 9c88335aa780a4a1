"""Rules of attention in Python: a function of a score and its place becomes a program that the kernels run."""

from .program import RuleError
from .run import Rule

__all__ = ["Rule", "RuleError"]
