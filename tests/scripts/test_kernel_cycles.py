"""scripts/kernel_cycles.py counts the cycles of a kernel's main loop; the listings are made for these tests."""

import pytest
from sass_listings import assemble, listing, load

SS = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24"
RS = "HGMMA.64x128x16.F32.BF16 R88, R180, gdesc[UR16].tnspB, R88"


@pytest.fixture(scope="module")
def sass():
    return load("sass.py")


@pytest.fixture(scope="module")
def cycles():
    return load("kernel_cycles.py")


def instructions(sass, *lines):
    return next(sass.parse_kernels(listing("kernel", *assemble(*lines)))).instructions


def loop(sass, *between):
    """A kernel whose loop has two groups of products, then `between`."""
    return instructions(
        sass, "S2R R0, SR_TID.X", "@P3 EXIT", "head:", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R19+URZ], R0",
        "@!P1 BRA wait", "ready:", SS, f"{SS}, gsb0", RS, f"{RS}, gsb0", *between, "@P2 BRA masked", "back:",
        "FFMA R1, R1, R2, R3", "@P0 BRA head", "STG.E.128 desc[UR8][R18.64], R4", "EXIT", "wait:",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R19+URZ], R0", "@!P1 BRA wait", "BRA ready", "masked:",
        *["FSEL R1, R1, R2, P3"] * 40, "BRA back", "spin:", "BRA spin")


WAIT_1, WAIT_0 = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"
MUFU, FMNMX = "MUFU.EX2 R1, R2", "FMNMX R1, R2, R3, !PT"
LATE = (WAIT_1, FMNMX, MUFU, MUFU, MUFU, WAIT_0, MUFU)
EARLY = (WAIT_1, FMNMX, WAIT_0, MUFU, MUFU, MUFU, MUFU)


def test_the_hot_path_passes_cold_code_by(sass, cycles):
    counts = cycles.count(loop(sass, *LATE), threads=384, loaders=128, turns=True)
    path = counts.loop
    assert path.instructions == 16  # of the masks nothing, of the waiting one branch
    assert (path.hgmma, path.mufu, path.alu, path.fma) == (4 * 64, 4 * 8, 2, 1)
    assert path.right_bytes == 4 * 128 * 16 * 2 and path.operand_bytes == path.right_bytes + 2 * 64 * 16 * 2
    assert counts.groups == 2
    assert counts.epilogue_path.instructions >= 2 and counts.prologue_path.instructions == 2


def test_turns_and_a_pipelined_loop_hide_pipe_cycles(sass, cycles):
    one, separate = loop(sass, *LATE), loop(sass, WAIT_1, MUFU, MUFU, f"{RS}, gsb0", WAIT_0, MUFU, MUFU, FMNMX)
    both = cycles.count(one, 384, 128, turns=True, fill=0)
    turns = cycles.count(separate, 384, 128, turns=True, fill=0)
    pipelined = cycles.count(one, 384, 128, fill=0)
    neither = cycles.count(separate, 384, 128, fill=0)
    assert [each.loop.phases for each in (both, turns)] == [1, 2]
    assert [each.hidden_behind for each in (both, turns, pipelined, neither)] == [2, 1, 1, 0]
    pipes, tensor = 2 * 35, 2 * 256
    assert both.iteration == pytest.approx(tensor + cycles.UNHIDDEN ** 2 * pipes)
    assert pipelined.iteration == pytest.approx(tensor + cycles.UNHIDDEN * pipes)
    assert turns.iteration == pytest.approx(2 * 320 + cycles.UNHIDDEN * pipes)
    assert neither.iteration == pytest.approx(max(2 * 320, neither.shared) + pipes)
    assert both.tflops() > pipelined.tflops()
    assert both.formula() == "512 + 0.71^2·70"


def test_where_the_wait_stands_is_seen(sass, cycles):
    late, early = (cycles.count(loop(sass, *lines), 384, 128, turns=True) for lines in (LATE, EARLY))
    assert late.loop.beside_products == 0.75 and early.loop.beside_products == 0
    assert late.loop.phases == early.loop.phases == 1


def test_products_that_the_last_iteration_left_under_way_count(sass, cycles):
    rotated = loop(sass, WAIT_1, FMNMX, MUFU)  # never waits for the last group
    assert cycles.count(rotated, 384, 128, turns=True).loop.beside_products == 1


