"""The verdict over made-up figures."""

from dataclasses import replace

import pytest

from dataflow.observe.figures import FlowStatistics, NodeStatistics, size_text
from dataflow.observe.verdict import verdict_of
from tests.observe.made_up import flow, runner, worker, workers

BUSY = workers(2, busy=0.97, blocked=0.03)

CASES = {
    "workers, cores left": (
        flow(runner(BUSY, waiting=0.9)),
        "workers",
        "The workers are the bottleneck: MapData(func=decode) takes 84% of their time, and both are busy 97% of it. "
        "More workers would help: 2 of 8 cores are used.",
    ),
    "workers, no core left": (
        flow(runner(BUSY, waiting=0.9, cores=2)),
        "workers",
        "The workers are the bottleneck: MapData(func=decode) takes 84% of their time, and both are busy 97% of it. "
        "All 2 cores are used: only cheaper work, or another machine, helps.",
    ),
    "workers that wait": (
        flow(runner(workers(2, busy=0.97, cpu=0.05), waiting=0.9, cores=2)),
        "workers",
        "They compute only 5% of the time and wait for the rest, so more workers help, even more than there are cores.",
    ),
    "a source in the workers": (
        flow(runner(workers(1, busy=0.9), waiting=0.9), (0.1, 0.85)),
        "workers",
        "DataFromList([…] of 1,000) takes 85% of its time, and it is busy 100% of it. More workers would help: "
        "1 of 8 cores is used.",
    ),
    "threads that share the lock": (
        flow(runner(workers(4, busy=0.98, cpu=0.24), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They take turns holding the interpreter lock",
    ),
    "consumer": (
        flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03)),
        "consumer",
        "Your training step is the bottleneck: the consumer waits 3% of the time for MultiProcessRunnerZMQ. The nodes "
        "above MultiProcessRunnerZMQ (BatchData(batch_size=32)) count as part of it; call report() during the "
        "loop to see how much they take.",
    ),
    "consumer, known shares": (
        flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03), above=0.05),
        "consumer",
        "Your training step is the bottleneck: the consumer waits 3% of the time for MultiProcessRunnerZMQ, and the "
        "nodes above MultiProcessRunnerZMQ (BatchData(batch_size=32)) take 5% of it.",
    ),
    "threads that hold the lock while the step runs": (
        flow(runner(workers(4, busy=0.98, cpu=0.16), waiting=0.03, backend="thread", consumer_cpu_seconds=2.5)),
        "workers",
        "they hold the interpreter lock, so your loop computes only 26% of its own time and waits for the lock",
    ),
    "a step that waits, above threads": (
        flow(
            runner(workers(4, busy=0.4, cpu=0.08, blocked=0.6), waiting=0.03, backend="thread", consumer_cpu_seconds=1)
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "a step that computes, above threads": (
        flow(
            runner(workers(4, busy=0.4, cpu=0.02, blocked=0.6), waiting=0.03, backend="thread", consumer_cpu_seconds=9)
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "processes that take the cores of the step": (
        flow(
            runner(
                workers(8, busy=0.9, cpu=0.2),
                waiting=0.03,
                cores=2,
                consumer_cpu_seconds=4,
                consumer_delayed_seconds=5,
            )
        ),
        "too many workers",
        "8 share 2 cores with your loop, and 52% of its own time your loop is ready to run, and has no processor. Use",
    ),
    "two processes and the step": (
        flow(
            runner(
                workers(2, busy=0.9, cpu=0.7),
                waiting=0.03,
                cores=2,
                consumer_cpu_seconds=6,
                consumer_delayed_seconds=3,
            )
        ),
        "workers",
        "The processors are the bottleneck: your loop and 2 workers share 2 cores, and 31%",
    ),
    "other programs that take the cores of the step": (
        flow(
            runner(
                workers(2, busy=0.1, cpu=0.1, blocked=0.9),
                waiting=0.03,
                cores=2,
                consumer_cpu_seconds=4,
                consumer_delayed_seconds=5,
            )
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "a node above the runner": (
        flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03), above=0.84),
        "consumer",
        "A node above the workers is the bottleneck: BatchData(batch_size=32) takes 84% of the consumer's time, and "
        "the consumer waits 3% of the time for MultiProcessRunnerZMQ. Let workers do it",
    ),
    "transport, in the workers": (
        flow(runner(workers(2, busy=0.97), waiting=0.6, sending=0.7)),
        "transport",
        "Transport is the bottleneck: sending datapoints of 1.02 KiB takes 70% of the workers' time.",
    ),
    "transport, in the consumer": (
        flow(runner(workers(2, busy=0.5, blocked=0.5), waiting=0.05, receiving=0.8)),
        "transport",
        "the consumer spends 80% of its time receiving",
    ),
    "memory": (
        flow(runner(workers(2, busy=0.5, memory=0.5), waiting=0.5, max_bytes=1 << 20)),
        "memory",
        "the workers wait 50% of the time for room within max_bytes (1 MiB)",
    ),
    "memory, one worker": (
        flow(runner(workers(1, busy=0.6, memory=0.4), waiting=0.5, max_bytes=1 << 20)),
        "memory",
        "Raise max_bytes",
    ),
    "too many workers": (
        flow(runner(workers(8, busy=0.97, delayed=0.7), waiting=0.8, cores=2)),
        "too many workers",
        "There are too many workers: 8 share 2 cores, and each waits 72% of its time for a processor. 2 would be as ",
    ),
    "too many workers, most of them without work": (
        flow(runner(workers(8, busy=0.97), waiting=0.8, cores=2, num_with_work=2)),
        "too many workers",
        "8 share 2 cores, and 2 of them get work at a time, because more would not be faster. 2 would be as fast",
    ),
    "auto, after a trial of more": (
        flow(runner(workers(8, busy=0.97), waiting=0.8, cores=2, num_with_work=2, adapts=True)),
        "workers",
        "both are busy",
    ),
    "two workers on a loaded machine": (
        flow(runner(workers(2, busy=0.97, delayed=0.5), waiting=0.8, cores=2)),
        "workers",
        "All 2 cores are used",
    ),
    "the input of a map": (
        flow(runner(workers(2, busy=0.2, starved=0.8), waiting=0.1, source=0.8, reads_input=True)),
        "source",
        "The source is the bottleneck: MultiProcessRunnerZMQ reads its input in the consumer, which takes 80% of the",
    ),
    "a map that is busy": (
        flow(runner(workers(2, busy=0.95, starved=0.05), waiting=0.8, source=0.1, reads_input=True)),
        "workers",
        "More workers would help",
    ),
    "senders that are busy": (
        flow(runner(workers(2, busy=0.9, blocked=0.1), waiting=0.8, backend="remote")),
        "workers",
        "The senders are the bottleneck: the consumer waits 80% of the time for MultiProcessRunnerZMQ, and they are "
        "busy 90% of it.",
    ),
    "senders that wait": (
        flow(runner(workers(2, busy=0.2, blocked=0.8), waiting=0.8, backend="remote")),
        "transport",
        "The network is the bottleneck",
    ),
    "senders that have reported nothing": (
        flow(runner((), waiting=0.8, backend="remote")),
        "workers",
        "The senders have not reported what they do",
    ),
    "bursts": (
        flow(runner(workers(2, busy=0.3, blocked=0.7), waiting=0.4)),
        "none",
        "No part stands out",
    ),
    "no tasks": (flow(runner(workers(2, busy=0.2, starved=0.8), waiting=0.8)), "none", "for tasks"),
    "nothing yet": (flow(runner(BUSY, datapoints=0)), "unknown", "Too little was measured"),
    "actors": (
        flow(runner(workers(2, busy=0.97), waiting=0.8, backend="ray")),
        "workers",
        "MapData(func=decode) takes 84% of their time, and both are busy 100% of it. More actors would help",
    ),
    "actors that have reported nothing": (
        flow(runner((), waiting=0.8, backend="ray")),
        "unknown",
        "have reported nothing",
    ),
    "nothing reported": (flow(runner(workers(2), waiting=0.8)), "unknown", "have reported nothing"),
    "a flow that runs in the loop": (
        FlowStatistics((NodeStatistics("MapData(func=decode)", share=0.6), NodeStatistics("FakeData()", share=0.2))),
        "flow",
        "it runs in your loop, where it takes 80% of the time; MapData(func=decode) takes 60%",
    ),
    "a flow that takes a part of the loop": (
        FlowStatistics((NodeStatistics("MapData(func=decode)", share=0.2),)),
        "flow",
        "The flow takes 20% of the time, because it runs in your loop",
    ),
    "a flow that waits for requests": (
        FlowStatistics((NodeStatistics("FetchData(key='file')", share=0.9), NodeStatistics("DataFromList([…])"))),
        "flow",
        "more of them at a time help (num_concurrent)",
    ),
    "a flow that takes hardly any time": (
        FlowStatistics((NodeStatistics("MapData(func=decode)", share=0.02),)),
        "consumer",
        "Your training step is the bottleneck: the flow takes 2% of the time",
    ),
    "no runner": (FlowStatistics((NodeStatistics("DataFromList()"),)), "unknown", "dataflow.profile(df)"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bottleneck_is_named(name):
    statistics, bottleneck, text = CASES[name]
    verdict = verdict_of(statistics)
    assert verdict.bottleneck == bottleneck, verdict
    assert text in verdict.text
    assert verdict.runner == (0 if statistics.runners else None)


def test_several_nodes_above_the_runner_are_judged_together():
    made = runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03, node=2)
    nodes = (
        NodeStatistics("BatchData(batch_size=32)", share=0.3),
        NodeStatistics("MapData(func=augment)", share=0.4),
        NodeStatistics("MultiProcessRunnerZMQ(num_proc=2)"),
    )
    text = verdict_of(FlowStatistics(nodes, (made,))).text
    assert text.startswith("The nodes above the workers are the bottleneck: MapData(func=augment) takes 40% of")


def test_the_node_that_a_parallel_map_reads_in_the_consumer_is_named():
    made = runner(workers(2, busy=0.2, starved=0.8), waiting=0.1, source=0.8, reads_input=True, node=0)
    nodes = (NodeStatistics("MultiProcessMapData(…)"), NodeStatistics("SlowSource()", share=0.78))
    assert "80% of the time; SlowSource() takes 78%" in verdict_of(FlowStatistics(nodes, (made,))).text


def nested(outer, inner):
    """A runner in the workers of another."""
    nodes = (
        NodeStatistics("MultiProcessRunnerZMQ(num_proc=2)"),
        NodeStatistics("MultiThreadMapData(num_thread=2)", "  ", runner=0, share=0.95),
        NodeStatistics("FakeData()", "  ", runner=0, share=0.01),
    )
    return FlowStatistics(nodes, (replace(outer, node=0), replace(inner, node=1, outer=0, name="MultiThreadMapData")))


def test_a_runner_for_which_the_outer_workers_wait_is_judged_instead():
    outer = runner(BUSY, waiting=0.9)
    slow_map = runner(workers(2, busy=0.95), waiting=0.9, reads_input=True, num_outer=2, waiting_seconds=18.0)
    verdict = verdict_of(nested(outer, slow_map))
    assert (verdict.bottleneck, verdict.runner) == ("workers", 1)
    slow_source = runner(workers(2, busy=0.1, starved=0.9), source=0.9, reads_input=True, num_outer=2)
    assert verdict_of(nested(outer, slow_source)).runner == 0
    quick = runner(workers(2, busy=0.1, blocked=0.9), waiting=0.02, num_outer=2)
    assert verdict_of(nested(outer, quick)).runner == 0


def test_a_runner_below_a_map_is_judged_if_its_input_is_what_the_map_waits_for():
    nodes = (NodeStatistics("MultiThreadMapData(…)"), NodeStatistics("MultiProcessRunner(…)"))
    source = runner(workers(2, starved=1.0), source=0.9, node=0, reads_input=True)
    below = runner(BUSY, waiting=0.85, node=1)
    assert verdict_of(FlowStatistics(nodes, (source, below))).runner == 1


def test_one_idle_worker_among_busy_ones_changes_nothing():
    three = (worker(0, busy=1.0), worker(1, busy=1.0), worker(2, starved=1.0))
    assert verdict_of(flow(runner(three, waiting=0.9))).bottleneck == "workers"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1000 bytes"),
        (1536, "1.5 KiB"),
        (1020 << 10, "1020 KiB"),
        (5 << 40, "5.12e+03 GiB"),
    ],
)
def test_sizes_have_no_exponents_below_a_tebibyte(nbytes, text):
    assert size_text(nbytes) == text
