"""What the scripts of a page do: tables are sorted and filtered; the page is whole without them."""

import re

import pytest
from browser import driven, needs_browser, shown
from katt_report import load
from katt_report.pages import scripts
from katt_report.pages.markup import page, small, status, table
from katt_report.pages.page import report

CLICK = "const head = (n) => document.querySelectorAll('th')[n].querySelector('button');"
COLUMN = "const column = (n) => Array.from(document.querySelector('tbody').rows, (row) => row.cells[n].textContent);"


def test_the_page_is_whole_without_scripts(files):
    text = report(load(files["tiling"]))["report.html"].decode()
    bare = re.sub("<script.*?</script>", "", text, flags=re.DOTALL)
    for control in ("<button", "<input", 'class="tools"'):
        assert control not in bare
    assert "<noscript" not in text and len(re.findall("<tr", bare)) > 34


def test_only_its_own_script_may_run(tmp_path):
    text = page("t", "u", table([("a", "")], [[f"{n}"] for n in range(9)]) + "<script>document.title = 'bad'</script>")
    assert "script-src 'sha256-" in text and "default-src 'none'" in text
    dom = shown(text, tmp_path)
    assert "<title>t</title>" in dom and 'class="tools"' in dom, "the page's own runs, another one does not"


def test_data_cannot_end_its_element():
    held = scripts.data("x", {"name": "</script><script>alert(1)//<!-- &amp;\u2028"})
    assert held.count("<") == 2 and "\u2028" not in held and "&" not in held
    with pytest.raises(ValueError, match="JSON compliant"):
        scripts.data("x", float("nan"))


TIMES = ["3.5 ms", "980 µs", "1.2 s", "–", "40 ns", "2.0 ms"]
SIZES = ["1.50 MiB", "900 B", "2.00 GiB", "none", "640 KiB", "1.60 MiB"]
OTHERS = ["64 × 128", "64 × 32", "128 × 16", "8 × 8", "64 × 64", "16 × 512"]
ERRORS = ["2.1e-07", "3.0e-05", "0", "1.1e-06", "–", "9.9e-08"]
RATES = ["2.00 TFLOP/s", "470 GFLOP/s", "12.0 MFLOP/s", "3.10 GFLOP/s", "–", "900 FLOP/s"]


def test_numbers_sort_with_their_units(tmp_path):
    columns = (TIMES, SIZES, OTHERS, ERRORS, RATES)
    rows = [[cell + small("7–9") for cell in row] for row in zip(*columns, strict=True)]
    rows.append(["1.0 ms", "verification failed"])  # spans the rest
    text = page("t", "u", table([(name, "n") for name in "abcde"], rows))
    found = driven(text, f"""{CLICK}
        const main = (row, n) => row.cells[n] && row.cells[n].colSpan === 1 ? row.cells[n].firstChild.textContent.trim() : '';
        const every = [];
        for (let n = 0; n < 5; ++n) {{ head(n).click();
          every.push(Array.from(document.querySelector('tbody').rows, (row) => main(row, n))); }}
        head(4).click();
        every.push(Array.from(document.querySelector('tbody').rows, (row) => main(row, 4)));
        const sort = document.querySelectorAll('th')[4].getAttribute('aria-sort');
        head(4).click();
        every.push(Array.from(document.querySelector('tbody').rows, (row) => main(row, 0)));
        return [every, sort, document.querySelectorAll('th[aria-sort]').length];""", tmp_path)  # fmt: skip
    (times, sizes, tiles, errors, rates, down, back), sort, left = found
    assert times == ["40 ns", "980 µs", "1.0 ms", "2.0 ms", "3.5 ms", "1.2 s", "–"]
    assert sizes == ["none", "900 B", "640 KiB", "1.50 MiB", "1.60 MiB", "2.00 GiB", ""]
    assert tiles == ["8 × 8", "16 × 512", "64 × 32", "64 × 64", "64 × 128", "128 × 16", ""]
    assert errors == ["0", "9.9e-08", "2.1e-07", "1.1e-06", "3.0e-05", "–", ""]
    assert rates[:5] == ["900 FLOP/s", "12.0 MFLOP/s", "3.10 GFLOP/s", "470 GFLOP/s", "2.00 TFLOP/s"]
    assert down[:5] == rates[4::-1] and down[5:] == ["–", ""], "what has no number is last either way"
    assert back == [*TIMES, "1.0 ms"] and (sort, left) == ("descending", 0)


def test_a_filter_shows_rows_and_counts_them(tmp_path):
    rows = [[name, f"{n}", status("ok" if n % 2 else "skipped")] for name in ("flash", "naive") for n in range(5)]
    text = page("t", "u", table([("variant", ""), ("n", "n"), ("status", "")], rows))
    found = driven(text, """
        const field = document.querySelector('.tools input'), seen = [];
        for (const words of ['', 'FLASH', 'flash -skipped', 'nothing of this', '<b>', 'n=1', '-n=1 naive']) {
          field.value = words; field.dispatchEvent(new Event('input'));
          seen.push([document.querySelector('output').textContent,
                     Array.from(document.querySelectorAll('tbody tr')).filter((row) => row.offsetHeight).length]);
        }
        return seen;""", tmp_path)  # fmt: skip
    assert found == [["10 rows", 10], ["5 of 10 rows", 5], ["2 of 10 rows", 2], ["0 of 10 rows", 0], ["0 of 10 rows", 0],
                     ["2 of 10 rows", 2], ["4 of 10 rows", 4]]  # fmt: skip


def test_keys_sort_and_small_tables_have_no_filter(tmp_path):
    text = page("t", "u", table([("", ""), ("name", "")], [["x", name] for name in ("b10", "b9", "a")]))
    found = driven(text, f"""{COLUMN}
        const buttons = document.querySelectorAll('th button');
        buttons[0].focus();
        const focused = document.activeElement === buttons[0];
        buttons[0].click();
        return [buttons.length, focused, column(1), document.querySelectorAll('.tools').length];""", tmp_path)  # fmt: skip
    assert found == [1, True, ["a", "b9", "b10"], 0]


def test_rows_that_follow_others_stay_where_they_are(files, tmp_path):
    """The parts of a profile say which row they belong to by their place."""
    rows = [["phase", ""], *(["", name] for name in "abcdefgh")]
    dom = shown(page("t", "u", table([("phase", ""), ("operator", "")], rows, nested=True)), tmp_path)
    assert 'class="nested"' in dom and "<button" not in dom and 'class="tools"' not in dom
    assert '<table class="nested">' in report(load(files["block"]))["report.html"].decode()


@needs_browser
def test_the_tables_of_a_report(files, tmp_path):
    dom = shown(report(load(files["tiling"]))["report.html"].decode(), tmp_path)
    assert "<output>32 rows</output>" in dom  # two more are folded
