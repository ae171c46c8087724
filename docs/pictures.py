"""Draw the pictures of the gallery, by the examples' own functions: ``python docs/pictures.py``.

It needs the extras examples and torch, and writes small PNG files into `docs/pictures/`.
"""

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import cluster  # noqa: E402
import digits  # noqa: E402
import feed  # noqa: E402
import photos  # noqa: E402
import sound  # noqa: E402
import text  # noqa: E402
import train_torch  # noqa: E402

import dataflow  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 480, 240  # pixels of each picture
GAP = 8


def grid(images: Iterable[Any], columns: int, rows: int) -> Any:
    """Lay out images, uint8 ``(H, W, 3)``, in a picture."""
    width, height = (WIDTH - GAP) // columns - GAP, (HEIGHT - GAP) // rows - GAP
    picture = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    for place, image in zip(np.ndindex(rows, columns), images, strict=False):
        top, left = (GAP + k * (size + GAP) for k, size in zip(place, (height, width), strict=True))
        picture[top : top + height, left : left + width] = cv2.resize(
            image, (width, height), interpolation=cv2.INTER_AREA if image.shape[1] > width else cv2.INTER_NEAREST
        )
    return picture


def coloured(values: Any, map_: int) -> Any:
    """Values of any range as colours."""
    low, high = values.min(), values.max()
    return cv2.applyColorMap(((values - low) / (high - low) * 255).astype(np.uint8), map_)


def draw_digits() -> Any:
    """The same digits before and after the augmentation."""
    training, _ = digits.load_digits()
    rng = np.random.default_rng(0)
    before = [[image, 0] for image in training.images[:8]]
    after = [digits.shift_and_noise(dp, rng) for dp in before * 3]
    return grid([coloured(np.clip(image, 0, 1), cv2.COLORMAP_BONE) for image, _ in before + after], 8, 4)


def draw_train_torch() -> Any:
    """What the first layer has learnt after three passes: the weights of 32 of its units."""
    training, _ = digits.load_digits()
    train_torch.torch.manual_seed(0)
    network = train_torch.make_network()
    train_torch.train(network, dataflow.to_torch(digits.make_batches(training, "none", 1)), 3)
    return grid(
        [coloured(unit.reshape(8, 8), cv2.COLORMAP_TWILIGHT) for unit in network[1].weight.detach().numpy()], 8, 4
    )


def draw_feed() -> Any:
    """Digits of the two senders, in two colours."""
    images, _ = feed.load_digits()
    rng = np.random.default_rng(0)
    noisy = [np.clip(feed.add_noise([image.reshape(8, 8)], rng)[0], 0, 1) for image in images[:32]]
    maps = (cv2.COLORMAP_OCEAN, cv2.COLORMAP_HOT)
    return grid([coloured(image, maps[k % feed.NUM_SENDERS]) for k, image in enumerate(noisy)], 8, 4)


def draw_cluster() -> Any:
    """The same four digits in eight passes: other noise in each, and the same in each run."""
    training, _ = digits.load_digits()
    flow = cluster.make_flow(digits.Digits(training.images[:4], training.labels[:4]))
    passes = [sorted(flow, key=lambda dp: dp[0]) for _ in range(8)]
    return grid([coloured(dps[k][1], cv2.COLORMAP_BONE) for k in range(4) for dps in passes], 8, 4)


def draw_photos() -> Any:
    """One crop after the other."""
    with photos.make_batches(photos.find_photos(), 8, "runner", "none", 1) as batches:
        ((crops,),) = batches
    return grid(crops & 0xF8, 4, 2)  # fewer colours, for a small file


def draw_sound() -> Any:
    """A spectrogram of each kind, low bands below."""
    with tempfile.TemporaryDirectory() as folder:
        files = sound.make_files(Path(folder), sound.BATCH_SIZE, seed=0)
        with sound.make_batches(files, 0, shuffle=False) as batches:
            ((spectrograms, _),) = batches
    return grid([coloured(image.T[::-1], cv2.COLORMAP_VIRIDIS) for image in spectrograms], 4, 2)


def draw_text() -> Any:
    """Batches: each row a paragraph, with its words in colours, and the padding in white."""
    training, _ = text.load_paragraphs()
    pictures = []
    for batch in text.make_batches(training, 0):
        ids = coloured((batch["ids"] * 2654435761 % 251).astype(np.float32), cv2.COLORMAP_COOL)
        ids[~batch["ids_mask"].astype(bool)] = 235
        pictures.append(ids)
    return grid(pictures[:12], 4, 3)


PICTURES = {
    "cluster": draw_cluster,
    "digits": draw_digits,
    "feed": draw_feed,
    "photos": draw_photos,
    "sound": draw_sound,
    "text": draw_text,
    "train_torch": draw_train_torch,
}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    dataflow.seed(0)
    for name, draw in PICTURES.items():
        _, png = cv2.imencode(".png", draw(), [cv2.IMWRITE_PNG_COMPRESSION, 9])
        (FOLDER / f"{name}.png").write_bytes(png.tobytes())


if __name__ == "__main__":
    main()
