"""The parts of the benchmarks that decide what a figure means: sources, medians, ratios, tables."""

import dataclasses
import itertools
import json
import os
import pickle
import re
import statistics
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import (
    auto,
    cases,
    contenders,
    disk,
    elastic,
    imports,
    memory,
    nodes,
    profiles,
    ray_costs,
    report,
    requests,
    simulate,
    sources,
    starts,
    suite,
    targets,
    workloads,
)
from benchmarks.__main__ import parse_arguments
from benchmarks.figures import Figures
from dataflow.observe.profiler import Placement

CHEAP = ["small", "mnist", "image", "ragged"]


def record(label, rate, *, workload="small", workers=1, in_processes=True):
    costs = {"consumer_cpu": 1e-6, "memory": 3 << 20, "startup": 0.01, "close": 0.02}
    job = {"measurement": "throughput", "workload": workload, "label": label, "workers": workers}
    return job | costs | {"rate": rate, "in_processes": in_processes}


RECORDS = [
    record("references/in-process", 1000.0, in_processes=False),
    *(record("ours/zmq", rate) for rate in (90.0, 700.0, 100.0)),
    record("ours/zmq", 300.0, workers=2),
    record("tensorpack/zmq", 50.0),
    record("tensorpack/thread", 9000.0, in_processes=False),
    record("mp_queue/queue", 40.0) | {"error": "it broke"},
]


@pytest.mark.parametrize("name", CHEAP)
def test_the_check_of_a_workload_accepts_its_datapoints(name):
    workload = workloads.by_name(name)
    datapoints = list(itertools.islice(workload.source(start=3, step=2), 5))
    workload.check(workload.consume(datapoints), whole=True)
    assert pickle.loads(pickle.dumps(workload)) is workload


@pytest.mark.parametrize("name", ["mnist", "image", "ragged"])
def test_no_array_comes_twice_within_a_chunk(name):
    workload = workloads.by_name(name)
    values = [dp.values() if isinstance(dp, dict) else dp for dp in itertools.islice(workload.source(), workload.chunk)]
    arrays = [value for components in values for value in components if isinstance(value, np.ndarray)]
    assert len({array.__array_interface__["data"] for array in arrays}) == len(arrays)


def test_a_wrong_datapoint_is_found():
    workload = workloads.by_name("mnist")
    image, index = next(workload.source())
    with pytest.raises(ValueError, match="differs from the expected"):
        workload.check([image, index + 1], whole=True)
    with pytest.raises(ValueError, match="differs from the expected"):
        workload.check([image.astype(np.int16), index])


@pytest.mark.parametrize("name", contenders.ALL)
def test_a_contender_names_its_variants_and_needs_nothing_installed_to_be_listed(name):
    contender = contenders.load(name)
    assert contender.VARIANTS and contender.__doc__
    for variant in contender.VARIANTS.values():
        assert set(variant.workloads) <= set(workloads.WORKLOADS)


def test_a_round_holds_every_variant_with_each_number_of_workers_once():
    jobs = suite.plan(["references", "ours"], ["small"], [1, 2], seconds=1, touch="ends")
    found = [(job["label"], job["workers"]) for job in jobs]
    assert len(set(found)) == len(found)
    assert {("references/in-process", 1), ("ours/zmq", 1), ("ours/zmq", 2), ("ours/zmq-hwm200", 2)} <= set(found)
    assert ("references/in-process", 2) not in found


def test_figures_are_medians_and_the_better_number_of_workers_counts():
    figures = Figures(RECORDS)
    (one,) = figures.select("small", "ours/zmq", workers=1)
    assert (one.rate, one.slowest, one.fastest, one.runs) == (100.0, 90.0, 700.0, 3)
    assert figures.best_of("small", "ours/zmq").workers == 2
    assert figures.best_of("small", "mp_queue/queue") is None


def test_the_best_peer_is_another_library_that_works_in_processes():
    assert Figures(RECORDS).best_peer("small").label == "tensorpack/zmq"