def test_memory_and_issue_bound_an_iteration(sass, cycles):
    counts = cycles.count(loop(sass, *LATE), 384, 128, turns=True)
    # Operands of two groups, and the tile that is loaded, at 128 bytes a cycle.
    assert counts.shared == (2 * (16384 + 4096) + 16384) / 128
    many = cycles.count(loop(sass, *LATE, *["IADD3 R1, R2, R3, RZ"] * 600), 384, 128, turns=True)
    assert many.issue == 2 * 616 and many.iteration >= many.issue


def test_a_loader_by_cp_async_costs_pipe_cycles(sass, cycles):
    text = ["S2R R0, SR_TID.X", "@P4 BRA loader", "head:", f"{SS}, gsb0", WAIT_0, MUFU, "@P0 BRA head", "EXIT",
            "loader:", "IADD3 R1, R2, R3, RZ", "LDGSTS.E.BYPASS.128 [R1], desc[UR8][R2.64]", "@P0 BRA loader", "EXIT"]
    counts = cycles.count(instructions(sass, *text), 384, 128, turns=True)
    # 4096 bytes are 256 chunks, two of each thread of four warps, with an IADD3 each.
    assert counts.loader == 2 * 2
    assert cycles.count(instructions(sass, *text[:-2], "EXIT"), 384, 128).loader == 0  # no loop


def test_warps_on_mma_sync_hide_each_others_pipes_and_shared_memory(sass, cycles):
    ldsm, hmma = "LDSM.16.M88.4 R4, [R1]", "HMMA.16816.F32.BF16 R8, R4, R6, R8"
    text = ["head:", "LDGSTS.E.BYPASS.128 [R1], desc[UR8][R2.64]", ldsm, *[hmma] * 8, MUFU, "@P0 BRA head", "EXIT"]
    one = cycles.count(instructions(sass, *text), 128)
    assert one.tensor == 8 * cycles.HMMA_CYCLES and one.flop == 4 * 8 * 16 * 8 * 16 * 2
    assert one.fill_bytes == 128 * 16 and one.shared == 4 * (4 + 4)  # LDSM and LDGSTS of four warps
    assert one.iteration == max(one.tensor + 8 + one.shared, one.l2)
    two = cycles.count(instructions(sass, *text), 128, blocks=2)
    assert two.iteration == pytest.approx(max(2 * one.tensor + cycles.UNHIDDEN * 2 * (8 + one.shared), two.l2))


def test_warps_that_stream_read_their_own_right_sides(sass, cycles):
    hmma = "HMMA.16816.F32.BF16 R8, R4, R6, R8"
    counts = cycles.count(instructions(sass, "head:", hmma, hmma, MUFU, "@P0 BRA head", "EXIT"), 128, streams=True)
    assert counts.fill_bytes == 4 * 2 * 256  # of four warps two 8 × 16 operands each
    assert counts.gb_s(1) == cycles.READ_SHARE
    assert counts.gb_s(1e9) == pytest.approx(132 * 2048 * cycles.CLOCK / counts.iteration / 1e9)


def test_kernels_without_products_have_no_cycles(sass, cycles):
    assert cycles.count(instructions(sass, "head:", "FADD R1, R1, R2", "@P0 BRA head", "EXIT"), 128) is None


def test_copies_in_a_loop_with_tma_are_told(sass):
    rules = load("kernel_rules.py")
    tma, copy = "UTMALDG.4D [UR8], [UR4]", "LDGSTS.E.BYPASS.128 [R1], desc[UR8][R2.64]"
    both = ["head:", tma, copy, "@P0 BRA head", "EXIT"]
    apart = ["outer:", copy, "head:", tma, "@P0 BRA head", "@P1 BRA outer", "EXIT"]
    assert rules.copies_beside_tma(instructions(sass, *both))
    assert not rules.copies_beside_tma(instructions(sass, *apart))


def test_rules_of_a_loop(sass, cycles):
    rules = load("kernel_rules.py")
    row = {"cycles": cycles.count(loop(sass, *EARLY), 384, 128, turns=True)}
    assert list(rules.objections_to_loop(row, {"beside": 0.25, "instructions": 15})) == [
        "0 % of MUFU before the wait for products under way, expected at least 25 %",
        "16 instructions an iteration, expected at most 15"]
    row["cycles"] = cycles.count(loop(sass, *LATE), 384, 128, turns=True)
    assert list(rules.objections_to_loop(row, {"beside": 0.25, "instructions": 16})) == []


