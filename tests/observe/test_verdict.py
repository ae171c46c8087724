"""The verdict over made-up figures."""

from dataclasses import replace

import pytest

from dataflow.observe.figures import FlowStatistics, NodeStatistics, RunnerStatistics
from dataflow.observe.report_text import report_text
from dataflow.observe.verdict import ceiling_of, verdict_of
from tests.observe.made_up import MADE, flow, runner, worker, workers

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
        "to see how much they take. For 52% of its own time your loop is ready to run, and has no processor: other "
        "threads or programs have them.",
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
    "shares that add up to more than all": (
        FlowStatistics((NodeStatistics("A()", share=0.8), NodeStatistics("B()", share=0.7))),
        "flow",
        "it runs in your loop, where it takes 100% of the time; A() takes 80%",
    ),
    "memory, of a limit that is not known": (
        flow(runner(workers(2, busy=0.5, memory=0.5), waiting=0.5)),
        "memory",
        "for room within max_bytes. Raise",
    ),
    "the input of a map for which the consumer waits, too": (
        flow(runner(workers(2, busy=0.2, starved=0.8), waiting=0.6, source=0.3, reads_input=True)),
        "source",
        "reads its input in the consumer, which takes 30% of the time",
    ),
    "the input of a map for which the consumer waits nearly as long": (
        flow(runner(BUSY, waiting=0.45, source=0.55, reads_input=True)),
        "source",
        "takes 55% of the time",
    ),
    "a source that is not the input of a map": (
        flow(runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03, source=0.1)),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "bursts, in numbers": (
        flow(runner(workers(2, busy=0.3, blocked=0.7), waiting=0.4)),
        "none",
        "waits 40% of the time, and the workers are busy 30% of it.",
    ),
    "senders that wait for memory, too": (
        flow(runner(workers(2, busy=0.4, blocked=0.3, memory=0.3), waiting=0.8, backend="remote")),
        "transport",
        "the senders wait 60% of the time",
    ),
    "workers that hardly get a core": (
        flow(runner(workers(8, busy=0.6, delayed=0.9, cpu=0.1), waiting=0.8, cores=2)),
        "too many workers",
        "each waits 100% of its time for a processor",
    ),
    "workers that wait for a core, most of them without work": (
        flow(runner(workers(8, busy=1.0, cpu=0.3, delayed=0.25), waiting=0.8, cores=2, num_with_work=2)),
        "too many workers",
        "2 of them get work at a time",
    ),
    "one worker": (flow(runner(workers(1, busy=0.9), waiting=0.9)), "workers", "The worker is the bottleneck: "),
    "workers whose nodes have no shares": (
        flow(runner(workers(2, busy=0.9), waiting=0.9), shares=(None, None)),
        "workers",
        "The workers are the bottleneck: both are busy 100% of the time. ",
    ),
    "four workers": (flow(runner(workers(4, busy=0.9), waiting=0.9)), "workers", "and all 4 are busy 100% of it"),
    "threads that wait for the lock and are ready to run": (
        flow(runner(workers(4, busy=0.98, cpu=0.1, delayed=0.1), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They take turns holding the interpreter lock",
    ),
    "threads that wait for something else": (
        flow(runner(workers(4, busy=0.98, cpu=0.05, delayed=0.025), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They compute only 5% of the time",
    ),
    "one thread": (
        flow(runner(workers(1, busy=0.98), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "More workers would help: 1 of 4 cores is used.",
    ),
    "two threads that share the lock": (
        flow(runner(workers(2, busy=0.98, cpu=0.45), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They take turns holding the interpreter lock",
    ),
    "threads that release the lock": (
        flow(runner(workers(4, busy=0.7, blocked=0.3, cpu=0.4), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "All 4 cores are used",
    ),
    "a node above the runner that takes more than each of the workers' nodes": (
        flow(runner(BUSY, waiting=0.9), above=0.95),
        "workers",
        "MapData(func=decode) takes 84% of their time",
    ),
    "nodes that take no time": (
        flow(runner(BUSY, waiting=0.9), (0.0, None)),
        "workers",
        "The workers are the bottleneck: both are busy",
    ),
    "threads above which nothing is known of the step": (
        flow(runner(workers(4, busy=0.98, cpu=0.2), waiting=0.03, backend="thread")),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "a consumer that does nothing but receive": (
        flow(
            runner(
                workers(2, busy=0.4, blocked=0.6),
                waiting=0.05,
                receiving=0.45,
                source=0.5,
                working_seconds=0.0,
                consumer_cpu_seconds=1.0,
            )
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "threads that hold the lock while the step runs, and the consumer receives": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.16),
                waiting=0.03,
                receiving=0.1,
                source=0.1,
                backend="thread",
                consumer_cpu_seconds=3.5,
            )
        ),
        "workers",
        "your loop computes only 19% of its own time",
    ),
    "threads that release the lock while the step runs": (
        flow(runner(workers(4, busy=0.98, cpu=0.325), waiting=0.03, backend="thread", consumer_cpu_seconds=2)),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "threads that hold the lock while the step has no core for a while": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.1),
                waiting=0.03,
                backend="thread",
                consumer_cpu_seconds=2,
                consumer_delayed_seconds=2,
            )
        ),
        "workers",
        "your loop computes only 21% of its own time",
    ),
    "threads that hold the lock, and run while another program takes the core of the step": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.16),
                waiting=0.03,
                backend="thread",
                consumer_cpu_seconds=3.1,
                consumer_delayed_seconds=3,
            )
        ),
        "workers",
        "your loop computes only 32% of its own time",
    ),
    "threads that release the lock, while another program takes a core": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.27),
                waiting=0.03,
                backend="thread",
                consumer_cpu_seconds=2,
                consumer_delayed_seconds=1,
            )
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "other programs that take the cores of the step, above threads": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.025),
                backend="thread",
                consumer_cpu_seconds=5,
                consumer_delayed_seconds=4,
            )
        ),
        "consumer",
        "Your training step is the bottleneck",
    ),
    "one process and the step on one core": (
        flow(
            runner(
                workers(1, busy=0.9, cpu=0.7),
                waiting=0.03,
                cores=1,
                consumer_cpu_seconds=6,
                consumer_delayed_seconds=3,
            )
        ),
        "workers",
        "your loop and 1 worker share 1 core, and",
    ),
    "one large datapoint": (
        flow(runner(workers(2, busy=0.97), waiting=0.6, sending=0.7, datapoints=1)),
        "transport",
        "sending datapoints of 2 MiB takes",
    ),
}

