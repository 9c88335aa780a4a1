"""docs/schema.md names every column that the reader knows, and its example runs."""

import re

import pytest
import synthetic
from katt_report import schema


@pytest.fixture
def page(repository) -> str:
    return (repository / "docs" / "schema.md").read_text()


def test_every_column_is_documented(page):
    for name in [*schema.REQUIRED, *schema.OPTIONAL, *synthetic.COLUMNS]:
        assert f"`{name}`" in page, name


def test_every_attribute_is_documented(page):
    for name in synthetic.run_attributes():
        assert f"`{name}`" in page, name


def test_documented_types_are_those_that_are_read(page):
    words = {"string": schema.STRING, "int": schema.INTEGER, "real": schema.REAL}
    rows = re.findall(r"^\| (`[^|]+`) \| (string|int|real) \|", page, re.MULTILINE)
    known = {**schema.REQUIRED, **schema.OPTIONAL}
    seen = set()
    for names, kind in rows:
        for name in re.findall(r"`(\w+)`", names):
            if name in known and name not in seen:
                seen.add(name)
                # Byte counts are reals in the reader's eyes, which takes integers too.
                assert known[name] == words[kind] or schema.accepts(name, {"int": "i"}[kind]), name
    assert seen == set(known)


def test_the_example_runs(page, files, capsys):
    pytest.importorskip("pandas")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    places = {"results/zen4-avx512bf16-2c/attention_seqlen/attention_seqlen.h5": "seqlen", "old.h5": "seqlen", "new.h5": "seqlen"}
    scope = {}
    for block in code:
        for place, name in places.items():
            block = block.replace(f'"{place}"', repr(files[name]))
        exec(block, scope)
    shown = capsys.readouterr().out
    assert "flash" in shown
    assert "no regression" in shown


def test_lines_that_read_a_result_give_text(repository, files, capsys):
    pytest.importorskip("pandas")
    blocks = re.findall(r"```python\n(.*?)```", (repository / "docs/report.md").read_text(), re.DOTALL)
    blocks = [block for block in blocks if "load(" in block and "torch" not in block]
    assert blocks
    for block in blocks:
        scope = {}
        exec(block.replace('"mine.h5"', repr(files["seqlen"])), scope)
        for frame in (scope[key] for key in ("frame", "fast") if key in scope):
            texts = frame["status"].tolist()
            assert texts and all(type(text) is str for text in texts), "text, not bytes"
    assert "flash" in capsys.readouterr().out
