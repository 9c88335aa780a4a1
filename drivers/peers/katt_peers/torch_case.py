"""A case on PyTorch: its tensors, and a function of them to run and time."""

import math
import time

import torch

from .refusal import Refusal

# Cycles for which the device is busy while the launches of a run arrive, 100 µs at 2 GHz: the first launch on an idle
# device would count 5 µs and more of the host's time.
_LEAD_CYCLES = 200_000
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}


def shared(case, spec):
    """The tensor in the shared memory."""
    count = math.prod(spec.shape)
    flat = torch.frombuffer(case.memory, dtype=DTYPES[spec.dtype], count=count, offset=spec.offset)
    return flat.view(spec.shape)


def stored(case, tensor):
    """The tensor in the storage order of the case: (batch, head, seq, dim) may lie as (batch, seq,
    head, dim)."""
    swapped = case.axes.get("layout") == "bshd" and tensor.dim() == 4
    return tensor.transpose(1, 2).contiguous().transpose(1, 2) if swapped else tensor


def inputs_of(case):
    """Copies of the inputs on the device, by name."""
    if case.device == "cuda" and not torch.cuda.is_available():
        raise Refusal("PyTorch sees no CUDA device")
    if case.device == "cuda":
        torch.cuda.set_device(case.device_number)
    torch.set_num_threads(case.threads)
    return {spec.name: stored(case, shared(case, spec).to(case.device, copy=True)) for spec in case.inputs}


class TorchCase:
    """Runs `function()`, which returns the outputs in the order of the case. `inputs`: the tensors, by the names of the
    case, that every run reads anew; without them a change of the inputs opens the case again."""

    def __init__(self, case, function, inputs=()):
        self.about = f"torch {torch.__version__}"
        self._case = case
        self._function = function
        self._inputs = dict(inputs)
        self._results = None

    def take(self, spec, first, count):
        """Copies elements of an input from the shared memory; False where something is made of it beforehand."""
        target = self._inputs.get(spec.name)
        if target is None:
            return False
        source = shared(self._case, spec)
        if target.is_contiguous():
            target, source = (tensor.view(-1)[first : first + count] for tensor in (target, source))
        target.copy_(source)
        return True

    def run(self, times):
        """Runs and returns the seconds of one run, the mean of `times`."""
        self._fence()
        if self._case.device == "cuda":  # by the device's clock, as ours
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_LEAD_CYCLES)
            begin.record()
            for _ in range(times):
                self._results = self._function()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3 / times
        start = time.perf_counter()
        for _ in range(times):
            self._results = self._function()
        return (time.perf_counter() - start) / times

    def forget(self):
        self._results = None

    def read(self):
        """Copies the outputs of the last run into the shared memory."""
        for spec, result in zip(self._case.outputs, self._results, strict=True):
            shared(self._case, spec).copy_(result.detach().reshape(spec.shape))

    def memory(self):
        """The most bytes that PyTorch's allocators hold at a time in a run, with the inputs, the
        outputs and the tensors that a forward pass before it keeps. Drops the results of the last
        run."""
        self.forget()
        on_device = self._case.device == "cuda"
        before = sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in self._case.inputs)
        before += getattr(self._function, "kept_bytes", 0)
        if on_device:
            torch.cuda.reset_peak_memory_stats()
        host = peak_of_host(self._function)
        device = torch.cuda.max_memory_allocated() if on_device else 0
        return {"host_bytes": host if on_device else before + host, "device_bytes": device}

    def _fence(self):
        if self._case.device == "cuda":
            torch.cuda.synchronize()


def peak_of_host(function):
    """The most bytes that a call of `function` holds at a time of PyTorch's allocator for the CPU,
    which has no counter: the running sum of the allocations and releases that the profiler
    records."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
        results = function()
    del results
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == torch.autograd.DeviceType.CPU:
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def gradients_of(function, inputs, names, dout):
    """A function that computes the gradients of `function(inputs)` with respect to the inputs
    named. The forward pass runs once, here. Every run uses the tensors that it keeps; their bytes
    are the function's attribute `kept_bytes`."""
    variables = [inputs[name].requires_grad_() for name in names]
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself, an output of its step would keep the graph, and the graph the output

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = function(inputs)
    for tensor in inputs.values():
        kept.pop(tensor.untyped_storage().data_ptr(), None)

    def gradients():
        return torch.autograd.grad(out, variables, dout, retain_graph=True)

    gradients.kept_bytes = sum(kept.values())
    return gradients
