"""Katt from Python: transformer kernels for arrays of any library that speaks DLPack, sweeps that compare them, and
LLaMAs that write.

Operators take NumPy arrays (float32, float16, and bfloat16 of ml_dtypes), tensors of PyTorch, and what else has
`__dlpack__`, without a copy; their results are arrays of the same library, and in a build with CUDA they run where the
arrays lie. Every operator NAME has its gradients in
NAME_backward. `katt.torch` has them as functions of PyTorch with autograd.

Bad arguments raise ValueError, with one line that names the argument, what it holds and what was expected. A sweep
whose program ended before the sweep did raises SweepError. An operator in a child of os.fork(), after Katt was used,
raises RuntimeError.
"""

from . import _functions
from ._attention import alibi_slopes, attention, attention_backward
from ._candidates import get_include
from ._functions import *  # noqa: F403  NAME and NAME_backward of every other operator
from ._katt import commit as __commit__
from ._katt import version as __version__
from ._model import Llama
from ._norms import rmsnorm_quantized
from ._peers import Refusal
from ._referee import referee
from ._results import Result
from ._results import open as open  # noqa: A004
from ._rope import rope_cache
from ._rules import Rule
from ._streams import stream
from ._sweep import SweepError, sweep
from ._ternary import TernaryWeight, ternary_linear, ternary_linear_backward, ternary_pack
from ._threads import get_num_threads, set_num_threads, threads

# Without open: `from katt import *` must not hide Python's.
__all__ = [
    "Llama", "Refusal", "Result", "Rule", "SweepError", "TernaryWeight", "__commit__", "__version__", "alibi_slopes",
    "attention", "attention_backward", "get_include", "get_num_threads", "referee", "rmsnorm_quantized", "rope_cache",
    "set_num_threads", "stream", "sweep", "ternary_linear", "ternary_linear_backward", "ternary_pack", "threads",
    *_functions.__all__,
]  # fmt: skip
