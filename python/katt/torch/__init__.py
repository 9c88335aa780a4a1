"""Katt inside PyTorch: every operator as a function of tensors with gradients.

Each is made of operators of `torch.library` (torch.ops.katt.*) with fake tensors and autograd, so that torch.compile
keeps it in the graph. They run where the tensors lie: on the CPU with PyTorch's number of threads
(torch.set_num_threads), or in a build with CUDA on PyTorch's current stream. Gradients of gradients are not there.
"""

from . import _flash_impl, _functions
from ._attention import attention
from ._flex import flex_attention
from ._functions import *  # noqa: F403
from ._layers import convert_dtype, ternary_linear
from ._sdpa import scaled_dot_product_attention
from ._transformers import register_transformers

_flash_impl.register()

__all__ = [
    "attention", "convert_dtype", "flex_attention", "register_transformers", "scaled_dot_product_attention",
    "ternary_linear", *_functions.__all__,
]  # fmt: skip
