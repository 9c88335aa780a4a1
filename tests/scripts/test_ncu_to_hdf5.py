"""scripts/ncu_to_hdf5: what it reads, and that it leaves a whole file or none."""

import resource
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "ncu_to_hdf5"
HEAD = '==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
ROWS = ''.join(f'"{i}","rope","dram__bytes","byte","1,{i:03}"\n' for i in range(400)) + '"9","rope","warps","","n/a"\n'


def convert(folder, text, **options):
    (folder / "in.csv").write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, "in.csv", "out.h5"], cwd=folder, capture_output=True, text=True,
                          check=False, **options)  # fmt: skip
    return done.returncode, done.stderr


def test_the_table(tmp_path):
    assert convert(tmp_path, HEAD + ROWS) == (0, "")
    with h5py.File(tmp_path / "out.h5") as file:
        table = file["metrics"][:]
    assert len(table) == 401 and table[7].tolist() == (7, b"rope", b"dram__bytes", b"byte", 1007)
    assert table[-1]["value"] != table[-1]["value"]
    assert convert(tmp_path, HEAD + ROWS) == (2, "katt: out.h5: exists, expected a new file\n")


@pytest.mark.parametrize("left", ['"9","rope', '"9","rope","dram__bytes"', '"9","rope","dram__bytes","byte","1', '"'])
def test_a_line_that_is_cut(tmp_path, left):
    status, told = convert(tmp_path, HEAD + ROWS + left)
    assert (status, told) == (2, "katt: in.csv: holds a line that is cut, expected what ncu --csv prints\n")
    assert not (tmp_path / "out.h5").exists()


def test_a_missing_column(tmp_path):
    assert convert(tmp_path, HEAD.replace("Unit", "Name") + ROWS)[1].startswith("katt: in.csv: has no column 'Metric Unit'")


def test_a_full_disk(tmp_path):
    status, told = convert(tmp_path, HEAD + ROWS,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))  # fmt: skip
    assert status == 2 and told.startswith("katt: out.h5: cannot be written") and len(told.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
