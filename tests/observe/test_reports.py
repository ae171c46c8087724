"""Text, page and trace of made-up figures."""

import dataclasses
import html.parser
import json
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from dataflow.observe.figures import FlowStatistics, Moment, NodeStatistics, WorkerMoment
from dataflow.observe.report_page import Sample, page_of, png_of, ticks
from dataflow.observe.report_text import report_text
from dataflow.observe.tracing import intervals, trace_of
from dataflow.observe.verdict import ceiling_of, verdict_of
from tests.observe.made_up import flow, runner, workers

MADE = flow(runner(workers(2, busy=0.9, blocked=0.1), waiting=0.9, failures=3, restarts=1))


def test_a_runner_without_workers_has_no_table_of_them():
    alone = flow(runner((), waiting=0.9))
    assert "no processor" not in report_text(alone) and "busy" not in page_of(alone)
    assert not [event for event in trace_of(alone)["traceEvents"] if event["name"] == "thread_name"]


def test_two_moments_at_the_same_time_have_no_rate_between_them():
    made = runner(workers(1, busy=0.5))
    twice = replace(made, history=(*made.history, made.history[-1]))
    assert trace_of(flow(twice)) == trace_of(flow(made))


def test_the_text_has_the_tree_the_rates_and_the_verdict():
    assert report_text(MADE) == (
        "node                                share        rate     length\n"
        "BatchData(batch_size=32)                                      31\n"
        "MultiProcessRunnerZMQ(num_proc=2)               200/s      1,000\n"
        "  MapData(func=decode)                84%                  1,000\n"
        "  DataFromList([…] of 1,000)          12%                  1,000\n"
        "\n"
        "MultiProcessRunnerZMQ: 2,000 datapoints in 10.0 s; the consumer waits 90%, receives 0%, is elsewhere 10%\n"
        "  3 failures, 1 restarts\n"
        "  worker      pid  datapoints   busy  window full  memory full  no task  no processor\n"
        "       0     4711       1,000    90%          10%           0%       0%            0%\n"
        "       1     4712       1,000    90%          10%           0%       0%            0%\n"
        "\n" + verdict_of(MADE).text + "\nIf the loader took no time, the loop would run at least 10 times as fast."
    )


def test_figures_without_runners_are_shown():
    alone = FlowStatistics((NodeStatistics("FakeData()"),))
    assert "FakeData()" in report_text(alone)
    assert "FakeData()" in page_of(alone)
    assert trace_of(alone)["traceEvents"] == []


class Tags(html.parser.HTMLParser):
    VOID = {"meta", "link", "img", "rect", "polyline", "path"}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.open, self.found, self.figures, self.texts = [], [], "", []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and not self.figures:
            self.figures = data
        self.texts.append(data.strip())


def test_the_page_contains_its_figures_and_needs_no_network():
    odd = FlowStatistics((NodeStatistics("MapData(func=</script><b>)"), *MADE.nodes[1:]), MADE.runners)
    png = png_of(np.zeros((8, 8), np.uint8))
    page = page_of(odd, [[Sample("0", "uint8 (8, 8)", png), Sample("<1>", "text")]])
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert json.loads(tags.figures) == json.loads(json.dumps(dataclasses.asdict(odd)))
    addresses = [value for _, attrs in tags.found for name, value in attrs.items() if name in {"src", "href"}]
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search("https?://", page)
    assert "<b>" not in page.split("<script", maxsplit=1)[0]
    assert html.escape(verdict_of(odd).text) in page


def read(statistics, samples=()):
    tags = Tags()
    tags.feed(page_of(statistics, samples))
    return tags


def test_each_chart_has_its_answer_as_title_axes_with_units_and_names_of_workers():
    texts = read(MADE).texts
    for text in (
        "MapData(func=decode) takes 84% of the workers' time",
        "The consumer waited 90% of the time",
        "It received 2,000 datapoints in 10 seconds, 200 per second",
        "datapoints per second",
        "The 2 workers were busy 90% of the time",
        "worker 0",
        "worker 1",
        "50% of the workers' windows were in use, on average",
        "seconds since the workers were started",
        "3 failures, 1 restarts",
        "waits 90%",
    ):
        assert text in texts
    marks = [text for text in texts if text in {"0", "2", "4", "6", "8", "10"}]
    assert marks.count("10") == 3  # seconds below each chart over time
    assert {"0", "2", "4", "6", "8", "10"} == set(marks)


def test_columns_and_charts_of_zeros_are_left_out():
    unused = replace(MADE.runners[0], history=tuple(replace(at, window=0.0) for at in MADE.runners[0].history))
    texts = read(flow(unused)).texts
    assert "window full" in texts
    assert not {"memory full", "no task", "no processor", "reads the input 0%"} & set(texts)
    assert "% in use" not in texts