def test_a_promise_is_kept_broken_or_not_measured():
    found = {
        verdict.promise: verdict for verdict in targets.verdicts(Figures(RECORDS), []) if verdict.workload == "small"
    }
    assert found["ours/zmq / tensorpack/zmq"].found == 6.0 and found["ours/zmq / tensorpack/zmq"].is_kept is False
    assert found["ours/zmq / references/in-process"].is_kept is True
    assert found["ours/zmq-hwm200 / tensorpack/zmq"].is_kept is None


def test_every_promise_names_contenders_that_exist():
    for item in (*targets.OF_ZMQ, *targets.OF_OTHERS, *targets.OF_TRAINING, *targets.CPU_OF_TRAINING):
        for label in {item.label, item.against} - {targets.BEST_PEER}:
            name, variant = contenders.split(label)
            assert item.workload in contenders.load(name).VARIANTS[variant].workloads
    assert set(targets.LIMITS) == set(workloads.WORKLOADS)


def test_the_report_shows_ratios_verdicts_and_what_failed():
    probes = [
        {"measurement": "burst", "label": "ours/zmq", "wait": 0.004, "worst": 0.006},
        {"measurement": "killed", "label": "mp_queue/queue", "exception": None, "after": None},
    ]
    results = {
        "machine": {"cpu": "a cpu", "cores": 2, "memory_gib": 4.0, "system": "Linux", "python": "3.11"},
        "settings": {"runs": 3, "seconds": 1.0, "workers": [1, 2]},
        "versions": {"numpy": "2"},
        "runs": [*RECORDS, *probes],
    }
    text = report.markdown(json.loads(json.dumps(results)))
    assert "| small | 6× | 6× (tensorpack/zmq) | 30 % of in-process |" in text
    assert "from made to received | 4 ms | ≤ 50 ms | yes |" in text
    assert "not reported" in text and "mp_queue/queue, 1 workers: it broke" in text


def test_the_table_of_the_readme_names_what_it_compares_with():
    runs = [*RECORDS, record("spdl_arena/queue", 8.0), record("spdl_arena/pool", 6.0)]
    text = report.overview_table(Figures(runs))
    assert "| `[int, float]` | 6× tensorpack | 38× SPDL | 30 % of the generator alone |" in text
    assert text.count("\n") == 2, "one row: the other workloads were not measured"


# -- training loops ----------------------------------------------------------------------------------------------------

LOOP = [
    record("training_limit/serial", 100.0, workload="training", in_processes=False),
    record("training_ours/strict", 180.0, workload="training", workers=2),
    record("training_torch/loader", 90.0, workload="training", workers=2) | {"consumer_cpu": 4e-6},
    record("training_spdl/threads", 150.0, workload="training", workers=2, in_processes=False),
]


def test_lists_are_padded_with_zeros_to_the_longest():
    tokens, lengths = workloads.pad([[1, 2, 3], [4], [5, 6]])
    assert tokens.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]] and lengths.tolist() == [3, 1, 2]
    assert tokens.dtype == lengths.dtype == np.int64


class Tensor:
    """What the check of a training loop uses of a torch tensor."""

    def __init__(self, array):
        self.numpy = lambda: array


def test_a_batch_of_tokens_is_checked_by_what_its_lists_begin_with():
    workload = workloads.by_name("tokens")
    tokens, lengths = workload.make(7)
    assert tokens[:, 0].tolist() == list(range(7 * 32, 8 * 32))
    workload.check([Tensor(tokens), Tensor(lengths)], whole=True)
    with pytest.raises(ValueError, match="differs from the expected"):
        workload.check([Tensor(tokens), Tensor(lengths + 1)])