AT_THE_LIMITS = {
    "flow, a tenth of the time": (FlowStatistics((NodeStatistics("A()", share=0.1),)), "flow", "takes 10%"),
    "flow, half of the time": (
        FlowStatistics((NodeStatistics("FetchData()", share=0.5),)),
        "flow",
        "The flow is the bottleneck: it runs in your loop, where it takes 50%",
    ),
    "0.05 seconds": (flow(runner(BUSY, waiting_seconds=0.05, working_seconds=0.0)), "workers", "are busy"),
    "source, half": (flow(runner(BUSY, waiting=0.2, source=0.5, reads_input=True)), "source", "takes 50%"),
    "source, as long as the wait": (
        flow(runner(BUSY, waiting=0.5, source=0.5, reads_input=True)),
        "source",
        "takes 50%",
    ),
    "receiving, half": (flow(runner(BUSY, waiting=0.2, receiving=0.5)), "transport", "spends 50%"),
    "waiting, a tenth": (flow(runner(BUSY, waiting=0.1)), "workers", "are busy"),
    "memory, a quarter": (flow(runner(workers(2, busy=0.75, memory=0.25), waiting=0.9)), "memory", "wait 25%"),
    "no tasks, half": (flow(runner(workers(2, busy=0.5, starved=0.5), waiting=0.9)), "none", "wait 50%"),
    "busy, half": (flow(runner(workers(2, busy=0.5, blocked=0.5), waiting=0.9)), "workers", "are busy 50%"),
    "senders, half": (
        flow(runner(workers(2, busy=0.5, blocked=0.5), waiting=0.9, backend="remote")),
        "transport",
        "senders wait 50%",
    ),
    "sending, half": (flow(runner(BUSY, waiting=0.9, sending=0.5)), "transport", "takes 50%"),
    "work for few of those that compute for half of the time": (
        flow(runner(workers(8, busy=1.0, cpu=0.25, delayed=0.25), waiting=0.8, cores=2, num_with_work=2)),
        "too many workers",
        "2 of them get work",
    ),
    "without a core for a third": (
        flow(runner(workers(8, busy=1.0, delayed=0.35), waiting=0.8, cores=2)),
        "too many workers",
        "each waits 35%",
    ),
    "threads, 1.2 cores": (
        flow(runner(workers(4, busy=1.0, cpu=0.3), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They take turns",
    ),
    "threads, 0.7 cores": (
        flow(runner(workers(4, busy=1.0, cpu=0.175), waiting=0.9, backend="thread", cores=4)),
        "workers",
        "They take turns",
    ),
    "computing, half": (
        flow(runner(workers(2, busy=1.0, cpu=0.5), waiting=0.9)),
        "workers",
        "More workers would help: 2 of 8 cores are used.",
    ),
    "a node, a hundredth": (flow(runner(BUSY, waiting=0.9), (0.01, 0.0)), "workers", "MapData(func=decode) takes 1%"),
    "threads and the step, 0.7 cores": (
        flow(runner(workers(4, busy=0.98, cpu=0.1), waiting=0.03, backend="thread", consumer_cpu_seconds=3)),
        "workers",
        "they hold the interpreter lock",
    ),
    "threads and the step, 1.2 cores": (
        flow(runner(workers(4, busy=0.98, cpu=0.25), waiting=0.03, backend="thread", consumer_cpu_seconds=2)),
        "workers",
        "they hold the interpreter lock",
    ),
    "kept by the lock for a fifth": (
        flow(
            runner(
                workers(4, busy=0.98, cpu=0.025),
                backend="thread",
                consumer_cpu_seconds=7.5,
                consumer_delayed_seconds=0.5,
            )
        ),
        "workers",
        "they hold the interpreter lock",
    ),
    "without a core for a quarter, half of the cores": (
        flow(
            runner(
                workers(2, busy=0.9, cpu=0.25),
                cores=2,
                consumer_cpu_seconds=5,
                consumer_delayed_seconds=2.5,
            )
        ),
        "workers",
        "The processors are the bottleneck",
    ),
    "a node above the runner, half": (
        flow(runner(workers(2, busy=0.4, blocked=0.6)), above=0.5),
        "consumer",
        "A node above the workers is the bottleneck",
    ),
}


@pytest.mark.parametrize("name", CASES | AT_THE_LIMITS)
def test_the_bottleneck_is_named(name):
    statistics, bottleneck, text = (CASES | AT_THE_LIMITS)[name]
    verdict = verdict_of(statistics)
    assert verdict.bottleneck == bottleneck, verdict
    assert text in verdict.text
    assert verdict.text.startswith("The") or not text.startswith("The")
    assert verdict.runner == (0 if statistics.runners else None)
    is_known = bottleneck not in ("none", "unknown")
    assert verdict.is_good is (verdict.text.startswith("Your training step") if is_known else None)


@pytest.mark.parametrize(
    ("statistics", "sentence"),
    [
        (flow(runner(BUSY, waiting=0.9)), "would run at least 10 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=0.75), above=0.0), "would run 4.0 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=0.5), above=0.25), "would run 4.0 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=0.01), above=0.0), "would hardly run faster."),
        (flow(runner(BUSY, waiting_seconds=1.0, working_seconds=20.0), above=0.0), "would run 1.1 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=0.01)), "would run at least 1.0 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=1.0), above=0.0), "would run more than 100 times as fast."),
        (flow(runner(workers(1, busy=1.0), waiting=1.0), above=0.5), "would run more than 100 times as fast."),
        (flow(runner(BUSY, waiting_seconds=0.05, working_seconds=0.0)), "would run more than 100 times as fast."),
        (flow(runner(BUSY, waiting_seconds=0.04, working_seconds=0.0)), ""),
        (flow(runner(BUSY, waiting=0.9, datapoints=0)), ""),
        (FlowStatistics((NodeStatistics("A()", share=0.5), NodeStatistics("B()"))), "would run 2.0 times as fast."),
        (FlowStatistics((NodeStatistics("A()", share=0.9),)), "would run 10 times as fast."),
        (FlowStatistics((NodeStatistics("A()"), NodeStatistics("B()"))), ""),
    ],
)
def test_the_ceiling_is_what_is_left_without_the_flow(statistics, sentence):
    assert ceiling_of(statistics) == (sentence and f"If the loader took no time, the loop {sentence}")


