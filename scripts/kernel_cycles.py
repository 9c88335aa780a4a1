"""Cycles of a CUDA kernel on a Hopper multiprocessor, from its SASS: what each unit is busy with along the hot path
of its main loop, and from that the time of a whole problem. Imported by scripts/kernel_table; for example

    cycles = kernel_cycles.count(instructions, threads=384, loaders=128, turns=True)
    print(cycles.formula(), cycles.tflops())
    time_s = kernel_cycles.attention_time(cycles, Attention(batch=2, heads=16, seq_q=8192, seq_kv=8192, causal=True))

The hot path is the way through the innermost loop with matrix products that executes most of them, and of these the
shortest: cold code (masks, biases, waiting) is passed by.

Cycles of a scheduler for a warp's instruction: MUFU 8, ALU (comparisons, conversions, logic) 2, FFMA, FADD and FMUL 1,
IMAD 2 (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"). A warpgroup's m64nNk16 takes N/2
(4096 floating-point operations a cycle); it reads 32·N bytes of shared memory, and 2 KiB more where A lies there, too.
Shared memory has 128 bytes a cycle.

Two things hide a warpgroup's pipe cycles (MUFU + ALU + FMA of one of its warps) behind products: turns with the other
warpgroups, and a pipelined loop, which issues the products of two tiles together (S of a tile, P·V of the one before),
so that the loop has one phase of products and one of the softmax. Each leaves the share UNHIDDEN of the pipe cycles
uncovered, the model's one fitted constant:

    in turns, pipelined   T = Σ HGMMA + UNHIDDEN² · Σ pipes
    one of the two        T = Σ HGMMA + UNHIDDEN · Σ pipes
    neither (in step)     T = max(Σ HGMMA, shared memory) + Σ pipes
    mma.sync              T = Σ HMMA + UNHIDDEN^(warps of a scheduler - 1) · (Σ pipes + shared memory)

and T is at least what shared memory, L2 and issue need. A tile of rows costs prologue + iterations · T + epilogue.
"""

import dataclasses
import heapq
import re

import sass

UNHIDDEN = 0.71
# An H100 SXM under load. Measured on one: the rates of this module's text; SM clocks of 1.65 to 1.8 GHz at full load;
# L2 7.3 TB/s; loads from L2 384 cycles, from memory 661, bulk copies of 32 KiB 620 and 1250; HMMA 6.2 to 6.3 cycles;
# memory 3146 GB/s read, 2851 copied, of 3352.
CLOCK = 1.755e9
MULTIPROCESSORS = 132
L2_BYTES_PER_CYCLE = 7.3e12 / CLOCK / MULTIPROCESSORS  # of one multiprocessor, with all of them reading
FIRST_BYTE = 1000  # cycles from a load's issue to the first products: TMA or cp.async from L2, barrier, descriptor
HMMA_CYCLES = 6.3  # of a scheduler, m16n8k16: 0.63 of wgmma's rate
READ_SHARE, COPY_SHARE = 0.94, 0.85  # of the data sheet's bandwidth
# Latency of a load with busy memory, in seconds: 0.5 to 0.6 µs on an idle device (Luo et al. 2024,
# arXiv:2402.13499), and the queues before it.
LATENCY = 0.7e-6
LAUNCH = 4e-6  # seconds before the first block and after the last

SHARED_BYTES_PER_CYCLE = 128
ALU = {"FMNMX", "FMNMX3", "F2FP", "FSEL", "FSETP", "FSET", "ISETP", "SEL", "LOP3", "IADD3", "PRMT", "SHF", "LEA",
       "MOV", "VIMNMX", "IMNMX", "PLOP3", "P2R", "R2P", "VIADD", "VIADDMNMX", "I2FP", "HMNMX2", "HSETP2", "VOTE",
       "BMSK", "SGXT", "IABS"}
FMA = {"FFMA": 1, "FADD": 1, "FMUL": 1, "IMAD": 2, "HFMA2": 1, "HADD2": 1, "HMUL2": 1}
MUFU = {"MUFU", "F2I", "I2F", "F2F", "FCHK", "POPC", "FLO"}
SHARED = {"LDS", "STS", "LDSM", "STSM", "LDGSTS", "ATOMS", "SHFL"}


def width_of(operation):
    """Bytes of an access: LDG.E.128 has 16, LDG.E four."""
    parts = operation.split(".")
    for suffix, width in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2), ("64", 8), ("128", 16)):
        if suffix in parts:
            return width
    return 4


