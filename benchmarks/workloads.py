"""Workloads: endless sources of datapoints that cost almost nothing to make, and how the consumer reads them.

All arrays of a chunk of datapoints are distinct, so that no transport gains from sending one object twice. A datapoint
contains its index, so that the consumer can check it.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

__all__ = [
    "FILES_VARIABLE",
    "JPEGS_VARIABLE",
    "TRAINING",
    "TRANSPORT",
    "WORKLOADS",
    "Workload",
    "by_name",
    "pad",
    "write_photographs",
]

JPEGS_VARIABLE = "BENCHMARK_JPEGS"  # paths of the photographs, separated by os.pathsep; scikit-learn ships them
FILES_VARIABLE = "BENCHMARK_FILES"  # folder of the JPEG files of a training set
IMAGES_PER_BATCH = 32


class Workload:
    """One kind of datapoint. It is pickled as its name: a spawned process prepares its own arrays.

    Attributes:
        window: Number of datapoints to prefetch, for contenders with such a parameter.
        chunk: Datapoints per task, for contenders that send tasks.
        max_bytes: Maximum size of the arrays of one datapoint.
        items_per_batch: Number of `items` per batch, for a workload whose batches are stacked in the worker.
        unit: What the figures count: how many of it a datapoint is, and its name.
    """

    name: ClassVar[str]
    window: ClassVar[int]
    chunk: ClassVar[int]
    max_bytes: ClassVar[int]
    items_per_batch: ClassVar[int | None] = None
    unit: ClassVar[tuple[int, str]] = (1, "datapoint")

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)

    @cached_property
    def pool(self) -> list[Any]:
        """The arrays of the datapoints, prepared before the measurement."""
        return []

    def make(self, index: int) -> Any:
        """Datapoint `index`."""
        raise NotImplementedError

    def source(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        """Datapoints `start`, `start + step`, …, endlessly."""
        return map(self.make, itertools.count(start, step))

    def inputs(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        """The input of a parallel map that runs `work`: indexes, unless there is something to decode."""
        return ([index] for index in itertools.count(start, step))

    def work(self, given: Any) -> Any:
        """The function of a parallel map: the datapoint for one of `inputs`."""
        return self.make(given[0])

    def consume(self, datapoints: Iterable[Any]) -> Any:
        """Read both ends of every array of `datapoints`; return the last datapoint."""
        raise NotImplementedError

    def check(self, dp: Any, whole: bool = False) -> None:
        """Compare some or all elements of a datapoint with the expected values."""
        raise NotImplementedError


class Small(Workload):
    """Two numbers: the cost per datapoint without payload."""

    name = "small"
    window, chunk, max_bytes = 200, 5000, 0

    def make(self, index):
        return [index, index * 0.5]

    def source(self, start=0, step=1):
        for index in itertools.count(start, step):
            yield [index, index * 0.5]

    def consume(self, datapoints):
        dp, total = None, 0
        for dp in datapoints:
            total += dp[0] + dp[1]
        return dp

    def check(self, dp, whole=False):
        index, half = dp
        require(type(index) is int and half == index * 0.5, dp)


class Images(Workload):
    """An array of bytes and a number."""

    shape: ClassVar[tuple[int, ...]]
    num_prepared: ClassVar[int]

    @cached_property
    def pool(self):
        random = np.random.default_rng(0)
        return [random.integers(0, 256, self.shape, dtype=np.uint8) for _ in range(self.num_prepared)]

    def make(self, index):
        return [self.pool[index % self.num_prepared], index]

    def source(self, start=0, step=1):
        pool, num_prepared = self.pool, self.num_prepared
        for index in itertools.count(start, step):
            yield [pool[index % num_prepared], index]

    def consume(self, datapoints):
        dp, total = None, 0
        for dp in datapoints:
            image = dp[0]
            total += image.item(0) + image.item(-1) + dp[1]
        return dp

    def check(self, dp, whole=False):
        image, index = dp
        require_equal(image, self.pool[index % self.num_prepared], whole)


class Mnist(Images):
    """784 bytes: too small for a block of shared memory of its own."""

    name = "mnist"
    window, chunk, max_bytes = 200, 500, 784
    shape, num_prepared = (28, 28), 2048


class Image(Images):
    """A photograph, decoded."""

    name = "image"
    window, chunk, max_bytes = 50, 16, 150_528
    shape, num_prepared = (224, 224, 3), 64


class Batch(Workload):
    """19 MB of float32, made in advance: only the bytes count."""

    name = "batch"
    window, chunk, max_bytes = 4, 1, 19_267_840
    num_prepared: ClassVar[int] = 4

    @cached_property
    def pool(self):
        random = np.random.default_rng(0)
        shape = (IMAGES_PER_BATCH, 224, 224, 3)
        return [
            (random.random(shape, dtype=np.float32), np.arange(first, first + IMAGES_PER_BATCH))
            for first in range(self.num_prepared)
        ]

    def make(self, index):
        return list(self.pool[index % self.num_prepared])

    def consume(self, datapoints):
        dp, total = None, 0
        for dp in datapoints:
            images, labels = dp
            total += images.item(0) + images.item(-1) + labels.item(0) + labels.item(-1)
        return dp

    def check(self, dp, whole=False):
        images, labels = dp
        expected_images, expected_labels = self.pool[int(labels[0]) % self.num_prepared]
        require_equal(images, expected_images, whole)
        require_equal(labels, expected_labels, whole=True)


class Collate(Batch):
    """The same batches, stacked in the worker from 32 images of float32 each."""

    name = "collate"
    items_per_batch = IMAGES_PER_BATCH
    num_prepared = 64

    @cached_property
    def pool(self):
        random = np.random.default_rng(0)
        return [random.random((224, 224, 3), dtype=np.float32) for _ in range(self.num_prepared)]

    def items(self, start: int = 0, step: int = 1) -> Iterator[Any]:
        """The items to stack. Batch k has the items 32 k to 32 k + 31; `start` and `step` count batches."""
        pool, num_prepared = self.pool, self.num_prepared
        for batch in itertools.count(start, step):
            for index in range(batch * IMAGES_PER_BATCH, (batch + 1) * IMAGES_PER_BATCH):
                yield [pool[index % num_prepared], index]

    def make(self, index):
        return self.stack(list(itertools.islice(self.items(index), IMAGES_PER_BATCH)))

    @staticmethod
    def stack(items: list[Any]) -> list[Any]:
        """Hand-written collation, for contenders that have none."""
        images, labels = zip(*items, strict=True)
        return [np.stack(images), np.array(labels)]

    def check(self, dp, whole=False):
        images, labels = dp
        first = int(labels[0])
        require(first % IMAGES_PER_BATCH == 0, first)
        require(labels.dtype.kind == "i" and np.array_equal(labels, np.arange(first, first + IMAGES_PER_BATCH)), labels)
        require(images.shape == (IMAGES_PER_BATCH, 224, 224, 3) and images.dtype == np.float32, images.shape)
        for row in range(IMAGES_PER_BATCH) if whole else (0, IMAGES_PER_BATCH - 1):
            require_equal(images[row], self.pool[(first + row) % self.num_prepared], whole)


class Jpeg(Images):
    """Real work: photographs are decoded and resized, and every other one is mirrored."""

    name = "jpeg"
    window, chunk, max_bytes = 50, 16, 150_528

    @cached_property
    def pool(self):
        import cv2

        cv2.setNumThreads(1)
        paths = os.environ[JPEGS_VARIABLE].split(os.pathsep)
        return [np.frombuffer(Path(path).read_bytes(), np.uint8) for path in paths]

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """All decoded images, so that the consumer can check datapoints without decoding."""
        return [self.make(index)[0] for index in range(2 * len(self.pool))]

    def inputs(self, start=0, step=1):
        return ([index, self.pool[index % len(self.pool)]] for index in itertools.count(start, step))

    def work(self, given):
        return self.decode(*given)

    def make(self, index):
        return self.decode(index, self.pool[index % len(self.pool)])

    def decode(self, index: int, encoded: np.ndarray) -> Any:
        """Datapoint `index`, from the bytes of its photograph."""
        import cv2

        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        image = cv2.resize(image, (224, 224))
        return [cv2.flip(image, 1) if index // len(self.pool) % 2 else image, index]

    def source(self, start=0, step=1):
        return map(self.make, itertools.count(start, step))

    def check(self, dp, whole=False):
        image, index = dp
        require_equal(image, self.expected[index % len(self.expected)], whole)


class Ragged(Workload):
    """Dicts of strings and arrays of many lengths: a text, its tokens, a sound."""

    name = "ragged"
    window, chunk, max_bytes = 100, 50, 40_000
    num_prepared: ClassVar[int] = 256

    @cached_property
    def pool(self):
        random = np.random.default_rng(0)

        def piece():
            num_tokens, num_spans = int(random.integers(0, 200)), int(random.integers(1, 20))
            return {
                "text": " ".join(f"word{number}" for number in random.integers(0, 5000, num_tokens)),
                "tokens": random.integers(0, 5000, num_tokens + 1),
                "spans": random.random((num_spans, 2), dtype=np.float32),
                "sound": random.integers(-3000, 3000, int(random.integers(1, 16_000)), dtype=np.int16),
            }

        return [piece() for _ in range(self.num_prepared)]

    def make(self, index):
        return {"index": index, "name": f"sample-{index:08d}", **self.pool[index % self.num_prepared]}

    def consume(self, datapoints):
        dp, total = None, 0
        for dp in datapoints:
            tokens, spans, sound = dp["tokens"], dp["spans"], dp["sound"]
            total += tokens.item(0) + tokens.item(-1) + spans.item(0) + spans.item(-1) + sound.item(0) + sound.item(-1)
        return dp

    def check(self, dp, whole=False):
        expected = self.make(dp["index"])
        require(list(dp) == list(expected) and dp["name"] == expected["name"] and dp["text"] == expected["text"], dp)
        for key in ("tokens", "spans", "sound"):
            require_equal(dp[key], expected[key], whole)


class TrainingLoop(Workload):
    """Samples made by index with user code, batched by 32, received as torch tensors.

    Contenders apply `sample` to the indexes 0, 1, 2, …, and collate 32 of its results.
    """

    chunk = 1

    def sample(self, index: int) -> Any:
        raise NotImplementedError

    @staticmethod
    def collate(samples: list[Any]) -> list[Any]:
        """The arrays of a batch, for contenders that have no function of their own for it."""
        raise NotImplementedError

    def make(self, index):
        return self.collate([self.sample(k) for k in range(index * IMAGES_PER_BATCH, (index + 1) * IMAGES_PER_BATCH)])

    def consume(self, datapoints):
        dp, total = None, 0
        for dp in datapoints:
            first, second = dp
            total += first.view(-1)[0].item() + first.view(-1)[-1].item() + second[0].item() + second[-1].item()
        return dp


class Training(TrainingLoop):
    """JPEG files: read, decoded, cropped, mirrored, normalised."""

    name = "training"
    window, max_bytes = 4, 19_268_000
    unit = (IMAGES_PER_BATCH, "image")
    side: ClassVar[int] = 224
    mean: ClassVar[Any] = np.array([123.675, 116.28, 103.53], np.float32)
    deviation: ClassVar[Any] = np.array([58.395, 57.12, 57.375], np.float32)

    @cached_property
    def pool(self):
        """The paths of the files."""
        return sorted(map(str, Path(os.environ[FILES_VARIABLE]).glob("*.jpg")))

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """A few elements of every image, so that the consumer can check datapoints without decoding."""
        return [self.sample(index)[0].reshape(-1)[::4093].copy() for index in range(len(self.pool))]

    def sample(self, index):
        import cv2

        cv2.setNumThreads(1)
        index %= len(self.pool)
        random = np.random.default_rng(index)
        image = cv2.imdecode(np.fromfile(self.pool[index], np.uint8), cv2.IMREAD_COLOR)
        top, left = (int(random.integers(length - self.side + 1)) for length in image.shape[:2])
        image = image[top : top + self.side, left : left + self.side]
        if random.random() < 0.5:
            image = image[:, ::-1]
        normal = (image.astype(np.float32) - self.mean) / self.deviation
        return [np.ascontiguousarray(normal.transpose(2, 0, 1)), index]

    @staticmethod
    def collate(samples):
        images, labels = zip(*samples, strict=True)
        return [np.stack(images), np.array(labels)]

    def check(self, dp, whole=False):
        images, labels = (tensor.numpy() for tensor in dp)
        require(images.shape == (IMAGES_PER_BATCH, 3, self.side, self.side), images.shape)
        require(images.dtype == np.float32 and labels.dtype.kind == "i" and labels.shape == (IMAGES_PER_BATCH,), labels)
        for row in range(IMAGES_PER_BATCH) if whole else (0, IMAGES_PER_BATCH - 1):
            require_equal(images[row].reshape(-1)[::4093], self.expected[int(labels[row])], whole=True)


class Tokens(TrainingLoop):
    """Lists of 10 to 512 tokens, padded to the longest of the batch."""

    name = "tokens"
    window, max_bytes = 50, IMAGES_PER_BATCH * (512 + 1) * 8
    unit = (IMAGES_PER_BATCH, "sample")
    num_prepared: ClassVar[int] = 4096

    @cached_property
    def pool(self):
        random = np.random.default_rng(0)
        lengths = np.clip(random.lognormal(4.6, 0.7, self.num_prepared), 10, 512).astype(int)
        return [[index, *random.integers(0, 50_000, lengths[index] - 1).tolist()] for index in range(self.num_prepared)]

    def sample(self, index):
        return self.pool[index % self.num_prepared]

    @staticmethod
    def collate(samples):
        return pad(samples)

    def check(self, dp, whole=False):
        tokens, lengths = (tensor.numpy() for tensor in dp)
        require_equal(tokens, pad([self.pool[first] for first in tokens[:, 0]])[0], whole)
        require_equal(lengths, np.array([len(self.pool[first]) for first in tokens[:, 0]]), whole=True)


def pad(lists: list[list[int]]) -> list[np.ndarray]:
    """int64 (n, longest), with zeros where a list has ended; and the lengths, int64 (n,)."""
    lengths = np.array([len(one) for one in lists])
    tokens = np.zeros((len(lists), lengths.max()), np.int64)
    for row, one in enumerate(lists):
        tokens[row, : len(one)] = one
    return [tokens, lengths]


def write_photographs(photographs: list[str], folder: Path, num: int = 128) -> None:
    """Write the JPEG files of a training set: pieces of 300 to 500 pixels of the photographs."""
    import cv2

    random = np.random.default_rng(0)
    images = [cv2.imread(path) for path in photographs]
    for number in range(num):
        image = images[number % len(images)]
        height, width = (int(random.integers(300, min(500, length) + 1)) for length in image.shape[:2])
        top, left = int(random.integers(image.shape[0] - height + 1)), int(random.integers(image.shape[1] - width + 1))
        piece = image[top : top + height, left : left + width]
        cv2.imwrite(str(folder / f"{number:04d}.jpg"), piece, [cv2.IMWRITE_JPEG_QUALITY, 90])


def require(condition: bool, found: Any) -> None:
    if not condition:
        raise ValueError(f"a datapoint differs from the expected one: {found!r:.200}")


def require_equal(found: np.ndarray, expected: np.ndarray, whole: bool) -> None:
    """Same type and shape, and same elements: all of them, or every 4093rd (a prime, so no column is favoured)."""
    require(found.dtype == expected.dtype and found.shape == expected.shape, (found.dtype, found.shape))
    stride = 1 if whole else 4093
    require(np.array_equal(found.reshape(-1)[::stride], expected.reshape(-1)[::stride]), found)


WORKLOADS = {kind.name: kind for kind in (Training, Tokens, Small, Mnist, Image, Batch, Collate, Jpeg, Ragged)}
TRAINING = tuple(name for name, kind in WORKLOADS.items() if issubclass(kind, TrainingLoop))
TRANSPORT = tuple(name for name in WORKLOADS if name not in TRAINING)


@cache
def by_name(name: str) -> Workload:
    """The workload of this process: tasks that are sent to a worker use the arrays prepared there."""
    return WORKLOADS[name]()
