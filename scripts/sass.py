"""SASS of CUDA kernels: cuobjdump's listings, control flow, and the path that a kernel's time goes to. Imported by
scripts/kernel_table and kernel_cycles."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent


def die(message):
    print(f"katt: {message}", file=sys.stderr)
    sys.exit(2)


def pip_install(target, *what):
    """Installs packages without what they depend on in a folder; False when that fails (no network)."""
    venv = HERE.parent / "build" / "venv" / "bin" / "python"
    command = [str(venv) if venv.exists() else sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command += ["install", "-q", "--root-user-action=ignore", "--no-deps", "--target", str(target), *what]
    return subprocess.run(command, check=False).returncode == 0


def find_tools():
    """The folder of cuobjdump, made from the pinned Python packages where the system has none."""
    found = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    if found:
        return os.path.dirname(found)
    target = HERE.parent / "build" / "cuda_tools"
    tools = target / "nvidia" / "cu13" / "bin"
    pinned = str(HERE / "cuda_tools_requirements.txt")
    if not (tools / "cuobjdump").exists() and not pip_install(target, "-r", pinned):
        die("cuobjdump is neither on PATH nor could it be installed (is there a network?)")
    for tool in ("cuobjdump", "nvdisasm"):
        (tools / tool).chmod(0o755)
    return str(tools)


def lines_of(tools, file, *options):
    environment = dict(os.environ, PATH=tools + os.pathsep + os.environ.get("PATH", ""))
    command = [os.path.join(tools, "cuobjdump"), *options, str(file)]
    # Its warnings name every other kernel of a file when it is asked for one.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    yield from process.stdout
    if process.wait() != 0:
        die(f"{' '.join(command)} failed with exit status {process.returncode}")


def demangle(names):
    """The names of functions as the source has them, in order."""
    return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
                          ).stdout.splitlines()


class Instruction(NamedTuple):
    address: int
    operation: str  # "HGMMA.64x128x16.F32.BF16"
    operands: str
    predicate: str = ""  # "!P2", "" of one that always executes

    @property
    def opcode(self):
        return self.operation.split(".")[0]


INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)([^;/]*)")


class Kernel(NamedTuple):
    name: str
    architecture: str  # "90a", "" where the listing does not say
    instructions: list


def parse_kernels(lines):
    """Yields every kernel of a listing of cuobjdump, with its instructions in order."""
    architecture, kernel = "", None
    for line in lines:
        if match := re.match(r"\s*code for sm_(\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            if kernel:
                yield kernel
            kernel = Kernel(match[1], architecture, [])
        elif kernel and (match := INSTRUCTION.match(line)):
            kernel.instructions.append(Instruction(int(match[1], 16), match[3], match[4].strip(), match[2] or ""))
    if kernel:
        yield kernel


def target_of(operands):
    match = re.match(r"(?:.*\s)?`?\(?0x([0-9a-f]+)\)?$", operands)
    return int(match[1], 16) if match else None


class ControlFlow:
    """The blocks of a kernel, numbered in an order in which only loops go back (reverse postorder), and its loops.
    blocks[i] is a list of instructions, after[i] the blocks that follow."""

    def __init__(self, instructions):
        blocks, successors = basic_blocks(instructions)
        order = reverse_postorder(successors)
        number = {block: i for i, block in enumerate(order)}
        self.blocks = [blocks[block] for block in order]
        self.after = [[number[next_] for next_ in successors[block]] for block in order]
        self.back_edges = [(i, j) for i, after in enumerate(self.after) for j in after if j <= i]

    def loops(self):
        """Head -> blocks, of every loop."""
        before = [[] for _ in self.blocks]
        for i, after in enumerate(self.after):
            for j in after:
                before[j].append(i)
        loops = {}
        for last, head in self.back_edges:
            body, waiting = {head}, [last]
            while waiting:
                block = waiting.pop()
                if block not in body:
                    body.add(block)
                    waiting += before[block]
            if head == 0 or 0 not in body:  # else it has a second way in
                loops.setdefault(head, set()).update(body)
        return loops

    def path(self, first, lasts, among, weight):
        """The instructions along the way from block `first` to one of `lasts` through blocks of `among`, each at most
        once: the way of the greatest weight, the sum of weight(instruction), and of equal ones the shortest; None
        where there is no way."""
        best = {first: (*self.value(first, weight), None)}
        for i in sorted(among):
            if i not in best:
                continue
            for j in self.after[i]:
                if j > i and j in among:
                    gained, length = self.value(j, weight)
                    candidate = (best[i][0] + gained, best[i][1] + length)
                    if j not in best or candidate > best[j][:2]:
                        best[j] = (*candidate, i)
        ends = [block for block in lasts if block in best]
        if not ends:
            return None
        block, way = max(ends, key=lambda end: best[end][:2]), []
        while block is not None:
            way.append(block)
            block = best[block][2]
        return [instruction for block in reversed(way) for instruction in self.blocks[block]]

    def value(self, block, weight):
        return sum(map(weight, self.blocks[block])), -len(self.blocks[block])


def basic_blocks(instructions):
    """Blocks by the address of their first instruction, and the addresses that follow each."""
    starts = {instructions[0].address}
    for instruction, following in itertools.pairwise(instructions):
        if instruction.opcode in ("BRA", "EXIT", "RET"):
            starts.add(following.address)
        if instruction.opcode == "BRA":
            starts.add(target_of(instruction.operands))
    blocks, current = {}, None
    for instruction in instructions:
        if instruction.address in starts:
            current = blocks[instruction.address] = []
        current.append(instruction)
    addresses = list(blocks)
    after = {}
    for address, following in zip(addresses, [*addresses[1:], None]):
        last = blocks[address][-1]
        goes_on = last.opcode not in ("BRA", "EXIT", "RET") or is_conditional(last)
        after[address] = [following] if goes_on and following is not None else []
        if last.opcode == "BRA" and (target := target_of(last.operands)) in blocks:
            after[address].append(target)
    return blocks, after


def is_conditional(instruction):
    """Whether a branch may be passed by: @P0 BRA x, BRA P0, x and BRA.DIV UR4, x."""
    return bool(instruction.predicate) or "," in instruction.operands


def reverse_postorder(after):
    first = next(iter(after))
    order, seen, stack = [], {first}, [(first, iter(after[first]))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(after[following])))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]