@dataclasses.dataclass
class Path:
    """Work of the units for one warp along a path, in cycles unless the name says otherwise."""
    instructions: int = 0
    hgmma: float = 0.0  # of its warpgroup
    hmma: int = 0  # instructions
    mufu: int = 0
    alu: int = 0
    fma: int = 0
    shared: float = 0.0
    operand_bytes: int = 0  # of its warpgroup's products in shared memory
    right_bytes: int = 0  # of their right sides alone, which all warpgroups share; a warp's of HMMA
    copied_bytes: int = 0  # by a thread's LDGSTS
    beside_products: float = 0.0  # share of MUFU while products of its own are under way
    phases: int = 0  # stretches of wgmma, between which there are MUFU or a wait for all of them, of a loop

    @property
    def pipes(self):
        return self.mufu + self.alu + self.fma


def count_path(instructions):
    path = Path(instructions=len(instructions))
    for instruction in instructions:
        opcode = instruction.opcode
        if opcode == "HGMMA":
            count_product(path, instruction)
        elif opcode in SHARED:
            path.shared += shared_cycles(instruction)
            path.copied_bytes += width_of(instruction.operation) * (opcode == "LDGSTS")
        elif opcode == "HMMA":
            path.hmma += 1
            path.right_bytes += 8 * 16 * 2
        path.mufu += 8 * (opcode in MUFU)
        path.alu += 2 * (opcode in ALU)
        path.fma += FMA.get(opcode, 0)
    path.beside_products = beside_products(instructions)
    order = [each.opcode == "HGMMA" for each in instructions
             if each.opcode in ("HGMMA", "MUFU") or waits_for(each) == 0]
    path.phases = sum(product and not before for product, before in zip(order, order[-1:] + order))
    return path


def count_product(path, instruction):
    if "gdesc[URZ]" in instruction.operands:
        return  # an empty one, behind a product that ptxas serialized
    _, n, k = map(int, re.search(r"(\d+)x(\d+)x(\d+)", instruction.operation).groups())
    path.hgmma += n / 2 * k / 16
    right = n * k * 2
    left_in_shared = instruction.operands.split(",")[1].strip().startswith("gdesc")
    path.right_bytes += right
    path.operand_bytes += right + 64 * k * 2 * left_in_shared


def shared_cycles(instruction):
    if instruction.opcode in ("LDSM", "STSM"):
        matrices = re.search(r"\.M88\.(\d)", instruction.operation)
        return int(matrices[1]) if matrices else 1
    return 1 if instruction.opcode == "SHFL" else width_of(instruction.operation) / 4


def waits_for(instruction):
    """How many groups of products a wait leaves under way; None of other instructions."""
    match = re.match(r"gsb0, 0x(\w+)", instruction.operands)
    return int(match[1], 16) if match and instruction.operation == "WARPGROUP.DEPBAR.LE" else None


def beside_products(instructions):
    """Share of the MUFU of a loop that execute while a group of products of the same warp is under way."""
    under_way = beside = executed = 0
    for _ in range(2):  # what the last iteration left under way counts
        beside = executed = 0
        for instruction in instructions:
            if instruction.opcode == "HGMMA" and "gsb0" in instruction.operands:
                under_way += 1
            elif (left := waits_for(instruction)) is not None:
                under_way = min(under_way, left)
            elif instruction.opcode == "MUFU":
                executed += 1
                beside += under_way > 0
    return beside / executed if executed else 0.0