def test_the_images_of_a_training_set_are_cropped_and_mirrored_the_same_way_every_time(tmp_path, monkeypatch):
    pytest.importorskip("cv2")
    monkeypatch.setenv(workloads.FILES_VARIABLE, str(tmp_path))
    workloads.write_photographs(suite.photographs(), tmp_path, num=4)
    workload = workloads.Training()
    images, labels = workload.make(0)
    assert images.shape == (32, 3, 224, 224) and images.dtype == np.float32
    assert labels.tolist() == [0, 1, 2, 3] * 8
    assert (images[:4] == images[-4:]).all() and abs(float(images.mean())) < 2
    workload.check([Tensor(images), Tensor(labels)], whole=True)
    with pytest.raises(ValueError, match="differs from the expected"):
        workload.check([Tensor(images[:, :, :, ::-1]), Tensor(labels)])


def test_training_loops_have_tables_of_their_own_and_count_threads_among_the_others():
    figures = Figures([*RECORDS, *LOOP])
    assert figures.best_peer("training").label == "training_spdl/threads"
    found = {verdict.promise: verdict for verdict in targets.verdicts(figures, []) if verdict.workload == "training"}
    assert found["training_ours/strict / training_torch/loader, 2 workers"].found == 2.0
    assert found["training_ours/strict / best peer in processes, 2 workers"].found == 1.2
    assert found["training_ours/strict / training_limit/serial, 2 workers"].is_kept is False
    cpu = found["training_ours/strict / training_torch/loader, 2 workers: CPU of the consumer"]
    assert cpu.found == 0.25 and cpu.is_kept is False
    assert found["training_ours/map / training_torch/loader, 2 workers: CPU of the consumer"].found is None
    assert "| training | ours/strict (2) | 180 | 2× | 180 % | 1 | 3 | 10 |" in report.training_table(figures)
    overview = report.overview_table(figures)
    assert overview.index("2× | 1.2× |  |  | 180 % of one core |") < overview.index("`[int, float]`")


def test_contenders_of_training_loops_run_nothing_else_and_are_chosen_together():
    jobs = suite.plan(contenders.ALL, ["training"], [2], seconds=1, touch="ends")
    assert {contenders.split(job["label"])[0] for job in jobs} == set(contenders.TRAINING)
    chosen = parse_arguments(["--training"])
    assert chosen.workloads == ["training", "tokens"] and chosen.contenders == list(contenders.TRAINING)


# -- the simulation ----------------------------------------------------------------------------------------------------

MS = 1e-3
SLOW_WORKER = simulate.Costs(0, 1 * MS, 0, 0.1 * MS, 0, 0, 1, 1000, 1)


def rate(costs, workers, cores, **more):
    return simulate.simulate(costs, workers, cores, **more).rate


def test_workers_with_a_core_each_work_side_by_side_until_the_consumer_is_busy():
    assert rate(SLOW_WORKER, 1, 8) == pytest.approx(1000, rel=0.01)
    assert rate(SLOW_WORKER, 6, 8) == pytest.approx(6000, rel=0.01)
    assert rate(SLOW_WORKER, 50, 64) == pytest.approx(10_000, rel=0.01)
    assert [simulate.simulate(SLOW_WORKER, n, 64).ceiling for n in (6, 50)] == ["workers", "consumer"]


def test_workers_and_the_consumer_share_the_cores():
    assert rate(SLOW_WORKER, 1, 1) == pytest.approx(1000 / 1.1, rel=0.01)
    assert rate(SLOW_WORKER, 8, 2) == pytest.approx(2000 / 1.1, rel=0.02)
    assert simulate.simulate(SLOW_WORKER, 8, 2).ceiling == "cores"


def test_memory_that_moves_too_little_is_the_ceiling():
    found = simulate.simulate(SLOW_WORKER, 8, 16, bandwidth=4e6)
    assert found.rate == pytest.approx(2000, rel=0.01), "1,000 bytes are written and read"
    assert found.ceiling == "memory"


