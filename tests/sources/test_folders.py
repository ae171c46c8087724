"""Folders of images: classes, labels and order, as torchvision's ImageFolder gives them."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dataflow import BatchData, ImageFolderData, JSONLinesData, MapData, MultiProcessRunnerZMQ, TooManyFailures
from tests.support.contract import check_node, seeded
from tests.support.waits import LIMIT

FILES = ("cat/b.JPG", "cat/a.png", "cat/more/0.jpg", "cat/notes.txt", "dog/1.jpeg", "ant/z.bmp")


def folder_of(place: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"%d" % number)
    return place


def found(df, folder):
    return [(Path(path).relative_to(folder).as_posix(), label) for path, label in df]


def test_each_subfolder_is_a_class_with_sorted_labels(tmp_path):
    df = ImageFolderData(folder_of(tmp_path, *FILES))
    assert df.classes == ["ant", "cat", "dog"] and df.class_to_idx == {"ant": 0, "cat": 1, "dog": 2}
    assert found(df, tmp_path) == [
        ("ant/z.bmp", 0),
        ("cat/a.png", 1),
        ("cat/b.JPG", 1),
        ("cat/more/0.jpg", 1),
        ("dog/1.jpeg", 2),
    ]
    assert len(df) == 5 and df[6] == df[1]
    assert repr(df) == f"ImageFolderData({str(tmp_path)!r}, shuffle=False)" or len(str(tmp_path)) > 40


def test_the_order_is_that_of_torchvision(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    folder_of(tmp_path, *FILES, "cat/b/0.jpg", "cat/b-c/0.jpg", "cat/b.png")
    df = ImageFolderData(tmp_path)
    theirs = datasets.ImageFolder(str(tmp_path))
    assert [tuple(dp) for dp in df] == theirs.samples
    assert (df.classes, df.class_to_idx) == (theirs.classes, theirs.class_to_idx)


def test_it_is_a_node(tmp_path):
    folder_of(tmp_path, *FILES)
    check_node(lambda: ImageFolderData(tmp_path), source=True)
    check_node(lambda: ImageFolderData(tmp_path, shuffle=True, packed=True), source=True)
    with seeded(3):
        df = ImageFolderData(tmp_path, shuffle=True)
        orders = [found(df, tmp_path) for _ in range(6)]
    assert len({tuple(order) for order in orders}) > 1 and len({tuple(sorted(order)) for order in orders}) == 1


def test_hidden_names_are_left_out(tmp_path):
    folder_of(tmp_path, "cat/1.jpg", "cat/._1.jpg", "cat/.cache/2.jpg", ".ipynb_checkpoints/3.jpg")
    assert found(ImageFolderData(tmp_path), tmp_path) == [("cat/1.jpg", 0)]


def test_classes_and_extensions_may_be_chosen(tmp_path):
    folder_of(tmp_path, *FILES)
    assert found(ImageFolderData(tmp_path, classes=["dog", "ant"]), tmp_path) == [("dog/1.jpeg", 0), ("ant/z.bmp", 1)]
    df = ImageFolderData(tmp_path, extensions=[".TXT"], allow_empty=True)
    assert found(df, tmp_path) == [("cat/notes.txt", 1)] and df.classes == ["ant", "cat", "dog"]
    assert len(ImageFolderData(tmp_path, extensions=None)) == 6
    assert "classes=['dog', 'ant']" in repr(ImageFolderData(tmp_path, classes=["dog", "ant"]))


def test_a_link_to_a_folder_above_is_followed_once(tmp_path):
    folder_of(tmp_path, "cat/1.jpg")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path / "cat", target_is_directory=True)
    assert found(ImageFolderData(tmp_path), tmp_path) == [("cat/1.jpg", 0)]


def with_links(folder):
    folder_of(folder, "data/cat/1.jpg", "pool/2.jpg", "pool/inner/3.jpg")
    for name in ("z", "a"):
        (folder / "data" / "cat" / name).symlink_to("../../pool", target_is_directory=True)
    return folder / "data"


def test_a_folder_that_two_links_lead_to_is_found_under_both_names(tmp_path):
    names = ["1.jpg", "a/2.jpg", "a/inner/3.jpg", "z/2.jpg", "z/inner/3.jpg"]
    assert found(ImageFolderData(with_links(tmp_path)), tmp_path / "data") == [(f"cat/{name}", 0) for name in names]


def test_behind_links_is_found_what_torchvision_finds(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    folder = with_links(tmp_path)
    assert [tuple(dp) for dp in ImageFolderData(folder)] == datasets.ImageFolder(str(folder)).samples


@pytest.mark.parametrize(
    ("names", "options", "error", "message"),
    [
        (["1.jpg"], {}, FileNotFoundError, "has no subfolders"),
        (["a/1.jpg", "b/1.txt"], {}, FileNotFoundError, r"no files for b that end in \.jpg"),
        (["a/1.jpg"], {"classes": ["a", "x"]}, FileNotFoundError, "has no subfolder x; there are a"),
        (["a/1.jpg"], {"classes": ["a", "a"]}, ValueError, "names the subfolder 'a' twice"),
        (["a/1.jpg"], {"classes": "a"}, TypeError, "classes must be a list"),
        (["a/1.jpg"], {"extensions": ".jpg"}, TypeError, "extensions must be a list"),
        (["a/1.jpg"], {"shuffle": "no"}, TypeError, "shuffle must be True or False"),
    ],
)
def test_what_is_wrong_is_named(names, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        ImageFolderData(folder_of(tmp_path, *names), **options)


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageFolderData(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="file"):
        ImageFolderData(tmp_path / "file")


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    folder_of(tmp_path, "cat/inner/1.jpg", "dog/2.jpg")
    scandir = os.scandir

    def refusing(path):
        if os.path.basename(path) == "inner":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # the user who runs the tests may read everything
    for make in (lambda: ImageFolderData(tmp_path), lambda: JSONLinesData(tmp_path)):
        with pytest.raises(PermissionError, match="cat/inner"):
            make()


def decoded(dp):
    path, label = dp
    data = Path(path).read_bytes()
    if data == b"1":
        raise ValueError(f"{path} is not an image")
    return [np.frombuffer(data, np.uint8), label]


def test_an_unreadable_image_is_named_and_skipped_within_the_budget(tmp_path):
    folder_of(tmp_path, *FILES)
    with pytest.raises(ValueError, match=r"cat/a\.png is not an image"):
        list(MapData(ImageFolderData(tmp_path), decoded))
    df = MapData(ImageFolderData(tmp_path), decoded, max_failures=1)
    assert [label for _, label in df] == [0, 1, 1, 2]
    assert "cat/a.png is not an image" in df.failures[0].text
    (tmp_path / "dog" / "0.jpg").write_bytes(b"1")
    with pytest.raises(TooManyFailures, match=r"dog/0\.jpg is not an image"):
        list(MapData(ImageFolderData(tmp_path), decoded, max_failures=1))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.full)])
def test_batches_of_strict_workers_are_those_of_one_process(method, tmp_path):
    folder_of(tmp_path, *FILES)
    with seeded(5):
        plain = list(ImageFolderData(tmp_path, shuffle=True))
        df = ImageFolderData(tmp_path, shuffle=True)
        with MultiProcessRunnerZMQ(df, 2, strict=True, context=method, timeout=LIMIT) as runner:
            assert list(runner) == plain
            assert [batch[1].tolist() for batch in BatchData(ImageFolderData(tmp_path), 5)] == [[0, 1, 1, 1, 2]]
    assert list(pickle.loads(pickle.dumps(ImageFolderData(tmp_path)))) == list(ImageFolderData(tmp_path))