@dataclasses.dataclass
class Cycles:
    """A kernel's cycles on a multiprocessor."""
    loop: Path
    prologue_path: Path
    epilogue_path: Path
    groups: int  # computing warpgroups of the resident blocks
    blocks: int = 1  # resident
    turns: bool = False
    persistent: bool = False  # loads of the next tile are under way during the epilogue
    fill: float = 1.0  # loaded bytes over those that the products' right sides read
    loader: float = 0.0  # pipe cycles of the loading warps, of one scheduler
    streams: bool = False  # each warp of mma.sync has keys and values of its own
    unhidden: float = UNHIDDEN

    @property
    def tensor(self):
        return self.groups * (self.loop.hgmma + HMMA_CYCLES * self.loop.hmma)

    @property
    def pipes(self):
        return self.groups * self.loop.pipes + self.loader

    @property
    def uncovered(self):
        """Pipe cycles that products of others must hide: wgmma reads shared memory itself, mma.sync waits for LDSM."""
        return self.pipes + (self.shared if self.loop.hmma else 0)

    @property
    def issue(self):
        return self.groups * self.loop.instructions

    @property
    def fill_bytes(self):
        """Bytes that an iteration of all resident blocks loads."""
        if self.loop.hmma and self.streams:
            return self.fill * 4 * self.groups * self.loop.right_bytes
        if self.loop.copied_bytes:
            return 128 * self.groups * self.loop.copied_bytes
        return self.fill * self.loop.right_bytes * self.blocks

    @property
    def shared(self):
        in_shared = 0 if self.loop.copied_bytes else self.fill_bytes / SHARED_BYTES_PER_CYCLE
        return (self.groups * self.loop.operand_bytes / SHARED_BYTES_PER_CYCLE + 4 * self.groups * self.loop.shared
                + in_shared)

    @property
    def l2(self):
        return self.fill_bytes / L2_BYTES_PER_CYCLE

    @property
    def hidden_behind(self):
        """How many things hide a warpgroup's pipe cycles."""
        if self.loop.hmma:
            return self.groups - 1
        return self.turns + (self.loop.phases == 1)

    @property
    def iteration(self):
        """Cycles of an iteration of all resident blocks."""
        if self.hidden_behind or self.loop.hmma:
            main = self.tensor + self.unhidden ** self.hidden_behind * self.uncovered
        else:
            main = max(self.tensor, self.shared) + self.pipes
        return max(main, self.shared, self.l2, self.issue)

    def formula(self):
        if self.hidden_behind or self.loop.hmma:
            text = f"{self.tensor:.0f} + {self.unhidden:.2f}^{self.hidden_behind}·{self.uncovered:.0f}"
        else:
            text = f"max({self.tensor:.0f}, {self.shared:.0f}) + {self.pipes:.0f}"
        limits = {"shared": self.shared, "L2": self.l2, "issue": self.issue}
        name = max(limits, key=limits.get)
        return text if self.iteration > limits[name] else f"{name} {limits[name]:.0f}"

    def overhead(self, path):
        """Cycles of a prologue or epilogue beyond the iterations that it holds (the first scores, the last values)."""
        busy = self.groups * (path.hgmma + HMMA_CYCLES * path.hmma + max(path.pipes, path.instructions))
        of_loop = self.loop.hgmma + HMMA_CYCLES * self.loop.hmma
        held = (path.hgmma + HMMA_CYCLES * path.hmma) / of_loop if of_loop else 0
        return max(0.0, busy - held * self.iteration)

    @property
    def prologue(self):
        return self.overhead(self.prologue_path) + (0 if self.persistent else FIRST_BYTE)

    @property
    def epilogue(self):
        return self.overhead(self.epilogue_path)

    @property
    def flop(self):
        """Floating-point operations of an iteration's products."""
        return self.groups * (4096 * self.loop.hgmma + 4 * 4096 * self.loop.hmma)

    def tflops(self, clock=CLOCK, multiprocessors=MULTIPROCESSORS):
        """TFLOP/s of the loop alone."""
        return multiprocessors * self.flop * clock / self.iteration / 1e12

    def gb_s(self, memory_gb_s):
        """GB/s of a kernel that reads each byte once: what the loop takes in, or the memory's speed."""
        return min(READ_SHARE * memory_gb_s, MULTIPROCESSORS * self.fill_bytes * CLOCK / self.iteration / 1e9)


def count(instructions, threads, loaders=0, blocks=1, **options):
    """The cycles of a kernel with matrix products, or None of one without a loop of them. loaders: threads of a block
    that only load; blocks: resident ones; options: fields of Cycles."""
    flow = sass.ControlFlow(instructions)
    loops = flow.loops()
    head, loop = hot_loop(flow, loops, is_product)
    if loop is None:
        return None
    everywhere = set(range(len(flow.blocks)))
    ends = [i for i, after in enumerate(flow.after) if not after]
    before = flow.path(0, [head], everywhere, is_product) or []
    after = flow.path(head, ends, everywhere, stores) or []
    groups = blocks * (threads - loaders) // 128
    prologue = count_path(before[:-len(flow.blocks[head])] if before else [])
    epilogue = count_path(after[len(flow.blocks[head]):])
    cycles = Cycles(count_path(loop), prologue, epilogue, max(groups, 1), blocks, **options)
    cycles.loader = loader_cycles(flow, loops, cycles.fill_bytes, loaders)
    return cycles


def is_product(instruction):
    return instruction.opcode in ("HGMMA", "HMMA")


def stores(instruction):
    return instruction.opcode in ("STG", "UTMASTG", "UBLKCP")


def hot_loop(flow, loops, wanted):
    """Head and hot path of the innermost loop with wanted instructions; of several the one that needs the fewest
    instructions for each of them (the others have masks)."""
    holding = [head for head, body in loops.items() if any(wanted(i) for block in body for i in flow.blocks[block])]
    best = (None, None)
    for head in holding:
        if any(loops[other] < loops[head] for other in holding):
            continue
        lasts = [last for last, target in flow.back_edges if target == head]
        path = flow.path(head, lasts, loops[head], wanted)
        if best[1] is None or cost(path, wanted) < cost(best[1], wanted):
            best = (head, path)
    return best


