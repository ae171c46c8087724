"""Decode real JPEGs and cut random crops out of them in worker processes, and save a contact sheet.

Two photographs ship with scikit-learn, so nothing is downloaded. The chain:

    list of files, shuffled -> decode, random crop, flip, brightness -> batches

Each datapoint reads and decodes its file again, as with a folder of a million files. ``--via`` selects how the work is
moved: a *runner* moves the whole chain into workers; a parallel *map* keeps the list in this process and moves
one function into worker processes, or into *threads*. ``--runner`` selects the runner.

``--save photos.lmdb`` decodes each photograph once, saves it to that file, and reads it from there, also in later runs.

Run it with ``python examples/photos.py --out contact-sheet.png``.
"""

import argparse
import importlib.resources
import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

try:
    import cv2
except ImportError:
    cv2 = None

from dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    FixedSizeData,
    LMDBSerializer,
    MapDataComponent,
    MultiProcessMapData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    MultiThreadMapData,
    MultiThreadRunner,
    RandomMapData,
    RepeatedData,
)

Image = NDArray[np.uint8]

# The augmentation.
CROP_SIDE = 96
SMALLEST_CROP = 0.4  # side of the square, as a fraction of the photograph's shorter side
LARGEST_CROP = 0.9
FLIP_PROBABILITY = 0.5
DARKEST = 0.6
BRIGHTEST = 1.25
WHITE = 255

BATCH_SIZE = 32

# Number of datapoints that each worker of `MultiProcessRunner` and `MultiThreadRunner` prefetches.
NUM_PREFETCH = 64

# The contact sheet.
SHEET_COLUMNS = 12
SHEET_ROWS = 8
SHEET_GAP = 4
SHEET_GREY = 128
SHEET_STEP = CROP_SIDE + SHEET_GAP


def find_photos() -> list[str]:
    """Find the photographs that ship with scikit-learn.

    Raises:
        SystemExit: scikit-learn cannot be imported; the message says what to install.
    """
    try:
        package = importlib.resources.files("sklearn")
    except ImportError as error:
        sys.exit(
            f"The photographs ship with scikit-learn, which cannot be imported ({error}). "
            'Install it with: pip install "dataflow-runners[examples]"'
        )
    folder = package / "datasets" / "images"
    return sorted(str(file) for file in folder.iterdir() if file.name.endswith(".jpg"))


def read_photo(path: str) -> Image:
    """Read and decode one file: uint8 ``(H, W, 3)``, in OpenCV's order blue, green, red.

    Raises:
        ValueError: The file is missing or not an image; the message names it.
    """
    photo = cv2.imread(path)
    if photo is None:
        raise ValueError(f"{path} is missing or is not an image that OpenCV can decode")
    return photo


def cut_random_square(photo: Image, rng: np.random.Generator) -> Image:
    """Cut a square of random size and position out of a photograph, as a view."""
    height, width, _ = photo.shape
    side = round(min(height, width) * rng.uniform(SMALLEST_CROP, LARGEST_CROP))
    top = rng.integers(height - side, endpoint=True)
    left = rng.integers(width - side, endpoint=True)
    return photo[top : top + side, left : left + side]


def flip_sometimes(image: Image, rng: np.random.Generator) -> Image:
    """Mirror every second image on average, left to right."""
    return image[:, ::-1] if rng.random() < FLIP_PROBABILITY else image


def change_brightness(image: Image, rng: np.random.Generator) -> Image:
    """Make an image darker or brighter, clipped at white."""
    scaled = image * rng.uniform(DARKEST, BRIGHTEST)
    return np.minimum(scaled, WHITE).astype(np.uint8)


def cut_crop(photo: Image, rng: np.random.Generator) -> Image:
    """Turn a photograph of any size into one random crop, uint8 ``(96, 96, 3)``."""
    square = cut_random_square(photo, rng)
    crop = cv2.resize(square, (CROP_SIDE, CROP_SIDE), interpolation=cv2.INTER_AREA)
    return change_brightness(flip_sometimes(crop, rng), rng)


def crop_file(dp: list[str], rng: np.random.Generator) -> list[Image]:
    """The work for one datapoint ``[path]``: decode the photograph and cut a crop."""
    (path,) = dp
    return [cut_crop(read_photo(path), rng)]


def crop_photo(dp: list[Image], rng: np.random.Generator) -> list[Image]:
    """The work for one datapoint ``[photo]`` that is already decoded."""
    (photo,) = dp
    return [cut_crop(photo, rng)]


# Each runner takes a function that makes the flow, as `MultiThreadRunner` needs one flow per thread. With `strict` each
# datapoint comes once in every pass, in order.
RUNNERS: dict[str, Callable[[Callable[[], DataFlow], int], DataFlow]] = {
    "zmq": lambda make_flow, num_workers: MultiProcessRunnerZMQ(make_flow(), num_workers, strict=True),
    "process": lambda make_flow, num_workers: MultiProcessRunner(make_flow(), NUM_PREFETCH, num_workers, strict=True),
    "thread": lambda make_flow, num_workers: MultiThreadRunner(make_flow, NUM_PREFETCH, num_workers, strict=True),
    "none": lambda make_flow, num_workers: make_flow(),
}


# A parallel map takes the flow and a function. With `with_rng` the function gets the random generator of the datapoint,
# as in `RandomMapData`.
MAPS: dict[str, Callable[[DataFlow, int, Callable[..., list[Image]]], DataFlow]] = {
    "map": lambda ds, num_workers, func: MultiProcessMapData(ds, num_workers, func, strict=True, with_rng=True),
    "threads": lambda ds, num_workers, func: MultiThreadMapData(ds, num_workers, func, strict=True, with_rng=True),
}


