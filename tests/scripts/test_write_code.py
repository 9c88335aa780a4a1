"""cmake/write_code.py on a project of a few lines: what counts as the code of a variant."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "cmake" / "write_code.py"
sys.path.insert(0, str(ROOT / "drivers" / "report" / "katt_report" / "published"))
from cpp_tokens import code_digest, token_hash  # noqa: E402

TABLE = """#include "ops/{op}/{op}.hpp"
{more}
namespace katt::{op} {{
template <class Exec> int forward_variants() {{ return {forward}; }}
template int forward_variants<int>();
}}
"""
FILES = {
    "src/core/types.hpp": "#pragma once\n",
    "src/op/variants.hpp": "#pragma once\n",
    "src/op/registry.hpp": '#pragma once\n#include "op/variants.hpp"\n',
    # gemm: a table, an engine, a reference, a schema
    "src/ops/gemm/gemm.hpp": '#include "core/types.hpp"\nnamespace katt::gemm { int multiply(); int exact(); }\n',
    "src/ops/gemm/gemm.cpp": TABLE.format(op="gemm", more='#include "ops/gemm/schema.hpp"', forward="multiply()"),
    "src/ops/gemm/engine.cpp": '#include "ops/gemm/gemm.hpp"\nint katt::gemm::multiply() { return 1; }\n',
    "src/ops/gemm/gemm_ref.cpp": '#include "ops/gemm/gemm.hpp"\nint katt::gemm::exact() { return 2; }\n',
    "src/ops/gemm/schema.hpp": "namespace katt::gemm { int check(); }\n",
    # norm: two rooms, the second of which calls gemm
    "src/ops/norm/norm.hpp": "namespace katt::norm { int fast(); int naive(); }\n",
    "src/ops/norm/norm.cpp": TABLE.format(
        op="norm", more='#include "ops/norm/fast/fast.hpp"', forward="fast() + naive()"
    ),
    "src/ops/norm/fast/fast.hpp": '#include "core/types.hpp"\n#ifdef NEVER\n#include "core/never.hpp"\n#endif\n',
    "src/ops/norm/fast/fast.cpp": '#include "ops/norm/norm.hpp"\nint katt::norm::fast() { return 3; }\n',
    "src/ops/norm/naive.cpp": '#include "ops/norm/norm.hpp"\n#include "ops/gemm/gemm.hpp"\n'
    "int katt::norm::naive() { return katt::gemm::multiply(); }\n",
    "src/core/never.hpp": "\n",
    # block: composed, swept like an operator, compiled together with another
    "src/nn/block/block.hpp": "int block();\n",
    "src/nn/block/block.cpp": '#include "nn/block/block.hpp"\n#include "ops/gemm/gemm.hpp"\n'
    "int block() { return katt::gemm::multiply(); }\n",
    "src/nn/block/bench/operator.cpp": '#include "op/registry.hpp"\n#include "nn/block/block.hpp"\nint swept() { return block(); }\n',
    "src/nn/other.cpp": "int other() { return 5; }\n",
}
ALONE = ["src/ops/gemm/gemm.cpp", "src/ops/gemm/engine.cpp", "src/ops/gemm/gemm_ref.cpp", "src/ops/norm/norm.cpp",
         "src/ops/norm/fast/fast.cpp", "src/ops/norm/naive.cpp"]  # fmt: skip
TOGETHER = {"nn": ["src/nn/block/block.cpp", "src/nn/other.cpp"], "driver": ["src/nn/block/bench/operator.cpp"]}


def write(source):
    for name, text in FILES.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    source, build = folder / "source", folder / "build"
    write(source)
    build.mkdir()
    objects = []
    for name in ALONE:
        objects.append(compiled(source, build, source / name, name.replace("/", "_")))
    for library, names in TOGETHER.items():
        unity = build / f"{library}.cpp"
        unity.write_text("".join(f'#include "{source / name}"\n' for name in names))
        objects.append(compiled(source, build, unity, library))
    (build / "objects").write_text("\n".join(objects))
    return source, build


@pytest.fixture
def project(built):
    """The project, compiled, none of whose sources has been edited since: their folder and that of the build."""
    write(built[0])
    return built


def compiled(source, build, file, name):
    place = f"{name}.o"
    subprocess.run(["c++", "-std=c++20", "-I", source / "src", "-c", file, "-o", place, "-MD", "-MF", f"{place}.d"],
                   cwd=build, check=True)  # fmt: skip
    return str(build / place)


def code_of(project):
    """(op, pass, variant) → (name, its files) in the generated source."""
    source, build = project
    subprocess.run([sys.executable, SCRIPT, "--source", source, "--build", build, "--objects", build / "objects", "--nm", "nm",
                    "-o", build / "code.cpp", "--only", "norm:fast/:fast", "--swept", "src/nn/block/bench:block,twin"],
                   check=True)  # fmt: skip
    text = (build / "code.cpp").read_text()
    files = re.findall(r'\{"(src/[^"]+)", "(\w+)"\}', text)
    numbers = dict(re.findall(r"of_(\w+)\[\] = \{([^}]*)\}", text))
    return {
        (op, a_pass, variant): (name, dict(files[int(number)] for number in numbers[name].split(", ")))
        for op, a_pass, variant, name in re.findall(r'\{"(\w+)", "(\w*)", "(\w*)", "(\w+)"', text)
    }


def test_a_variant_is_made_of_what_it_calls_and_includes(project):
    code = code_of(project)
    gemm = {f"src/ops/gemm/{name}" for name in ("gemm.hpp", "gemm.cpp", "engine.cpp")} | {"src/core/types.hpp"}
    assert set(code["gemm", "forward", ""][1]) == gemm, "without its reference and its schema"
    naive = {f"src/ops/norm/{name}" for name in ("norm.hpp", "norm.cpp", "naive.cpp")}
    assert set(code["norm", "forward", ""][1]) == naive | gemm - {"src/ops/gemm/gemm.cpp"}
    fast = {"src/ops/norm/fast/fast.hpp", "src/ops/norm/fast/fast.cpp"}
    assert set(code["norm", "forward", "fast"][1]) == naive | gemm - {"src/ops/gemm/gemm.cpp"} | fast, (
        "without never.hpp"
    )
    block = {f"src/nn/block/{name}" for name in ("block.hpp", "block.cpp", "bench/operator.cpp")}
    assert set(code["block", "backward", ""][1]) == block | gemm | {"src/op/variants.hpp"}, "without other.cpp"
    assert set(code["model", "", ""][1]) == block - {"src/nn/block/bench/operator.cpp"} | gemm | {"src/nn/other.cpp"}
    assert ("gemm", "backward", "") not in code
    assert code["twin", "forward", ""] == code["block", "forward", ""]


def test_names_are_those_of_the_tokens(project):
    source, _ = project
    for name, files in code_of(project).values():
        assert files == {file: token_hash((source / file).read_text()) for file in files}
        assert name == code_digest(files)


def test_a_comment_leaves_the_generated_source_as_it_is(project):
    source, build = project
    code_of(project)
    before = (build / "code.cpp").stat().st_mtime_ns
    engine = source / "src/ops/gemm/engine.cpp"
    engine.write_text("// an engine\n" + engine.read_text().replace(" { ", "\n{\n  "))
    code_of(project)
    assert (build / "code.cpp").stat().st_mtime_ns == before


def test_an_edit_renames_the_code_of_those_it_is_in(project):
    source, build = project
    before = code_of(project)
    fast = source / "src/ops/norm/fast/fast.cpp"
    fast.write_text(fast.read_text().replace("3", "4"))
    after = code_of(project)
    assert {key for key in before if before[key][0] != after[key][0]} == {("norm", "forward", "fast")}
    types = source / "src/core/types.hpp"
    types.write_text("#pragma once\nusing real = float;\n")
    changed = code_of(project)
    assert all(changed[key][0] != after[key][0] for key in after)


def test_objects_of_an_earlier_configuration_do_not_count(project):
    source, build = project
    before = code_of(project)
    gone = source / "src/ops/gemm/gone.cpp"
    gone.write_text('#include "ops/gemm/gemm.hpp"\nint katt::gemm::multiply() { return 1; }\n')
    compiled(source, build, gone, "gone")
    gone.unlink()
    assert code_of(project) == before