@pytest.mark.parametrize(
    ("waiting", "colour"), [(0.9, "bad"), (0.02, "good"), (None, "unknown")], ids=["bad", "good", "unknown"]
)
def test_the_colour_of_the_verdict_says_good_or_bad(waiting, colour):
    made = MADE if waiting == 0.9 else flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=waiting or 0.0))
    if waiting is None:
        made = FlowStatistics(made.nodes)
    boxes = [attrs["class"] for tag, attrs in read(made).found if tag == "div" and "class" in attrs]
    assert boxes[0] == colour


def test_the_text_is_in_the_page_with_lines_that_are_not_cut_off():
    texts = "\n".join(read(MADE).texts)
    (text,) = [part for part in page_of(MADE).split("<pre") if part.startswith(' id="text"')]
    lines = html.unescape(text.partition(">")[2].partition("</pre>")[0]).splitlines()
    assert max(map(len, lines)) <= 110
    assert " ".join(lines).split() == report_text(MADE).split()
    assert "Copy" in texts


@pytest.mark.parametrize("top", [1e-9, 0.3, 1.0, 2.99, 3.0, 7.2, 10.0, 99.9, 1250.0, 8e12])
def test_ticks_are_round_numbers_up_to_the_top(top):
    marks = ticks(top)
    assert 4 <= len(marks) <= 8
    assert marks[0] == 0 and marks[-1] <= top * (1 + 1e-9) and top - marks[-1] < marks[1]
    assert f"{marks[1]:.0e}"[0] in "125" and f"{marks[1]:.6e}"[2:8] == "000000"


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (MADE, "at least 10 times as fast"),
        (replace(MADE, nodes=MADE.nodes[1:], runners=(replace(MADE.runners[0], node=0),)), "run 10 times as fast"),
        (flow(runner(workers(1, busy=1.0), waiting=0.75), above=0.0), "run 4.0 times as fast"),
        (flow(runner(workers(1, busy=1.0), waiting=0.5), above=0.25), "run 4.0 times as fast"),
        (flow(runner(workers(1, busy=1.0), waiting=0.01), above=0.0), "would hardly run faster"),
        (flow(runner(workers(1, busy=1.0), waiting=1.0), above=0.0), "more than 100 times as fast"),
        (FlowStatistics((NodeStatistics("a", share=0.5), NodeStatistics("b", share=0.25))), "run 4.0 times as fast"),
        (FlowStatistics((NodeStatistics("a"),)), ""),
        (flow(replace(runner(workers(1)), datapoints=0)), ""),
    ],
)
def test_the_report_says_what_a_flow_that_takes_no_time_would_give(made, sentence):
    assert sentence in ceiling_of(made)
    assert bool(sentence) == bool(ceiling_of(made))
    assert ceiling_of(made) in report_text(made)


def test_the_trace_has_a_track_for_each_worker():
    events = json.loads(json.dumps(trace_of(MADE)))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["MultiProcessRunnerZMQ", "worker 0 (pid 4711)", "worker 1 (pid 4712)"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in slices} == {1, 2}
    busy = sum(event["dur"] for event in slices if event["name"] == "busy" and event["tid"] == 1)
    assert busy == pytest.approx(9e6)
    ends = {event["ts"] + event["dur"] for event in slices}
    assert max(ends) == pytest.approx(10e6)


def test_states_fit_between_two_moments():
    before = Moment(1.0, 0, workers=(WorkerMoment(0.0), WorkerMoment(1.0)))
    after = Moment(2.0, 5, workers=(WorkerMoment(3.0, 1.0), WorkerMoment(0.5), WorkerMoment(1.0)))
    assert intervals(before, after) == [[("busy", 0.75), ("window full", 0.25)], []]


def decoded(png):
    """Width, height, colour type and rows of a PNG without filters."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    (size,) = struct.unpack(">I", png[33:37])
    data = zlib.decompress(png[41 : 41 + size])
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(data, np.uint8).reshape(height, 1 + width * channels)
    assert depth == 8
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


def test_arrays_that_look_like_images_become_pictures():
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    assert (decoded(png_of(image)) == image).all()
    assert (decoded(png_of(image.transpose(2, 0, 1))) == image).all()
    assert (decoded(png_of(image[:, :, 0]))[:, :, 0] == image[:, :, 0]).all()
    assert decoded(png_of(image[:, :, :1])).shape == (5, 6, 1)
    assert decoded(png_of(image / 255.0)).max() == 255
    assert decoded(png_of(image[:, :, 0] > 3)).min() == 0
    assert decoded(png_of(np.zeros((1000, 500, 4), np.uint8))).shape == (167, 84, 4)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 100)),
        np.zeros(100),
        np.zeros((5, 5, 5, 5)),
        np.zeros((8, 8, 2)),
        np.zeros((8, 8), "i8"),
        np.full((8, 8), np.nan),
        np.full((8, 8), "a"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_other_arrays_do_not(array):
    assert png_of(array) is None


def test_a_few_words_say_who_waits():
    assert flow(runner(workers(2, busy=0.9, blocked=0.1), waiting=0.3)).waits == "consumer waits 30%, workers wait 10%"
    assert flow(runner((), waiting=0.3)).waits == "consumer waits 30%"
    assert replace(flow(runner(())), runners=()).waits == ""
