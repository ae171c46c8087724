"""What a job repeats or loses that goes on with another number of ranks: ``python -m benchmarks.elastic``.

Each rank of a job makes some steps and saves its state; then another number of ranks goes on, each with the state of
the same rank, to the end of the epoch. Counted are the datapoints that came twice in the epoch, and those that never
came. The epoch has as many datapoints as whole steps take, before and after, so none is left over at its end.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of

__all__ = ["LOADERS", "measure", "table"]

ROOT = Path(__file__).parents[1]
TIMEOUT = 400.0  # seconds
CHAINS = ("shuffle, map", "shuffle, map, filter", "shuffle, mixture", "shuffle, packing")
OLD, STEPS = (8, 6), 31  # ranks and batch size; steps made with them
CHANGES = ((6, 8), (6, 6))  # the same datapoints per step, and fewer
NUM = 8 * 6 * STEPS + 144 * 50  # datapoints, or blocks of tokens, of an epoch
NUM_UNFILTERED = NUM * 10 // 9 + 1  # of which every tenth is left out
SIZE = 16  # tokens per block
SEED = 1

Job = tuple[Iterator[Sequence[int]], Callable[[], Any]]
"""The batches of one rank, as the numbers of their datapoints, and a function that gives its state."""


def documents() -> list[list[int]]:
    """Documents of numbered tokens, which fill whole blocks together."""
    choice, found, begin = random.Random(0), [], 0
    while begin < NUM * SIZE:
        end = min(begin + choice.randint(5, 100), NUM * SIZE)
        found.append([*range(begin, end)])
        begin = end
    return found


def is_wanted(k: int) -> bool:
    return k % 10 != 0


# -- the loaders: each makes the job of one rank, or returns None for a chain that it does not offer -------------------


def ours(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job:
    import dataflow
    from dataflow import (
        BatchData,
        DataFromList,
        FilterData,
        PackData,
        RandomMapData,
        RandomMixData,
        ResumableData,
        ShardData,
        ShuffleData,
    )

    def numbers(begin: int, end: int) -> Any:
        return ShuffleData(DataFromList([[k] for k in range(begin, end)], shuffle=False))

    dataflow.seed(SEED)
    if chain == "shuffle, mixture":
        ds: Any = RandomMixData([numbers(0, NUM // 3 * 2), numbers(NUM // 3 * 2, NUM)])
    elif chain == "shuffle, packing":
        ds = PackData(ShuffleData(DataFromList(documents(), shuffle=False)), SIZE)
    else:
        filters = chain.endswith("filter")
        ds = RandomMapData(numbers(0, NUM_UNFILTERED if filters else NUM), lambda dp, rng: [dp[0], rng.random()])
        ds = FilterData(ds, lambda dp: is_wanted(dp[0])) if filters else ds
    df = ResumableData(BatchData(ShardData(ds, rank, world_size), batch_size))
    if state is not None:
        df.load_state_dict(state)
    key = "tokens" if chain == "shuffle, packing" else 0
    return (batch[key].ravel().tolist() for batch in df), df.state_dict


def grain_flow(chain: str, share: Callable[[Any], Any]) -> Any:
    """The datapoints of a chain in grain, of which `share` takes those of one rank before they are packed."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()

    def numbers(begin: int, end: int) -> Any:
        return grain.MapDataset.source(range(begin, end)).seed(SEED).shuffle()

    if chain == "shuffle, mixture":
        third = NUM // 3
        return share(grain.MapDataset.mix([numbers(0, 2 * third), numbers(2 * third, NUM)], weights=[2 / 3, 1 / 3]))
    if chain == "shuffle, packing":
        import numpy as np

        ds = grain.MapDataset.source([{"tokens": np.array(tokens)} for tokens in documents()]).seed(SEED).shuffle()
        return grain.experimental.ConcatThenSplitIterDataset(
            share(ds).to_iter_dataset(), length_struct={"tokens": SIZE}
        )
    ds = numbers(0, NUM_UNFILTERED if chain.endswith("filter") else NUM)
    ds = ds.random_map(lambda k, rng: (k, rng.random())[0])
    return share(ds.filter(is_wanted) if chain.endswith("filter") else ds)


def numbers_of(batch: Any) -> list[int]:
    found: list[int] = (batch["tokens"] if isinstance(batch, dict) else batch).ravel().tolist()
    return found


