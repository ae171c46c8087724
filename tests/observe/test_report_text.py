"""The report as text, of made-up figures."""

from dataflow.observe.figures import FlowStatistics, NodeStatistics
from dataflow.observe.report_page import page_of
from dataflow.observe.report_text import report_text
from dataflow.observe.tracing import trace_of
from dataflow.observe.verdict import verdict_of
from tests.observe.made_up import MADE, flow, runner


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


def test_a_runner_without_workers_has_no_table_of_them():
    alone = flow(runner((), waiting=0.9))
    assert "no processor" not in report_text(alone) and "busy" not in page_of(alone)
    assert not [event for event in trace_of(alone)["traceEvents"] if event["name"] == "thread_name"]


def test_figures_without_runners_are_shown():
    alone = FlowStatistics((NodeStatistics("FakeData()"),))
    assert "FakeData()" in report_text(alone)
    assert "FakeData()" in page_of(alone)
    assert trace_of(alone)["traceEvents"] == []