@pytest.mark.parametrize("seq_q, seq_kv", [(1, 1), (1, 7), (7, 7), (3, 11), (11, 3)])
def test_pairs_of_a_causal_problem(cycles, seq_q, seq_kv):
    pairs = sum(max(0, min(seq_kv, i + 1 + seq_kv - seq_q)) for i in range(seq_q))
    assert cycles.Attention(seq_q, seq_kv, 64, batch=2, heads=3, causal=True).pairs == 6 * pairs
    assert cycles.Attention(seq_q, seq_kv, 64).flop == 4 * 64 * seq_q * seq_kv


def test_iterations_of_blocks(cycles):
    causal = cycles.Attention(300, 300, 64, heads=4, kv_heads=4, causal=True)
    assert list(cycles.iterations(causal, 128, 64, "keys")) == [2, 4, 5]
    assert list(cycles.iterations(causal, 128, 64, "queries")) == [5, 3, 1]
    grouped = cycles.Attention(300, 300, 64, heads=4, kv_heads=2, causal=True)  # two rows a query
    assert list(cycles.iterations(grouped, 128, 64, "keys")) == [1, 2, 3, 4, 5]
    full = cycles.Attention(300, 77, 64)
    assert list(cycles.iterations(full, 128, 64, "keys")) == [2, 2, 2]


def test_time_of_a_problem_follows_its_tiles(sass, cycles):
    counts = cycles.count(loop(sass, *LATE), 384, 128, turns=True)
    clock, rows = cycles.CLOCK, 128 * cycles.MULTIPROCESSORS
    one = cycles.attention_time(counts, cycles.Attention(rows, 1280, 64), 128, 128)
    assert one == pytest.approx((counts.prologue + 10 * counts.iteration + counts.epilogue) / clock + cycles.LAUNCH)
    two = cycles.attention_time(counts, cycles.Attention(rows + 1, 1280, 64), 128, 128)
    assert two - cycles.LAUNCH == pytest.approx(2 * (one - cycles.LAUNCH))


def test_a_memory_bound_kernel_has_the_least_of_three_speeds(sass, cycles):
    gpu = {"multiprocessors": 132, "memory_gb_s": 3352}
    load_, store = "LDG.E.128 R4, desc[UR8][R2.64]", "STG.E.128 desc[UR8][R2.64], R4"
    wide = instructions(sass, "head:", load_, load_, store, "@P0 BRA head", "EXIT")
    share = (cycles.READ_SHARE + 2 * cycles.COPY_SHARE) / 3  # a third of the bytes is stored, half of a copy's
    assert cycles.memory_speed(wide, 1 << 20, gpu) == pytest.approx(share * 3352)
    assert cycles.memory_speed(wide, 8192, gpu) == pytest.approx(8192 / cycles.LATENCY * 132 / 1e9)
    busy = instructions(sass, "head:", load_, *[MUFU] * 400, store, "@P0 BRA head", "EXIT")
    assert cycles.memory_speed(busy, 1 << 20, gpu) == pytest.approx(4 * 1024 / 3200 * cycles.CLOCK * 132 / 1e9)


def test_published_kernels_are_found_by_name(cycles):
    calibration = load("kernel_calibration.py")
    forward = next(point for point in calibration.PUBLISHED if not point.backward)
    assert forward.pattern.startswith("CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1>>, ")
    assert "cute::C<128>, cute::C<176>, cute::C<128>>, 128, cutlass::bfloat16_t" in forward.pattern


def test_the_fitted_constant_recovers_itself(sass, cycles):
    calibration = load("kernel_calibration.py")
    points = []
    for lines in (LATE, EARLY):
        counts = calibration.kernel_cycles.count(loop(sass, *lines, *[MUFU] * 20), 384, 128, turns=True)
        point = calibration.Published(128, 128, calibration.attention(128, 8192, False), 0, "here")
        point.tflops = calibration.predicted(calibration.replace(counts, unhidden=0.6), point)
        points.append((point, counts, 0))
    assert calibration.fit(points) == 0.6
