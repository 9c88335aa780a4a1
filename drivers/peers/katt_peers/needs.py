"""Requirements of some peers on PyTorch: a GPU, a compiler."""

import torch
import torch._inductor.cpp_builder
import torch._inductor.exc

from .refusal import Refusal


def cuda():
    if not torch.cuda.is_available():
        raise Refusal("PyTorch sees no CUDA device")


def compiler():
    """torch.compile makes C++ for a CPU."""
    try:
        torch._inductor.cpp_builder.get_cpp_compiler()
    except torch._inductor.exc.InvalidCxxCompiler as error:
        raise Refusal("torch.compile needs a C++ compiler, such as g++") from error
    except PermissionError as error:
        raise Refusal("torch.compile starts a compiler, which the cage of --untrusted does not allow") from error