def test_a_consumer_pays_for_a_wake_up_only_if_it_has_waited():
    sleepy = simulate.Costs(0, 1 * MS, 0, 0.1 * MS, 0, 0.5 * MS, 1, 1000, 1)
    assert simulate.simulate(sleepy, 1, 2).consumer == pytest.approx(0.6, abs=0.02)
    assert rate(sleepy, 50, 64) == pytest.approx(10_000, rel=0.01), "it is never idle"


def test_a_worker_without_credit_waits_for_the_consumer():
    fast = simulate.Costs(0, 1e-9, 0, 1 * MS, 0, 0, 1, 1 << 20, 33)
    assert fast.most_ahead == 2, "the window has 66 datapoints"
    assert rate(fast, 4, 8) == pytest.approx(33_000, rel=0.01)


def test_a_worker_pays_for_a_consumer_that_is_behind():
    fast = simulate.Costs(0.1 * MS, 0, 0.3 * MS, 1 * MS, 0, 0, 1, 1 << 20, 3)
    busy = simulate.simulate(fast, 1, 2)
    assert busy.cores == pytest.approx((1 + 0.1 + 0.3) / 2, rel=0.02), "it is behind with each message"
    slow = simulate.Costs(0, 1 * MS, 0.3 * MS, 0.1 * MS, 0, 0, 1, 100, 1)
    assert rate(slow, 1, 2) == pytest.approx(1000, rel=0.01), "the consumer takes each message at once"


def test_a_process_keeps_its_core_for_a_slice_while_others_wait_for_one():
    order = []

    class Watched(simulate.Costs):
        def of_worker(self, behind):
            order.append("worker")
            return super().of_worker(behind)

        def of_consumer(self, waited):
            order.append("consumer")
            return super().of_consumer(waited)

    watched = Watched(0, 1 * MS, 0, 0.1 * MS, 0, 0, 1, 1000, 1)
    simulate.simulate(watched, 1, 1, messages=100)
    runs = [len(list(group)) for who, group in itertools.groupby(order) if who == "worker"]
    assert statistics.median(runs) == 3, "three messages of one millisecond are a slice"


def test_work_takes_longer_while_others_wait_for_a_core():
    contended = dataclasses.replace(SLOW_WORKER, contention=1.5)
    assert rate(contended, 1, 8) == pytest.approx(rate(SLOW_WORKER, 1, 8))
    assert rate(contended, 8, 2) == pytest.approx(rate(SLOW_WORKER, 8, 2) / 1.5, rel=0.05)


@pytest.mark.parametrize("per_message", [2, 16, 500])
@pytest.mark.parametrize("per_held_back", [2, 80])
def test_the_costs_of_a_message_a_datapoint_and_a_wake_up_are_told_apart(per_message, per_held_back):
    of_worker, of_consumer = (3e-5, 2e-6, 1e-4), (4e-5, 1e-6, 5e-5)

    def run(number, worker_woken, consumer_woken):
        return simulate.Observed(
            rate=1.0,
            worker=of_worker[1] + (of_worker[0] + worker_woken * of_worker[2]) / number,
            consumer=of_consumer[1] + (of_consumer[0] + consumer_woken * of_consumer[2]) / number,
            per_message=number,
        )

    together = run(per_message, 0, 1)
    contended = dataclasses.replace(together, worker=1.2 * together.worker, consumer=1.2 * together.consumer)
    probes = simulate.Probes(run(1, 0, 1), together, run(per_held_back, 1, 0), contended)
    found = probes.costs(1000)
    expected = simulate.Costs(*of_worker, *of_consumer, contention=1.2, datapoint_bytes=1000, per_message=per_message)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected))


def test_where_every_datapoint_is_a_message_it_has_all_of_the_cost():
    alone, together, held_back = (simulate.Observed(1.0, *costs, 1) for costs in ((9, 7), (4, 5), (6, 2)))
    found = simulate.Probes(alone, together, held_back, contended=together).costs(0)
    assert (found.worker_message, found.worker_datapoint, found.worker_behind) == (0, 4, 2), "alone waits more often"
    assert (found.consumer_message, found.consumer_datapoint, found.consumer_wakeup) == (2, 0, 3)
    assert found.contention == 1