def cost(path, wanted):
    return len(path) / max(1, sum(map(wanted, path)))


def loader_cycles(flow, loops, fill_bytes, loaders):
    """Pipe cycles of one scheduler for the addresses of an iteration's cp.async; TMA needs none."""
    if any(each.opcode == "UTMALDG" for block in flow.blocks for each in block):
        return 0.0
    _, path = hot_loop(flow, loops, lambda instruction: instruction.opcode == "LDGSTS")
    if not loaders or path is None:
        return 0.0
    counts = count_path(path)
    return counts.pipes / counts.copied_bytes * fill_bytes / loaders * (loaders / 128)


@dataclasses.dataclass
class Attention:
    """A problem of attention. Rows of the query heads of a K/V head are packed."""
    seq_q: int
    seq_kv: int
    head_dim: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0  # as many as heads
    causal: bool = False

    @property
    def pairs(self):
        """Visible pairs of a query and a key, of all heads."""
        pairs = self.seq_q * self.seq_kv
        if self.causal:
            hidden = min(self.seq_q, self.seq_kv) - 1  # keys that the first of the last rows does not see
            pairs -= hidden * (hidden + 1) // 2 + max(0, self.seq_q - self.seq_kv) * self.seq_kv
        return self.batch * self.heads * pairs

    @property
    def flop(self):
        """Operations of the forward pass: 4·head_dim a visible pair. The backward pass has 2.5 times as many."""
        return 4 * self.pairs * self.head_dim


def attention_time(cycles, problem, block, tile, over="keys", clock=CLOCK):
    """Seconds of an attention kernel whose blocks have `block` packed rows and meet `tile` keys an iteration (over
    keys; of dK and dV over "queries": blocks of keys that meet rows). Blocks go to multiprocessors as they become free:
    longest first within a K/V head, of persistent kernels among all heads."""
    heads = problem.batch * (problem.kv_heads or problem.heads)
    lengths = sorted(iterations(problem, block, tile, over), reverse=True) * heads
    if cycles.persistent:
        lengths.sort(reverse=True)
    workers = [0.0] * (MULTIPROCESSORS * cycles.blocks)
    for length in lengths:
        work = length * cycles.iteration + (cycles.prologue + cycles.epilogue if length else 0)
        heapq.heapreplace(workers, workers[0] + work)
    return max(workers) / clock + LAUNCH


def iterations(problem, block, tile, over):
    """Tiles that each block of one K/V head meets."""
    group = problem.heads // (problem.kv_heads or problem.heads)
    rows = problem.seq_q * group
    shift = problem.seq_kv - problem.seq_q  # the last query sees all keys
    if over == "keys":
        for first in range(0, rows, block):
            last = min(first + block, rows) - 1
            seen = min(problem.seq_kv, last // group + 1 + shift) if problem.causal else problem.seq_kv
            yield -(-max(0, seen) // tile)
    else:
        for first in range(0, problem.seq_kv, block):
            from_row = max(0, first - shift) * group if problem.causal else 0
            yield -(-rows // tile) - min(rows, from_row) // tile


def memory_speed(instructions, bytes_in_flight, gpu):
    """GB/s of a memory-bound kernel: the least of what the memory gives, what its bytes on the way allow (Little's law)
    and what its instructions for each byte allow. gpu: a dict with multiprocessors and memory_gb_s."""
    flow = sass.ControlFlow(instructions)
    _, path = hot_loop(flow, flow.loops(), is_wide_access)
    if path is None:
        ends = [i for i, after in enumerate(flow.after) if not after]
        path = flow.path(0, ends, set(range(len(flow.blocks))), is_wide_access) or instructions
    counts = count_path(path)
    loaded, stored = (32 * sum(width_of(each.operation) for each in path if each.opcode == opcode)
                      for opcode in ("LDG", "STG"))
    accessed = loaded + stored
    # Reading alone is faster than copying, half of whose bytes are stored.
    share = READ_SHARE - (READ_SHARE - COPY_SHARE) * min(1.0, 2 * stored / accessed)
    busy = max(counts.instructions, counts.mufu, counts.alu, counts.fma)
    return min(share * gpu["memory_gb_s"], bytes_in_flight / LATENCY * gpu["multiprocessors"] / 1e9,
               4 * accessed / busy * CLOCK * gpu["multiprocessors"] / 1e9)


def is_wide_access(instruction):
    return instruction.opcode in ("LDG", "STG") and width_of(instruction.operation) >= 4