def grain_elastic(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job:
    import grain

    options = grain.sharding.ShardOptions(shard_index=rank, shard_count=world_size)
    iterator = grain.experimental.ElasticIterator(grain_flow(chain, lambda ds: ds), world_size * batch_size, options)
    if state is not None:
        iterator.set_state(state)
    return map(numbers_of, iter(iterator)), iterator.get_state


def grain_shares(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job:
    import grain

    ds = grain_flow(chain, lambda ds: ds[rank::world_size])
    if isinstance(ds, grain.MapDataset):
        ds = ds.to_iter_dataset()
    iterator = iter(ds.batch(batch_size, drop_remainder=True))
    if state is not None:
        iterator.set_state(state)
    return map(numbers_of, iterator), iterator.get_state


def grain_loader(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job | None:
    import grain

    if chain not in CHAINS[:2]:
        return None

    class Draw(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: Any) -> Any:
            return (element, rng.random())[0]

    class Wanted(grain.transforms.Filter):
        def filter(self, element: Any) -> bool:
            return is_wanted(element)

    filters = [Wanted()] if chain.endswith("filter") else []
    source = range(NUM_UNFILTERED if filters else NUM)
    options = grain.sharding.ShardOptions(shard_index=rank, shard_count=world_size)
    sampler = grain.samplers.IndexSampler(len(source), options, shuffle=True, num_epochs=1, seed=SEED)
    operations = [Draw(), *filters, grain.transforms.Batch(batch_size, drop_remainder=True)]
    iterator = iter(grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=0))
    if state is not None:
        iterator.set_state(state)
    return map(numbers_of, iterator), iterator.get_state


def identity(k: int) -> int:
    return k


def litdata(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job | None:
    if chain not in {"shuffle, map", "shuffle, mixture"}:
        return None
    os.environ.update(WORLD_SIZE=str(world_size), GLOBAL_RANK=str(rank), NNODES="1")
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    def numbers(begin: int, end: int) -> Any:
        folder = Path.home() / f"{begin}-{end}"
        if not folder.exists():
            optimize(identity, [*range(begin, end)], str(folder), num_workers=1, chunk_size=64)
        return StreamingDataset(str(folder), shuffle=True, seed=SEED, transform=lambda k: (k, random.random())[0])

    if chain == "shuffle, mixture":
        third = NUM // 3
        parts = [numbers(0, 2 * third), numbers(2 * third, NUM)]
        ds = CombinedStreamingDataset(parts, seed=SEED, iterate_over_all=True)
    else:
        ds = numbers(0, NUM)
    loader = StreamingDataLoader(ds, batch_size=batch_size, num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    return (batch.tolist() for batch in loader), loader.state_dict


def torchdata(chain: str, rank: int, world_size: int, batch_size: int, state: Any) -> Job | None:
    if chain != "shuffle, map":
        return None
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    source = range(NUM)
    sampler = StatefulDistributedSampler(source, world_size, rank, shuffle=True, seed=SEED)
    loader = StatefulDataLoader(source, batch_size, sampler=sampler, num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    return (batch.tolist() for batch in loader), loader.state_dict


GRAIN = ("grain==0.2.18", "numpy>=1.26")
LOADERS: Mapping[str, tuple[str, Callable[..., Job | None], Sequence[str]]] = {
    "ours": ("ours", ours, ("numpy>=1.26",)),
    "grain_elastic": ("grain, `ElasticIterator`", grain_elastic, GRAIN),
    "grain_shares": ("grain, `ds[rank::world_size]`", grain_shares, GRAIN),
    "grain_loader": ("grain, `DataLoader`", grain_loader, GRAIN),
    "litdata": ("litData, `StreamingDataLoader`", litdata, ("litdata==0.2.76", "torch==2.13.0")),
    "torchdata": ("torchdata, `StatefulDistributedSampler`", torchdata, ("torchdata==0.11.0", "torch==2.13.0")),
}
"""By the name of their environment: what the table calls them, a function, and what to install."""


# -- counting ----------------------------------------------------------------------------------------------------------


def measure(job: Callable[..., Job | None], chain: str, new: tuple[int, int]) -> str | None:
    """What a loader repeats and loses in a chain; or the error with which it refuses; None if it has no such chain."""
    seen: list[int] = []
    states = []
    try:
        for rank in range(OLD[0]):
            made = job(chain, rank, *OLD, None)
            if made is None:
                return None
            batches, state_of = made
            for batch in islice(batches, STEPS):
                seen += batch
            states.append(json.loads(json.dumps(state)) if type(state := state_of()) is dict else state)
        for rank in range(new[0]):
            made = job(chain, rank, *new, states[rank % OLD[0]])
            for batch in made[0] if made else ():
                seen += batch
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0].split('. ')[0].rstrip('.')}"
    distinct = set(seen)
    if chain == "shuffle, packing":
        whole = set(range(NUM * SIZE))
    else:
        whole = set(filter(is_wanted, range(NUM_UNFILTERED))) if chain.endswith("filter") else set(range(NUM))
    assert distinct <= whole, "numbers of other datapoints"
    return f"{len(seen) - len(distinct):,} repeated, {len(whole - distinct):,} lost"


def table(found: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """The counts as Markdown: loader, chain, and the counts of each change."""
    changes = " | ".join(f"{OLD[0]} × {OLD[1]} → {ranks} × {size}" for ranks, size in CHANGES)
    lines = [f"| loader | chain | {changes} |", "|:--|:--|" + ":--|" * len(CHANGES)]
    lines += [f"| {name} | {chain} | {' | '.join(counts)} |" for name, chain, counts in found]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__)
    parser.add_argument("--loaders", default=",".join(LOADERS), help="(%(default)s)")
    parser.add_argument("--python", metavar="PYTHON", help="an interpreter that has them all, to install nothing")
    parser.add_argument("--here", choices=LOADERS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        count = partial(measure, LOADERS[chosen.here][1])
        counts = ((chain, [count(chain, new) for new in CHANGES]) for chain in CHAINS)
        print(json.dumps([row for row in counts if None not in row[1]]))
        return
    found = []
    for name in chosen.loaders.split(","):
        title, _, requires = LOADERS[name]
        python = chosen.python or python_of(f"elastic_{name}", requires)
        with tempfile.TemporaryDirectory() as home:  # where litData writes
            done = subprocess.run(
                [python, "-m", "benchmarks.elastic", "--here", name],
                cwd=ROOT,
                env={**os.environ, "HOME": home},
                stdout=subprocess.PIPE,
                timeout=TIMEOUT,
                check=True,
                text=True,
            )
        found += [(title, chain, counts) for chain, counts in json.loads(done.stdout.splitlines()[-1])]
    print(table(found))


if __name__ == "__main__":
    sys.exit(main())
