"""Code that all operators of torch.library share."""

import torch

from .. import _katt

DEVICES = ("cpu", "cuda") if _katt.cuda else ("cpu",)
ELEMENTS = {"": None, "f32": torch.float32, "i8": torch.int8, "u8": torch.uint8}


def operator(name, fake, schema=None):
    """Decorates the function of the operator katt::NAME; `fake` makes its results without content. The schema is that
    of its annotations if None."""

    def make(function):
        made = torch.library.custom_op(f"katt::{name}", function, mutates_args=(), device_types=DEVICES, schema=schema)
        made.register_fake(fake)
        return made

    return make


def call(variant):
    """The last argument of the functions of _katt: variant, its default setting, PyTorch's number of threads."""
    return (variant, (), min(torch.get_num_threads(), _katt.most_threads()))


def refuse_tensors(op, **numbers):
    """ValueError for a number that is a tensor: an operator takes its value alone, so nobody computes its gradient."""
    for name, number in numbers.items():
        if isinstance(number, torch.Tensor):
            raise ValueError(f"{op}: {name}: holds a tensor, expected a number: it has no gradient")


def rows(x):
    """x as (rows, columns), copied only where its strides leave no other way."""
    flat = x.reshape(1, -1) if x.dim() < 2 else x.flatten(0, -2)
    return flat if flat.stride(-1) == 1 or flat.shape[-1] <= 1 else flat.contiguous()


def dense_last(x):
    """x with a contiguous last axis, copied only where it has none; None stays None."""
    return x if x is None or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def new_rows(x):
    """A contiguous tensor of the shape of x."""
    return x.new_empty(x.shape)


def readable(tensor, x):
    """x as the kernels read a tensor of a schema, copied only where its strides leave no other way."""
    if x is None or x.is_contiguous() or x.dim() == 0:
        return x
    if tensor.is_dense:
        return x.contiguous()
    return rows(x) if tensor.axes[0] == "tokens" and len(tensor.axes) == 2 else dense_last(x)


def new_heads(x):
    """A tensor of the shape of x, (batch, heads, seq, head_dim), that lies in memory as x does: position by position
    where x does."""
    batch, heads, seq, head_dim = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty((batch, seq, heads, head_dim)).transpose(1, 2)
    return x.new_empty(x.shape)