def test_the_tables_say_what_is_measured_what_is_predicted_and_what_lifts_the_ceiling():
    probe = simulate.Observed(rate=1000.0, worker=1 * MS, consumer=0.1 * MS, per_message=1)
    results = {
        "machine": {"cpu": "a cpu", "cores": 2},
        "bandwidth": 200e9,
        "workloads": {
            "image": {
                "bytes": 1000,
                "probes": dataclasses.asdict(simulate.Probes(probe, probe, probe, probe)),
                "real": {
                    number: dataclasses.asdict(dataclasses.replace(probe, rate=rate))
                    for number, rate in {"1": 1000.0, "2": 500.0, "4": 1800.0, "8": 1820.0}.items()
                },
            }
        },
    }
    text = simulate.tables(json.loads(json.dumps(results)))
    assert "| image | 1,000 (" in text and "| **500 (+" in text, "the second is far from the model"
    assert re.search(r"\| consumer, from (1\d|2\d) on \|", text)
    assert "What lifts the ceiling of the consumer (`image`): fewer, larger datapoints" in text
    assert "**Measured**" in text and "**Predicted**" in text


def test_the_best_number_of_workers_is_the_smallest_that_is_almost_as_fast():
    assert profiles.best_number({1: 100.0, 2: 190.0, 4: 196.0, 8: 120.0}) == 2
    assert profiles.steps_between(2, 8, [1, 2, 4, 8]) == 2


@pytest.mark.parametrize(("kind", "runner"), [("runner", "ParallelData"), ("map", "MultiThreadMapData")])
def test_the_recommended_class_is_the_one_that_runs(kind, runner):
    advice = Placement(kind, "", runner, "thread", 2, 100.0, "")
    with profiles.with_workers(auto.Case(lambda: auto.small, num=20), advice, 2) as df:
        assert type(df).__name__ == runner and df.num_workers == 2
        assert list(df) == [[k, 0.5] for k in range(20)]


def costs(*seconds):
    return dict(zip(ray_costs.PARTS, seconds, strict=True))


def test_the_parts_of_a_datapoint_are_medians_as_percentages_of_the_loop():
    loop = [("image", "loop", costs(10, 20, 40, 30, 0))]
    runner = [("image", "runner", costs(20, 20, 40, 30 + more, 5)) for more in (0, 10, 900)]
    *_, first, second = ray_costs.shown(loop + runner).splitlines()
    assert first == "| image, loop | 10 | 20 | 40 | 30 | 0 | 100 |"
    assert second == "| image, runner | 20 | 20 | 40 | 40 | 5 | 125 |"


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["ray::Source.chunk"], True),
        (["ray::WorkerActor"], True),
        (["ray::IDLE"], False),
        (["ray::RuntimeEnvAgent"], False),
        (["raylet"], False),
        ([], False),
    ],
)
def test_an_actor_is_known_by_the_title_of_its_process(command, is_one):
    assert ray_costs.is_actor(command) is is_one


def test_figures_go_between_the_marks_of_a_page():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.insert(page, "new") == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    with pytest.raises(ValueError, match="no lines"):
        report.insert("a page", "new")


def test_the_page_has_a_place_for_each_kind_of_figures():
    page = simulate.PAGE.read_text("utf-8")
    for marks in ((report.BEGIN, report.END), report.LOOP_MARKS, simulate.MARKS):
        assert "new figures" in report.insert(page, "new figures", marks)