@pytest.mark.parametrize("name", ["threads and the step, 0.7 cores", "without a core for a quarter, half of the cores"])
def test_the_ceiling_of_a_loop_that_workers_slow_down_is_not_known(name):
    assert ceiling_of(AT_THE_LIMITS[name][0]) == ""


def test_the_ceiling_is_a_lower_bound_if_another_runner_was_not_measured_with_the_first():
    first = flow(runner(BUSY, waiting=0.5), above=0.0)
    second = runner(BUSY, waiting=0.5)
    for other, reads_input, bound in (
        (second, False, "at least "),
        (second, True, ""),
        (replace(second, outer=0), False, ""),
    ):
        runners = (replace(first.runners[0], reads_input=reads_input), other)
        assert f"would run {bound}2.0 times" in ceiling_of(replace(first, runners=runners))


def test_a_loop_that_has_no_processor_for_a_quarter_of_its_time_is_told_so():
    for delayed, is_told in ((0.5, True), (0.49, False)):
        made = runner(BUSY, working_seconds=2.0, consumer_delayed_seconds=delayed)
        verdict = verdict_of(flow(made))
        assert verdict.bottleneck == "consumer"
        assert ("For 25% of its own time your loop is ready to run, and has no processor" in verdict.text) is is_told


def test_a_node_below_the_runner_is_not_above_it():
    made = runner(workers(2, busy=0.4, blocked=0.6), waiting=0.03, node=0)
    nodes = (NodeStatistics("MultiProcessMapData(…)"), NodeStatistics("SlowSource()", share=0.9))
    text = "Your training step is the bottleneck: the consumer waits 3% of the time for MultiProcessRunnerZMQ."
    assert verdict_of(FlowStatistics(nodes, (made,))).text == text