def keep_decoded(paths: list[str], file: Path) -> None:
    """Decode all photographs and save them, unless the file exists."""
    if not file.exists():
        files = DataFromList([[path] for path in paths], shuffle=False)
        LMDBSerializer.save(MapDataComponent(files, read_photo, index=0), file)


def make_batches(
    paths: list[str], num_images: int, via: str, runner: str, num_workers: int, decoded: Path | None = None
) -> DataFlow:
    """Build the whole chain: datapoints ``[uint8 (32, 96, 96, 3)]``, `num_images` crops in a pass."""
    datapoints = [[path] for path in itertools.islice(itertools.cycle(paths), num_images)]

    def make_source() -> DataFlow:
        if decoded is not None:
            return FixedSizeData(RepeatedData(LMDBSerializer.load(decoded, shuffle=True), -1), num_images)
        return DataFromList(datapoints, shuffle=True)

    crop: Callable[..., list[Image]] = crop_file if decoded is None else crop_photo

    def make_crops() -> DataFlow:
        return RandomMapData(make_source(), crop)

    crops = MAPS[via](make_source(), num_workers, crop) if via in MAPS else RUNNERS[runner](make_crops, num_workers)
    return BatchData(crops, BATCH_SIZE, remainder=True)


def collect_crops(batches: DataFlow, num_images: int) -> list[Image]:
    """Run one pass with a progress bar, and keep as many of the first crops as fit on the sheet."""
    crops: list[Image] = []
    with tqdm(total=num_images, unit=" images", leave=False) as progress:
        for (batch,) in batches:
            crops.extend(batch[: SHEET_ROWS * SHEET_COLUMNS - len(crops)])
            progress.update(len(batch))
    return crops


def lay_out(crops: list[Image]) -> Image:
    """Lay crops out on a grey sheet, 12 in a row, with a gap around each."""
    num_rows = math.ceil(len(crops) / SHEET_COLUMNS)
    height, width = num_rows * SHEET_STEP + SHEET_GAP, SHEET_COLUMNS * SHEET_STEP + SHEET_GAP
    sheet = np.full((height, width, 3), SHEET_GREY, dtype=np.uint8)
    for position, crop in enumerate(crops):
        row, column = divmod(position, SHEET_COLUMNS)
        top, left = SHEET_GAP + row * SHEET_STEP, SHEET_GAP + column * SHEET_STEP
        sheet[top : top + CROP_SIDE, left : left + CROP_SIDE] = crop
    return sheet


def save_png(image: Image, path: Path) -> None:
    """Write an image to a file. Raises `OSError` on failure, unlike ``cv2.imwrite``."""
    _, png = cv2.imencode(".png", image)
    path.write_bytes(png.tobytes())


def count_cores() -> int:
    """The number of cores that this process may use, or of the machine if that is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def print_setting(options: argparse.Namespace) -> None:
    """Print the conditions of the following figures."""
    here = options.via == "runner" and options.runner == "none"
    workers = "in this process" if here else f"workers: {options.workers}"
    print(f"machine  {platform.system()} {platform.machine()}, cores: {count_cores()}")
    print(f"python   {platform.python_version()}, numpy {np.__version__}, opencv {cv2.__version__}")
    print(f"via      {options.runner if options.via == 'runner' else options.via}, {workers}", flush=True)


def positive(text: str) -> int:
    """Read a whole number of at least 1 from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small; give at least 1")
    return number


def png_path(text: str) -> Path:
    """Parse the name of a PNG file in an existing folder."""
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text} does not end in .png")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Cut random crops out of photographs and save a contact sheet.")
    parser.add_argument(
        "--via", choices=["runner", *MAPS], default="runner", help="how the work is moved into workers (%(default)s)"
    )
    parser.add_argument(
        "--runner", choices=RUNNERS, default="zmq", help="which runner, with --via runner (%(default)s)"
    )
    parser.add_argument("--workers", type=positive, default=2, help="number of processes or threads (%(default)s)")
    parser.add_argument("--images", type=positive, default=960, help="number of crops (%(default)s)")
    parser.add_argument(
        "--save", type=Path, metavar="FILE.lmdb", help="save decoded photographs to this file, and read it"
    )
    parser.add_argument("--out", type=png_path, default="contact-sheet.png", help="PNG file to write (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the crops, print the speed including the start of the workers, and save the contact sheet.

    Returns:
        The exit code 0; failures are raised.

    Raises:
        SystemExit: The command line is invalid, or OpenCV or scikit-learn is missing; the message says what to install.
    """
    options = parse(argv)
    if cv2 is None:
        sys.exit(
            "The photographs are decoded by OpenCV, but cv2 cannot be imported. "
            'Install it with: pip install "dataflow-runners[images]"'
        )
    cv2.setNumThreads(1)  # here; in worker processes the runner limits the threads
    paths = find_photos()
    print(f"photos   {', '.join(Path(path).name for path in paths)}")
    print_setting(options)
    if options.save is not None:
        keep_decoded(paths, options.save)
        print(f"decoded  {options.save}")
    started = time.perf_counter()
    with make_batches(paths, options.images, options.via, options.runner, options.workers, options.save) as batches:
        crops = collect_crops(batches, options.images)
    seconds = time.perf_counter() - started
    print(f"crops    {options.images} in {seconds:.1f} s: {options.images / seconds:,.0f} images/s")
    save_png(lay_out(crops), options.out)
    print(f"sheet    {options.out}, with {len(crops)} of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