def test_training_loops_alone_are_published_in_places_of_their_own(tmp_path, monkeypatch):
    page, readme = tmp_path / "docs" / "benchmarks.md", tmp_path / "README.md"
    page.parent.mkdir()
    for path, name in ((page, "PAGE"), (readme, "README")):
        path.write_text("\n".join([report.BEGIN, "transport", report.END, *report.LOOP_MARKS, ""]), "utf-8")
        monkeypatch.setattr(command, name, path)
    machine = {"cpu": "a cpu", "cores": 2, "memory_gib": 8, "system": "Linux", "python": "3.11"}
    loops = {"training_ours/default": 300.0, "training_torch/loader": 100.0}
    results = {
        "machine": machine,
        "settings": {"runs": 1, "seconds": 1.0, "workers": [2]},
        "versions": {},
        "runs": [record(label, rate, workload="training", workers=2) for label, rate in loops.items()],
    }
    assert command.publish(results) == page.with_name("training-loops.svg")
    for path, drawing in ((page, "(training-loops.svg)"), (readme, "(docs/training-loops.svg)")):
        text = path.read_text("utf-8")
        assert "transport" in text and "3×" in text and drawing in text
    results["runs"] = RECORDS
    assert command.publish(results) == page.with_suffix(".svg")
    assert "transport" not in page.read_text("utf-8") and "3×" in page.read_text("utf-8"), "the loops are still there"


@pytest.mark.parametrize("name", nodes.CHAINS)
def test_a_chain_of_nodes_gives_datapoints(name, monkeypatch):
    monkeypatch.setattr(nodes, "N", 300)
    import dataflow

    chain = nodes.CHAINS[name]
    df = chain.make(dataflow)
    assert len(list(itertools.islice(df, 2))) == 2
    assert chain.nodes >= 1 <= chain.per_item


def test_a_row_of_nodes_counts_the_fastest_run_and_meets_the_target_by_ratio_or_by_nanoseconds():
    def verdicts(ours, theirs):
        runs = [
            ({"list": ours * slower, "BatchData": 128 * ours * slower}, {"list": theirs, "BatchData": 128 * theirs})
            for slower in (3, 1, 2)
        ]
        return [row.meets_target for row in nodes.compare(runs)]

    assert verdicts(100, 100) == verdicts(1099, 1000) == [True, True]
    assert verdicts(159, 100) == [True, True], "60 ns for a node"
    assert verdicts(219, 100) == [False, True], "120 for two"
    assert verdicts(221, 100) == verdicts(1221, 1000) == [False, False]
    text = nodes.table(nodes.compare([({"list": 200.0}, {"list": 100.0})]))
    assert "| list | 200 | 100 | 2.00 | 160 | **missed** |" in text


@pytest.mark.parametrize("form", disk.FORMATS)
@pytest.mark.parametrize("kind", disk.DATAPOINTS)
def test_reading_a_file_is_timed_without_the_peer(form, kind, tmp_path):
    found = disk.measure("ours", form, kind, str(tmp_path), num=30)
    assert found.keys() == set(disk.PASSES) and min(found.values()) > 0
    names = [path.name for path in tmp_path.glob(f"*.{form}")]
    assert len(names) == 2, "one to warm up, and one to measure"


def test_a_row_of_files_counts_the_fastest_run_and_must_not_be_slower_than_the_peer():
    runs = [
        ({"first": 300.0 * slower, "later": 90.0}, {"first": 200.0 * slower, "later": 100.0}) for slower in (3, 1, 2)
    ]
    rows = disk.compare("lmdb", "1 KiB", runs)
    assert [(row.ours, row.theirs, row.meets_target) for row in rows] == [(300, 200, False), (90, 100, True)]
    assert "| lmdb, 1 KiB, first pass | 300 | 200 | 1.50 | **missed** |" in disk.table(rows)
    runs = [({"first": 100.0, "later": 900.0}, {"first": 200.0, "later": 100.0})]
    rows = disk.compare("hdf5", "1 KiB", runs)
    assert all(row.meets_target for row in rows)
    assert "| hdf5, 1 KiB, later pass | 900 | 100 | 9.00 | from memory |" in disk.table(rows)


