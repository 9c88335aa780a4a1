"""The case that a sweep hands to a peer, and the memory in which its tensors lie."""

import mmap
from dataclasses import dataclass, field

MEMORY = 3  # descriptor of the shared memory in a peer's own process


@dataclass(frozen=True)
class Spec:
    """A tensor in the shared memory: row-major, `dtype` one of f32, f16, bf16, i64."""

    name: str
    dtype: str
    shape: tuple
    offset: int


@dataclass(frozen=True)
class Case:
    """The request: operator, pass, device, number of threads, and the value of every axis."""

    op: str
    backward: bool
    device: str  # "cpu" or "cuda"
    device_number: int  # index of one of several GPUs
    threads: int
    bound: tuple  # processors, one for each thread; empty: its threads are not bound
    dtype: str
    axes: dict
    parameters: dict
    inputs: tuple
    outputs: tuple
    memory: mmap.mmap = field(repr=False)
    rule_file: str = ""  # of the score rule, where the case has one (operators say what it holds)

    @staticmethod
    def from_request(request, memory=MEMORY):
        def specs(name):
            return tuple(Spec(t["name"], t["dtype"], tuple(t["shape"]), t["offset"]) for t in request[name])

        return Case(
            op=request["op"],
            backward=request["pass"] == "backward",
            device="cuda" if request["backend"] == "cuda" else "cpu",
            device_number=request.get("device", 0),
            threads=max(1, request["threads"]),
            bound=tuple(request.get("bound", ())),
            dtype=request["dtype"],
            axes=request["axes"],
            parameters=request["parameters"],
            inputs=specs("inputs"),
            outputs=specs("outputs"),
            memory=mmap.mmap(memory, request["bytes"]),
            rule_file=request.get("rule_file", ""),
        )
