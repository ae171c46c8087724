"""SVMlight files."""

import io

import numpy as np
import pytest

from dataflow import FileDamaged, SVMLightData
from dataflow.formats.positional import PositionalFile
from tests.support.contract import check_node

TEXT = "# a comment\n1 qid:3 1:0.5 3:2e1 # more\n\n-1 2:-1\n+0.5\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.svm"
    path.write_text(TEXT)
    return path


def plain(df):
    return [(features.tolist(), label.item()) for features, label in df]


def test_rows_are_dense_and_labels_are_numbers(path):
    with SVMLightData(path, shuffle=False) as df:
        assert plain(df) == [([0.5, 0.0, 20.0], 1.0), ([0.0, -1.0, 0.0], -1.0), ([0.0] * 3, 0.5)]
        features, label = df[0]
        assert features.dtype == np.float64 and type(label) is np.float64 and features.flags.writeable
    check_node(lambda: SVMLightData(path), source=True)


def test_rows_are_those_of_scikit_learn(path):
    datasets = pytest.importorskip("sklearn.datasets")
    expected, labels = datasets.load_svmlight_file(str(path))
    with SVMLightData(path, shuffle=False) as df:
        assert np.array_equal(np.stack([features for features, _ in df]), np.asarray(expected.todense()))
        assert [label for _, label in df] == labels.tolist()


@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n# a comment\n"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_lines_are_found_however_they_end(between, end, tmp_path):
    path = tmp_path / "file"
    path.write_bytes((between.join(f"{k} {k + 1}:1" for k in range(12)) + end).encode())
    with SVMLightData(path, shuffle=False) as df:
        assert [label for _, label in df] == list(range(12))
        assert all(features.tolist().index(1) == k for k, (features, _) in enumerate(df))


def test_the_first_feature_may_be_0(tmp_path):
    path = tmp_path / "file"
    path.write_text("1 0:3 2:5\n")
    with SVMLightData(path) as df:
        assert plain(df) == [([3.0, 0.0, 5.0], 1.0)]
    with SVMLightData(path, zero_based=False) as df, pytest.raises(ValueError, match="zero_based=True"):
        len(df)
    path.write_text("1 1:3\n")
    with SVMLightData(path, zero_based=True, num_features=4) as df:
        assert plain(df) == [([0.0, 3.0, 0.0, 0.0], 1.0)]
    path.write_text("1 9:3\n")
    with SVMLightData(path, num_features=4) as df, pytest.raises(ValueError, match="feature 9, and num_features is 4"):
        len(df)


@pytest.mark.parametrize(
    "line",
    [
        "x 1:2",
        "1 a:2",
        "1 2:b",
        "1 2",
        "1 -2:3",
        "1 1:2 1:3",
        "1 1:2:3",
        "1 1:1e400",
        "-1e400 1:1",
        "1 99999999999999999999:1",
        "1 134217729:1",
        "1 -9223372036854775808:1",
    ],
)
def test_a_line_that_is_none_is_named_by_its_place(line, tmp_path):
    path = tmp_path / "file"
    path.write_text(f"1 1:1\n{line}\n")
    with SVMLightData(path) as df, pytest.raises(FileDamaged, match="at byte 6 of the file") as caught:
        len(df)
    assert caught.value.offset == 6


def test_as_many_features_as_the_user_says_may_be_there(tmp_path):
    path = tmp_path / "file"
    path.write_text(f"1 {1 << 40}:1\n")
    with SVMLightData(path, num_features=1 << 40) as df:
        assert len(df) == 1


def test_infinity_is_a_number(tmp_path):
    path = tmp_path / "file"
    path.write_text("-inf 1:Infinity\n")
    with SVMLightData(path) as df:
        assert df[0][0].tolist() == [float("inf")] and df[0][1] == -float("inf")


def test_a_file_that_ends_before_its_size_is_damaged(path, monkeypatch):
    monkeypatch.setattr(PositionalFile, "stream", lambda file: io.BytesIO(path.read_bytes()[:-6]))
    with pytest.raises(FileDamaged, match=f"{path}: it ends, 6 bytes too early, at byte"):
        len(SVMLightData(path))