@pytest.mark.parametrize("name", sources.CASES)
def test_reading_tables_and_shards_is_timed(name, monkeypatch):
    if "parquet" in name:
        pytest.importorskip("pyarrow")
    if "webdataset" in name:
        monkeypatch.setitem(sources.CASES, name, sources.CASES[name]._replace(theirs=lambda path: 12))
    row = sources.measure(name, 1, 12)
    assert row.name == name and min(row.ours, row.theirs) > 0


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(chain, marks=[] if chain == "shuffle, map, filter" else [pytest.mark.full])
        for chain in elastic.CHAINS
    ],
)
def test_what_other_ranks_repeat_or_lose_is_counted(chain, monkeypatch):
    monkeypatch.setattr(elastic, "NUM", 8 * 6 * 31 + 144)
    monkeypatch.setattr(elastic, "NUM_UNFILTERED", elastic.NUM * 10 // 9 + 1)
    for new in elastic.CHANGES:
        assert elastic.measure(elastic.ours, chain, new) == "0 repeated, 0 lost"


@pytest.mark.parametrize(
    ("begin", "found"),
    [
        (lambda ranks: 8 * 6 * 31, "0 repeated, 0 lost"),
        (lambda ranks: 31 * ranks * 6, "372 repeated, 0 lost"),  # of 8 * 31 * 6 positions, 6 ranks take as passed 6 / 8
        (lambda ranks: 8 * 6 * 31 + 5, "0 repeated, 5 lost"),
        (lambda ranks: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_repeated_lost_or_refused_is_named(begin, found):
    def job(chain, rank, ranks, batch_size, state):
        numbers = range((0 if state is None else begin(ranks)) + rank, elastic.NUM, ranks)
        return (numbers[k : k + batch_size] for k in range(0, len(numbers), batch_size)), dict

    assert elastic.measure(job, elastic.CHAINS[0], (6, 8)) == found


def test_fetching_files_is_timed(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(requests, "NUM_CONCURRENT", 8)
    command = [sys.executable, "-m", "benchmarks.requests", "--serve"]
    with subprocess.Popen(command, cwd=requests.ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            for name in (requests.OURS, requests.BARE, "AsyncMapData and aiohttp"):
                run = requests.measure(name, port, 12)
                assert run.seconds > 0 and run.cpu > 0
        finally:
            server.kill()


def test_large_figures_of_a_table_have_no_exponent():
    killed = {"measurement": "killed", "exception": "WorkerDied", "after": 1.1}
    assert report.probe_cell(killed) == "WorkerDied after 1,100 ms"
    figures = Figures([record("ours/zmq", 10.0) | {"consumer_cpu": 3.071e-3}])
    assert "| small | ours/zmq | 3,070 |" in report.costs_table(figures)


NEEDED = {"notebook": ["cv2", "nbclient", "ipykernel"], "list": ["torch"], "threads": [], "http": ["aiohttp", "fsspec"]}


@pytest.mark.parametrize(
    ("name", "num"),
    [
        ("notebook", 32),
        ("list", 30_000),
        ("threads", 40),
        pytest.param("http", 20, marks=pytest.mark.full),
    ],
)
def test_the_programs_of_a_case_are_measured(name, num):
    for package in NEEDED[name]:
        pytest.importorskip(package)
    runs = {variant: [cases.measure(sys.executable, name, variant, num)] for variant in cases.CASES[name][1]}
    text = cases.text_of(runs)
    if name == "list":
        assert all(memory > 0 for found in runs.values() for memory in found[0]["memory"])
        assert "\n| MiB after a part of the pass | 0 % | 1 % | 5 % | 10 % | 25 % |\n" in text
    else:
        assert re.match(r"\*\*After: [\d.]+ times as fast\.\*\* The median of 1 run", text)
    if name == "threads":
        assert "take turns holding the interpreter lock" in text.partition("The report after")[0]


def test_each_case_has_its_programs_and_figures_on_the_page():
    page = cases.PAGE.read_text("utf-8")
    for name, (call, variants) in cases.CASES.items():
        programs = ["\n".join(["", *cases.program(name, variant, 7)]) for variant in variants]
        assert len(set(programs)) == len(programs) > 1
        assert all("\nNUM = 7\n" in program and "\ndf = " in program and call in program for program in programs)
        begin, end = cases.marks(name)
        assert "**After: " in page.partition(begin)[2].partition(end)[0]


def test_a_case_shows_the_median_of_the_ratios_of_its_rounds():
    runs = {
        "before": [{"rate": rate, "report": "slow"} for rate in (1, 2, 10)],
        "after": [{"rate": rate, "report": "fast " * 30} for rate in (3, 4, 40)],
    }
    text = cases.text_of(runs)
    assert "After: 3 times as fast.** The median of 3 runs of both programs in turn, which gave 2 to 4." in text
    assert max(map(len, text.split('=== "The report before"')[1].splitlines())) < 115
    memory = cases.text_of(
        {"a": [{"memory": [1, 2, 3, 4, 5]}, {"memory": [3, 2, 3, 4, 9]}], "b": [{"memory": [2] * 5}]}
    )
    assert memory.startswith("**After: 3.5 times less memory,** once 25 % ")
    assert memory.endswith("| `a` | 2 | 2 | 3 | 4 | 7 |\n| `b` | 2 | 2 | 2 | 2 | 2 |")


def test_a_row_of_requests_meets_its_targets_by_ratio():
    slow, fast = requests.Run(requests.ideal(100) * 1.5, 3e-4), requests.Run(requests.ideal(100) * 1.2, 1e-4)
    assert requests.missed({requests.OURS: [slow], requests.BARE: [fast]}, 100) == [
        "seconds / ideal: 1.50, at most 1.4 is wanted",
        "CPU / bare loop: 3.00, at most 1.5 is wanted",
    ]
    runs = {requests.OURS: [fast], requests.BARE: [fast]}
    assert requests.missed(runs, 100) == []
    assert "| FetchData | 0.19 | 1.20 | 100 | 1.00 |" in requests.table(runs, 100)


def test_a_row_of_sources_meets_its_target_by_ratio():
    rows = [sources.Row("a", 100.0, 80.0, 0.8), sources.Row("b", 100.0, 79.0, 0.8), sources.Row("c", 100.0, 1.0, None)]
    assert [row.meets_target for row in rows] == [True, False, True]
    assert "| b | 100 | 79 | 0.79 | ≥ 0.8: **missed** |" in sources.table(rows)


@pytest.mark.full
def test_imports_are_timed_above_an_interpreter_that_only_starts():
    times = imports.measure(runs=1)
    assert list(times) == list(imports.STATEMENTS)
    assert all(len(runs) == 1 for runs in times.values())


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="the system does not tell")
def test_an_idle_worker_has_private_pages_and_a_part_of_those_that_it_shares():
    proportional, private = memory.idle(2, "fork")
    assert 1 << 18 < private < proportional < memory.proportional_bytes(os.getpid())


def test_starts_are_medians_beside_those_of_fork():
    runs = {"fork": [[0.1, 0.2, 0.4]] * 3, "spawn": [[1.0, 0.2, 0.1], [0.5, 0.3, 0.1], [0.2, 0.9, 0.1]]}
    rows = starts.table(runs).splitlines()
    assert rows[-2].endswith("| fork | 100 (1.0×) | 200 (1.0×) | 400 (1.0×) |")
    assert rows[-1].endswith("| spawn | 500 (5.0×) | 300 (1.5×) | 100 (0.2×) |")


@pytest.mark.full
def test_starts_are_measured_for_every_method():
    found = starts.measure(1)
    assert found.keys() == {"fork", "forkserver", "spawn"}
    assert all(seconds > 0 for runs in found.values() for run in runs for seconds in run)
