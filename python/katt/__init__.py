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

from ._attention import alibi_slopes, attention, attention_backward
from ._katt import commit as __commit__
from ._katt import version as __version__
from ._layers import (
    convert_dtype,
    embedding,
    embedding_backward,
    linear,
    linear_backward,
    swiglu,
    swiglu_backward,
    swiglu_mlp,
    swiglu_mlp_backward,
)
from ._losses import (
    cross_entropy,
    cross_entropy_backward,
    linear_cross_entropy,
    linear_cross_entropy_backward,
)
from ._model import Llama
from ._norms import (
    layernorm,
    layernorm_backward,
    rmsnorm,
    rmsnorm_backward,
    rmsnorm_quantized,
    softmax,
    softmax_backward,
)
from ._peers import Refusal
from ._results import Result
from ._results import open as open  # noqa: A004
from ._rope import rope, rope_backward, rope_cache
from ._streams import stream
from ._sweep import SweepError, sweep
from ._ternary import TernaryWeight, ternary_linear, ternary_linear_backward, ternary_pack
from ._threads import get_num_threads, set_num_threads, threads

# Without open: `from katt import *` must not hide Python's.
__all__ = [
    "Llama", "Refusal", "Result", "SweepError", "TernaryWeight", "__commit__", "__version__", "alibi_slopes",
    "attention",     "attention_backward", "convert_dtype", "cross_entropy", "cross_entropy_backward", "embedding",
    "embedding_backward", "get_num_threads", "layernorm", "layernorm_backward", "linear", "linear_backward",
    "linear_cross_entropy", "linear_cross_entropy_backward", "rmsnorm", "rmsnorm_backward",     "rmsnorm_quantized",
    "rope", "rope_backward", "rope_cache", "set_num_threads", "softmax", "softmax_backward",     "stream", "sweep",
    "swiglu", "swiglu_backward", "swiglu_mlp", "swiglu_mlp_backward", "ternary_linear",
    "ternary_linear_backward", "ternary_pack", "threads",
]  # fmt: skip
