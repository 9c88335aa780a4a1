"""Programs of rules that are written for PyTorch: functions (score, batch, head, query, key) of tensors without axes.

torch.fx traces a rule to ATen operations, as flex_attention's compiler does, and finds the captured tensors."""

import math
import os
import sys

import torch
import torch.fx.traceback as fx_traceback
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import grids
from .grids import PARAMETERS, Grid
from .program import INDEX, REAL, TRUTH, Captured, Program, RuleError

TORCH = os.path.dirname(torch.__file__) + os.sep
TYPES = {torch.float32: REAL, torch.float16: REAL, torch.bfloat16: REAL, torch.bool: TRUTH, torch.int64: INDEX,
         torch.int32: INDEX, torch.int16: INDEX, torch.int8: INDEX, torch.uint8: INDEX}  # fmt: skip


NO_BRANCHES = "asks for the value of a tensor, as `if query > key` does, expected torch.where"


def line_here():
    """The line of the rule that runs."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    return frame and f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class NoDetach(TorchFunctionMode):
    """Refuses to stop gradients, which programs do not. Autograd's own detaches do not come here."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_detach = function in (torch.detach, torch.Tensor.detach, torch.Tensor.detach_, torch.Tensor.data.__get__)
        if is_detach and args[0].is_floating_point():
            raise RuleError(f"{line_here()}: calls detach, expected it before the rule, of captured tensors")
        return function(*args, **(kwargs or {}))


class Lines(TorchDispatchMode):
    """Notes the line of the rule that calls an operation, for what is said of it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        line = line_here()
        if line is not None:
            fx_traceback.set_stack_trace([line])
            if function is torch.ops.aten._local_scalar_dense.default:
                # A program must not depend on what a tensor holds now.
                raise RuleError(f"{line}: {NO_BRANCHES}")
        return function(*args, **(kwargs or {}))


def graph_of(rule, kind):
    """The graph of a rule, and the module that holds its captured tensors."""
    score = torch.zeros(())
    places = [torch.zeros((), dtype=torch.int64) for _ in range(4)]

    def lined(*args):
        with Lines(), NoDetach(), torch.enable_grad():
            return rule(*args)

    args = (score, *places) if kind == "score" else tuple(places)
    try:
        with fx_traceback.preserve_node_meta(), TransformGetItemToIndex():
            return make_fx(lined, decomposition_table=decompositions())(*args)
    except RuntimeError as error:
        if "value out of a tracing tensor" not in str(error):
            raise
        raise RuleError(f"{line_of(rule, error)}: {NO_BRANCHES}") from None


def softplus(x, beta=1, threshold=20):
    scaled = x * beta
    return torch.where(scaled > threshold, x, scaled.clamp(max=threshold).exp().log1p() / beta)


def celu(x, alpha=1):
    return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0) / alpha))


def decompositions():
    """PyTorch's, but for two with an exponential in the branch that large numbers do not take: there it is infinite,
    and its derivative 0 · inf."""
    made = torch._decomp.core_aten_decompositions()
    made[torch.ops.aten.softplus.default] = softplus
    made[torch.ops.aten.celu.default] = celu
    return made


def line_of(rule, error):
    """The line of a rule's file where an error was raised: the innermost frame that is none of PyTorch's."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((TORCH, __file__)):
            found = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found or getattr(rule, "__name__", "the rule")


def trace(rule, kind="score", program=None, tensors=None):
    """The program of a rule, and the tensors that it captures, by their number in the program. The values and tensors
    of a program that is given come first."""
    module = graph_of(rule, kind)
    program, tensors, made = program or Program(), [] if tensors is None else tensors, {}
    names = iter(PARAMETERS[kind])
    for node in module.graph.nodes:
        try:
            if node.op == "placeholder":
                name = next(names)
                made[node] = grids.number(program, program.input(name))
            elif node.op == "get_attr":
                made[node] = captured(program, tensors, getattr(module, node.target))
            elif node.op == "call_function":
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), made.__getitem__)
                made[node] = operation(program, node, args, kwargs)
            elif node.op == "output":
                (result,) = node.args
                if not isinstance(result, torch.fx.Node):
                    raise RuleError(f"returns {type(result).__name__}, expected a tensor")
                grids.result(made[result], kind)
        except RuleError as error:
            raise RuleError(f"{node.stack_trace or getattr(rule, '__name__', 'the rule')}: {error}") from None
    return program, tensors


def trace_masked(score_rule, mask_rule):
    """The program of a score rule, the score itself if None; the number of its value that is -inf where a mask rule is
    False, None without one; and the captured tensors."""
    program, tensors = Program(), []
    program.results = [program.input("score")]
    if score_rule is not None:
        trace(score_rule, "score", program, tensors)
    if mask_rule is None:
        return program, None, tensors
    (score,) = program.results
    trace(mask_rule, "mask", program, tensors)
    masked = program.where(program.results[0], score, program.constant(-math.inf))
    program.results = [score]
    return program, masked, tensors


def captured(program, tensors, tensor):
    if tensor.dtype not in TYPES:
        raise RuleError(f"captures a tensor of {tensor.dtype}, expected float32, float16, bfloat16, bool or an integer")
    if tensor.device.type != "cpu":
        raise RuleError(f"captures a tensor on {tensor.device}, expected one on the CPU")
    known = [n for n, each in enumerate(tensors) if each is tensor]
    number = known[0] if known else len(tensors)
    if not known:
        tensors.append(tensor)
        program.tensors.append(Captured(tuple(tensor.shape), TYPES[tensor.dtype]))
    return grids.captured(program, tensor.shape, TYPES[tensor.dtype], number)


BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "minimum": "minimum", "maximum": "maximum"}
COMPARED = {"eq": ("equal", False), "ne": ("not_equal", False), "lt": ("less", False), "le": ("less_equal", False),
            "gt": ("less", True), "ge": ("less_equal", True)}  # fmt: skip
LOGICAL = {"bitwise_and": "and", "logical_and": "and", "bitwise_or": "or", "logical_or": "or", "bitwise_not": "not",
           "logical_not": "not"}  # fmt: skip
WRAPPING = {torch.int8, torch.int16, torch.uint8}
NARROW = {*WRAPPING, torch.float16, torch.bfloat16}
SAME = {"alias", "detach", "clone", "lift_fresh_copy", "lift_fresh", "contiguous"}


def operation(program, node, args, kwargs):
    """The grid of an ATen operation."""
    name = node.target.__name__.split(".")[0] if hasattr(node.target, "__name__") else str(node.target)
    mode = kwargs.get("rounding_mode")
    value = node.meta.get("val")
    type = TYPES.get(value.dtype) if isinstance(value, torch.Tensor) else None
    if type is None:
        made = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else "no tensor"
        raise RuleError(f"{name} makes {made}, expected float32, bool or an integer")

    def grid(item):
        return item if isinstance(item, Grid) else grids.constant(program, item)

    if value.dtype in WRAPPING and name in (*BINARY, "neg", "rsub", "abs", "pow", "remainder"):
        raise RuleError(f"calls {name} of {value.dtype}, which wraps around; expected integers of 32 bits or more")
    if name in BINARY:
        a, b = grid(args[0]), grid(args[1])
        if kwargs.get("alpha", 1) != 1:
            b = grids.promoted(program, "multiply", [b, grid(kwargs["alpha"])])
        return grids.promoted(program, BINARY[name], [a, b], numeric(name, type))
    if name in COMPARED:
        a, b = grid(args[0]), grid(args[1])
        compared, swapped = COMPARED[name]
        widest = max((a.type, b.type, INDEX), key=grids.RANK.index)
        return grids.promoted(program, compared, [b, a] if swapped else [a, b], widest)
    if name in LOGICAL or name == "bitwise_xor":
        operands = [grid(item) for item in args]
        if any(operand.type != TRUTH for operand in operands) and name.startswith("bitwise"):
            raise RuleError(f"calls {name} of integers, expected bools")
        if name == "bitwise_xor":
            return grids.promoted(program, "not_equal", operands, TRUTH)
        return grids.logical(LOGICAL[name], operands)
    if name == "logical_xor":
        return grids.promoted(program, "not_equal", [grids.converted(grid(item), TRUTH) for item in args], TRUTH)
    if name == "div" and mode is None:
        return grids.real("divide", [grid(item) for item in args[:2]])
    if (name == "div" and mode == "floor") or name == "floor_divide":
        return grids.integer_divide(grid(args[0]), grid(args[1]))
    if name == "remainder":
        return grids.remainder(grid(args[0]), grid(args[1]))
    if name == "neg":
        return grids.promoted(program, "negative", [grid(args[0])])
    if name == "rsub":
        return grids.promoted(program, "subtract", [grid(args[1]), grid(args[0])], type)
    if name == "abs":
        return grids.promoted(program, "absolute", [grid(args[0])])
    if name == "where":
        return grids.converted(grids.where(grid(args[0]), grid(args[1]), grid(args[2])), type)
    if name in ("clamp", "clamp_min", "clamp_max"):
        low = args[1] if len(args) > 1 and name != "clamp_max" else kwargs.get("min")
        high = args[2] if len(args) > 2 else args[1] if name == "clamp_max" else kwargs.get("max")
        bounds = (None if item is None else grids.converted(grid(item), type) for item in (low, high))
        return grids.clamped(grids.converted(grid(args[0]), type), *bounds)
    if name == "pow" and not isinstance(args[1], Grid) and isinstance(args[0], Grid):
        return grids.power(args[0], args[1])
    if name == "_to_copy":
        if value.dtype in NARROW:
            raise RuleError(f"converts to {value.dtype}, expected float32, bool or an integer of 32 bits or more")
        return grids.converted(args[0], type)
    if name in ("scalar_tensor", "full"):
        return grids.converted(grid(args[0] if name == "scalar_tensor" else args[1]), type)
    if name in ("full_like", "zeros_like", "ones_like"):
        item = args[1] if name == "full_like" else int(name == "ones_like")
        return grids.converted(grid(item), type)
    if name in SAME:
        return args[0]
    if name == "index":
        indices = [slice(None) if item is None else item for item in args[1]]
        return grids.index(args[0], indices)
    if name == "select" and args[1] == 0:
        return grids.index(args[0], [args[2]])
    if name in ("expand", "view", "reshape", "squeeze", "unsqueeze") and not args[0].shape and not value.shape:
        return args[0]
    if len(args) == 1:
        return grids.one_operand(name, args[0])
    raise RuleError(f"calls {name}, which rules do not have")


def numeric(name, type):
    if type == TRUTH:
        raise RuleError(f"calls {name} of bools, expected & or |")
    return type
