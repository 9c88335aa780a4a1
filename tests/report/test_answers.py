"""What figures tell a pointer: the place and the words of each mark, and which parts of the image are a series."""

import io
import json
import re

import matplotlib.image
import numpy as np
import pytest
import synthetic
from browser import driven, needs_browser
from katt_report import compare, groups, load
from katt_report.figures import draw_all
from katt_report.figures.marks import SCALE
from katt_report.isolation import logs_or_results
from katt_report.pages.compare_page import compare_report
from katt_report.pages.log_page import log_report
from katt_report.pages.output import add_figure, render
from katt_report.pages.page import report
from test_logs import log

pytestmark = pytest.mark.rendered


@pytest.fixture
def small(tmp_path):
    """A sweep of two variants over three N in one dtype."""
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    return load(synthetic.write(tmp_path / "r.h5", file))


def plot_of(results, name: str):
    """A figure of the first group."""
    (group, *_) = groups(results)
    return next(plot for plot in draw_all(group) if plot.name == name)


def test_a_mark_lies_where_it_is_drawn(small):
    """The pixels at the places that the marks name have the colours of their series."""
    plot = plot_of(small, "throughput")
    (png,) = render(plot.figure, ("png",))
    image = matplotlib.image.imread(io.BytesIO(png))
    answers = plot.figure.answers()
    assert [name for name, _ in answers["series"]] == ["naive", "flash"] and len(answers["marks"]) == 6
    for series, x, y, *_ in answers["marks"]:
        colour = [int(answers["series"][series][1][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        pixel = image[round(y / SCALE * image.shape[0]), round(x / SCALE * image.shape[1]), :3]
        assert np.allclose(pixel, colour, atol=0.1), (series, x, y)


def test_a_mark_says_value_interval_samples_and_commit(small):
    plot = plot_of(small, "speedup")
    render(plot.figure, ("svg",))
    answers = plot.figure.answers()
    row = small.points.where(variant="flash", seq_q=2048).row(0)
    title, value, origin = (answers["texts"][index] for index in answers["marks"][-1][-3:])
    assert title == "flash · f32 · N = 2048 · tile 64\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}128"
    assert value == f"{row['speedup']:.2f}× (95 % interval {row['speedup_lo']:.2f}×–{row['speedup_hi']:.2f}×)"
    assert origin == "15 samples · commit 9f1c2ab"


def test_suspect_rows_answer_nothing(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    for row in file.rows:
        if (row["variant"], row["seq_q"]) == ("flash", 2048):
            row |= {"status": "suspect", "reason": "too fast"}
    results = load(synthetic.write(tmp_path / "r.h5", file))
    for plot in draw_all(groups(results)[0]):
        render(plot.figure, ("svg",))
        texts = plot.figure.answers()["texts"]
        assert not any("flash" in text and "2048" in text for text in texts), plot.name


# Where a mark is in the window, and a pointer there.
POINT = """
    const figure = document.querySelector('figure#throughput'), frame = figure.querySelector('.frame');
    const data = JSON.parse(figure.querySelector('script').textContent), tip = document.querySelector('.tip');
    figure.scrollIntoView();
    const box = frame.querySelector('img').getBoundingClientRect();
    const move = (x, y) => frame.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y, bubbles: true}));
    const to = (mark) => move(box.left + mark[1] / 10000 * box.width, box.top + mark[2] / 10000 * box.height);
    const lines = () => tip.hidden ? null : Array.from(tip.children, (line) => line.textContent);
"""


@needs_browser
def test_the_pointer_reads_a_mark(small, tmp_path):
    text = report(small, ())["report.html"].decode()
    said, around, keys, gone = driven(text, f"""{POINT}
        const said = data.marks.map((mark) => [to(mark), lines(), mark.slice(-3).map((index) => data.texts[index])].slice(1));
        to(data.marks[0]);
        const where = tip.getBoundingClientRect();
        const inside = where.left >= 0 && where.right <= document.documentElement.clientWidth;
        move(box.left + 2, box.bottom - 2);
        const away = lines(), keys = [];
        for (const key of ['ArrowRight', 'ArrowRight', 'ArrowLeft']) {{
          frame.dispatchEvent(new KeyboardEvent('keydown', {{key}}));
          keys.push(lines()[0]);
        }}
        frame.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape'}}));
        return [said, [inside, away], keys, lines()];""", tmp_path)  # fmt: skip
    assert len(said) == 6 and all(shown == held for shown, held in said)
    assert around == [True, None]
    assert keys[0] == keys[2] == said[0][0][0] and keys[1] == said[1][0][0]
    assert gone is None


@needs_browser
def test_series_are_switched_off_and_printed(small, tmp_path):
    text = report(small, ())["report.html"].decode()
    found = driven(text, f"""{POINT}
        const image = frame.querySelector('img'), whole = image.src;
        const parse = () => new DOMParser().parseFromString(atob(image.src.split(',')[1]), 'image/svg+xml');
        const parts = (n) => parse().querySelectorAll('[id^=series-' + n + '-]:not([display=none])').length;
        const button = figure.querySelectorAll('.series button')[1], before = [parts(0), parts(1)];
        button.click();
        const after = [parts(0), parts(1)], flash = data.marks.find((mark) => mark[0] === 1);
        await image.decode();
        to(flash);
        const read = lines();
        window.dispatchEvent(new Event('beforeprint'));
        const printed = image.src === whole;
        window.dispatchEvent(new Event('afterprint'));
        const again = parts(1);
        const pressed = button.getAttribute('aria-pressed');
        button.click();
        return [button.textContent, before, after, read, printed, again, pressed, image.src === whole];""", tmp_path)  # fmt: skip
    name, before, after, read, printed, again, pressed, back = found
    assert name == "flash" and before[1] > 0 and after == [before[0], 0] and again == 0
    assert read is None or not read[0].startswith("flash")
    assert (printed, pressed, back) == (True, "false", True)


HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_hostile_names_are_text(tmp_path):
    file = synthetic.attention_seqlen(sizes=(512, 1024, 2048), dtypes=("f32",))
    for row in file.rows:
        row["variant"] = HOSTILE if row["variant"] == "flash" else row["variant"]
    results = load(synthetic.write(tmp_path / "r.h5", file))
    name = results.points.values("variant")[0]
    assert name.startswith("</script>")
    text = report(results, ())["report.html"].decode()
    assert "<img src=x" not in text
    for held in re.findall('<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL):
        assert name in [series for series, _ in json.loads(held)["series"]]
    found = driven(text, f"""{POINT}
        to(data.marks.at(-1));
        return [lines()[0], document.querySelectorAll('img[src=x]').length,
                figure.querySelectorAll('.series button')[1].textContent];""", tmp_path)  # fmt: skip
    assert found[0].startswith(name) and found[1:] == [0, name]


def test_a_figure_without_marks_is_its_image(small):
    plot = plot_of(small, "throughput")
    plot.figure.marks.clear()
    assert "<script" not in add_figure(plot, {}, ("svg",))


@needs_browser
def test_other_pages_answer(files, tmp_path):
    """A comparison has its verdicts as series, a log its steps as marks."""
    for name, made in (("compare.html", compare_report(compare(*[load(files["seqlen"])] * 2), "a", "b")),
                       ("report.html", log_report(logs_or_results(log(tmp_path / "log.h5"))[0], ("png",)))):  # fmt: skip
        (tmp_path / name).mkdir()
        count, said = driven(made[name].decode(), """
            const frames = document.querySelectorAll('.frame'), frame = frames[0];
            frame.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}));
            return [frames.length, Array.from(document.querySelector('.tip').children, (line) => line.textContent)];""",
                             tmp_path / name)  # fmt: skip
        assert count >= 1 and len(said) >= 2, name