def test_a_node_above_the_map_is_not_its_source():
    made = runner(workers(2, busy=0.2, starved=0.8), source=0.8, reads_input=True, node=1)
    nodes = (NodeStatistics("BatchData()", share=0.1), NodeStatistics("Map()"), NodeStatistics("Source()", share=0.05))
    assert "80% of the time; Source() takes 5%" in verdict_of(FlowStatistics(nodes, (made,))).text


def test_two_nodes_above_the_runner_are_one_if_one_of_them_takes_nearly_all():
    made = runner(workers(2, busy=0.4, blocked=0.6), node=2)
    for second, start in ((0.1, "The nodes above the workers are"), (0.09, "A node above the workers is")):
        nodes = (NodeStatistics("A()", share=0.5), NodeStatistics("B()", share=second), NodeStatistics("Runner()"))
        assert verdict_of(FlowStatistics(nodes, (made,))).text.startswith(start)


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


@pytest.mark.parametrize("share", [0.95, None])
def test_a_runner_in_workers_is_named_and_not_judged(share):
    outer = runner(workers(2, busy=0.95, cpu=0.02), waiting=0.9, node=0, name="MultiProcessRunnerZMQ")
    inner = RunnerStatistics(1, "MultiThreadMapData", "thread", datapoints=100, seconds=20.0, outer=0, num_outer=2)
    nodes = (
        NodeStatistics("MultiProcessRunnerZMQ(num_proc=2)"),
        NodeStatistics("MultiThreadMapData(num_thread=2)", "  ", runner=0, share=share),
        NodeStatistics("FakeData()", "  ", runner=0, share=share and 0.01),
    )
    verdict = verdict_of(FlowStatistics(nodes, (outer, inner)))
    assert (verdict.bottleneck, verdict.runner) == ("workers", 0)
    assert verdict.text.endswith(
        "A report of the flow without MultiProcessRunnerZMQ shows what limits MultiThreadMapData."
    )
    assert inner.datapoints_per_second == 5


def test_a_runner_in_workers_is_not_named_where_another_node_takes_most_of_their_time():
    outer = runner(workers(2, busy=0.95, cpu=0.02), waiting=0.9, node=0, name="MultiProcessRunnerZMQ")
    inner = RunnerStatistics(1, "MultiThreadMapData", "thread", datapoints=100, seconds=20.0, outer=0, num_outer=2)
    nodes = (
        NodeStatistics("MultiProcessRunnerZMQ(num_proc=2)"),
        NodeStatistics("MultiThreadMapData(num_thread=2)", "  ", runner=0, share=0.01),
        NodeStatistics("FakeData()", "  ", runner=0, share=0.95),
    )
    verdict = verdict_of(FlowStatistics(nodes, (outer, inner)))
    assert "FakeData() takes 95%" in verdict.text and "MultiThreadMapData" not in verdict.text


@pytest.mark.parametrize(("waiting", "judged"), [(8.5, 1), (4.5, 1), (1.0, 0)])
def test_a_runner_below_a_map_is_judged_if_its_input_is_what_the_map_waits_for(waiting, judged):
    nodes = (NodeStatistics("MultiThreadMapData(…)"), NodeStatistics("MultiProcessRunner(…)"))
    source = runner(workers(2, starved=1.0), source=0.9, node=0, reads_input=True)
    below = runner(BUSY, waiting_seconds=waiting, working_seconds=10 - waiting, node=1)
    assert verdict_of(FlowStatistics(nodes, (source, below))).runner == judged


def test_one_idle_worker_among_busy_ones_changes_nothing():
    three = (worker(0, busy=1.0), worker(1, busy=1.0), worker(2, starved=1.0))
    assert verdict_of(flow(runner(three, waiting=0.9))).bottleneck == "workers"


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
