"""Training over ranks on `--backend cuda`, each on a device: messages are staged through the hosts, the curve is PyTorch's."""

import h5py
import numpy as np
import pytest
from test_ranks import MPIRUN, expected, ranks, training  # noqa: F401

pytestmark = pytest.mark.skipif(MPIRUN is None, reason="no mpirun")


@pytest.mark.parametrize("layout", [["--tensor", "2", "--sequence-parallel", "1"], ["--context", "2"],
                                    ["--context", "2", "--context-variant", "ulysses"]], ids=" ".join)
def test_trains_as_pytorch(ranks, expected, layout):  # noqa: F811
    steps = 4
    ranks.runs(2, *training(expected, steps=steps), *layout, "--backend", "cuda", "--log", "log.h5", timeout=600)
    with h5py.File(ranks.folder / "log.h5") as log:
        np.testing.assert_allclose(log["loss"][...], expected["train/losses"][:steps], rtol=2e-4)
        np.testing.assert_allclose(log["grad_norm"][...], expected["train/grad_norms"][:steps], rtol=2e-3)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("layout", [["--tensor", "2", "--sequence-parallel", "1"], ["--context", "2"]], ids=" ".join)
def test_trains_in_16_bits(ranks, expected, layout, dtype):  # noqa: F811
    ranks.runs(2, *training(expected, steps=2), *layout, "--backend", "cuda", "--dtype", dtype, "--log", "log.h5",
               timeout=600)
    with h5py.File(ranks.folder / "log.h5") as log:
        np.testing.assert_allclose(log["loss"][...], expected["train/losses"][:2], rtol=2e-2)
