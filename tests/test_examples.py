"""The examples do what their first lines promise, run the way a user runs them."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
full = pytest.mark.full
TIMEOUT = 300.0  # seconds; a healthy run takes a few

needs_digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
needs_photos = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None or importlib.util.find_spec("cv2") is None,
    reason="needs scikit-learn and OpenCV",
)


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a fresh interpreter, against this checkout whether or not it is installed."""
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": search_path},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def load_example(name: str) -> ModuleType:
    """Import an example under a name of its own, without running its main job."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_here(name: str, *arguments: str) -> int:
    """Run an example in this process, where the packages that it needs are imported once: its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tqdm, "monitor_interval", 0)  # else its first progress bar starts a thread that stays
        return load_example(name).main(arguments)


def hide_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make every import of a package fail as if it were not installed, also where it was imported before."""
    loaded = [module for module in sys.modules if module.split(".")[0] == name]
    for module in {name, *loaded}:
        monkeypatch.setitem(sys.modules, module, None)


def read_percentage(line_start: str, output: str) -> float:
    """Read the accuracy from the line ``<line_start> 98.33% right…`` of what digits.py printed."""
    found = re.search(rf"^{line_start} +([\d.]+)% right", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1]) / 100


def assert_ended_quietly(run: subprocess.CompletedProcess[str]) -> None:
    """The exit code is 0, and stderr contains only a progress bar."""
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Warning" not in run.stderr
    assert "strict=" not in run.stderr, "the warning of a default runner or map"
    assert "Traceback" not in run.stderr


@needs_digits
@full
def test_digits_learns_as_make_demo_runs_it() -> None:
    run = run_example("digits.py", "--seeds", "1")
    assert_ended_quietly(run)
    assert "runner   zmq, workers: 2" in run.stdout
    assert read_percentage("seed 0", run.stdout) >= 0.97
    assert read_percentage("median", run.stdout) >= 0.97


@needs_digits
@pytest.mark.parametrize("runner", ["zmq", *(pytest.param(name, marks=full) for name in ("thread", "process", "none"))])
def test_digits_learns_with_every_runner(runner: str) -> None:
    run = run_example("digits.py", "--runner", runner, "--seeds", "1", "--epochs", "10")
    assert_ended_quietly(run)
    assert f"runner   {runner}, {'in this process' if runner == 'none' else 'workers: 2'}" in run.stdout
    assert read_percentage("median", run.stdout) >= 0.96


@needs_digits
def test_digits_fails_if_the_network_has_not_learnt_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("digits", "--runner", "none", "--seeds", "1", "--epochs", "1") == 1
    assert read_percentage("median", capsys.readouterr().out) < 0.96


@needs_digits
def test_digits_are_split_the_same_way_every_time_and_none_is_in_both_parts() -> None:
    digits = load_example("digits")
    training, held_back = digits.load_digits()
    _, held_back_again = digits.load_digits()
    assert (len(training.images), len(held_back.images)) == (1437, 360)
    assert (held_back.images == held_back_again.images).all()
    assert not {image.tobytes() for image in training.images} & {image.tobytes() for image in held_back.images}


def test_digits_moves_an_image_down_and_right_and_fills_in_black() -> None:
    digits = load_example("digits")
    image = digits.np.zeros((8, 8))
    image[0, 0] = image[7, 7] = 1
    moved = digits.shift_image(image, rows=1, columns=1)
    assert moved[1, 1] == 1
    assert moved.sum() == 1


def test_the_gradients_of_the_network_agree_with_finite_differences() -> None:
    digits = load_example("digits")
    np = digits.np
    rng = np.random.default_rng(0)
    network = digits.Network(rng)
    images, labels = rng.random((4, 8, 8)), np.array([3, 1, 4, 1])

    def loss() -> float:
        _, scores = network.forward(images.reshape(4, 64))
        likelihoods = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return float(-np.log(likelihoods[range(4), labels]).mean())

    step = 1e-6
    slopes = network.gradients(images, labels)
    for parameter, slope in zip(network.parameters, slopes, strict=True):
        place = np.unravel_index(abs(slope).argmax(), slope.shape)
        before = loss()
        parameter[place] += step
        assert (loss() - before) / step == pytest.approx(slope[place], rel=1e-3)
        parameter[place] -= step


@needs_photos
@pytest.mark.parametrize(
    ("runner", "num_images"),
    [
        ("zmq", 13),
        pytest.param("thread", 13, marks=full),
        pytest.param("zmq", 100, marks=full),
        pytest.param("thread", 100, marks=full),
        *(pytest.param(runner, num, marks=full) for runner in ("process", "none") for num in (13, 100)),
    ],
)
def test_photos_saves_a_contact_sheet(runner: str, num_images: int, tmp_path: Path) -> None:
    import cv2

    out = tmp_path / "sheet.png"
    run = run_example("photos.py", "--runner", runner, "--images", str(num_images), "--out", str(out))
    assert_ended_quietly(run)
    assert f"crops    {num_images} in " in run.stdout
    sheet = cv2.imread(str(out))
    assert sheet is not None
    assert sheet.shape == ((8 if num_images == 100 else 2) * 100 + 4, 12 * 100 + 4, 3)
    assert sheet.std() > 30, "the sheet is nearly empty"


@needs_photos
@pytest.mark.parametrize("via", ["map", pytest.param("threads", marks=full)])
def test_photos_are_cropped_by_a_parallel_map(via: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("photos", "--via", via, "--images", "50", "--out", str(tmp_path / "sheet.png")) == 0
    out = capsys.readouterr().out
    assert f"via      {via}, workers: 2" in out
    assert "crops    50 in " in out


@needs_photos
@pytest.mark.skipif(importlib.util.find_spec("lmdb") is None, reason="needs lmdb")
@pytest.mark.parametrize("runner", ["zmq", pytest.param("thread", marks=full)])
def test_photos_keeps_what_is_decoded_and_reads_it_back(
    runner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "photos.lmdb"
    arguments = ["--runner", runner, "--images", "50", "--out", str(tmp_path / "sheet.png"), "--save", str(kept)]
    assert run_here("photos", *arguments) == 0
    out = capsys.readouterr().out
    assert f"decoded  {kept}" in out
    assert "crops    50 in " in out
    before = kept.stat()
    assert run_here("photos", *arguments) == 0
    assert kept.stat().st_mtime_ns == before.st_mtime_ns


@needs_photos
def test_photos_names_a_file_that_is_not_an_image(tmp_path: Path) -> None:
    photos = load_example("photos")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a JPEG")
    with pytest.raises(ValueError, match=re.escape(str(broken))):
        photos.read_photo(str(broken))


@needs_digits
def test_feed_counts_every_image_of_every_pass_once() -> None:
    run = run_example("feed.py", "--epochs", "4")
    assert_ended_quietly(run)
    assert "with keys" in run.stdout
    assert len(re.findall("1437 images, 0 missing, 0 twice", run.stdout)) == 4


@needs_digits
@pytest.mark.full
def test_feed_reports_a_killed_sender() -> None:
    run = run_example("feed.py", "--kill")
    assert_ended_quietly(run)
    assert re.search(r"lost     \d+ of 719 datapoints received, reported after [\d.]+ s", run.stdout)


@pytest.mark.parametrize("workers", ["2", pytest.param("0", marks=full)])
def test_sound_tells_kinds_of_sounds_apart(workers: str) -> None:
    run = run_example("sound.py", "--workers", workers, "--epochs", "1")
    assert_ended_quietly(run)
    assert "learnt   200 spectrograms (31, 32)" in run.stdout
    found = re.search(r"^right +([\d.]+)%", run.stdout, re.MULTILINE)
    assert found is not None and float(found[1]) >= 90


def test_sound_finds_the_pitch_of_a_tone(tmp_path: Path) -> None:
    sound = load_example("sound")
    np = sound.np
    seconds = np.arange(sound.RATE) / sound.RATE
    path = tmp_path / "tone.wav"
    sound.write_wav(path, np.sin(2 * np.pi * 1000 * seconds).astype(np.float32))
    part = sound.read_part(str(path), np.random.default_rng(0))
    assert (part.dtype, part.shape) == (np.float32, (sound.NUM_SAMPLES,))
    loudest = sound.spectrogram(part).argmax(axis=1)
    assert (abs(loudest - 1000 / (sound.RATE / 2) * sound.NUM_BANDS) <= 1).all()


@pytest.mark.parametrize("content", ["nothing", "text", "stereo", "short"])
def test_sound_names_a_file_that_is_not_a_recording(content: str, tmp_path: Path) -> None:
    sound = load_example("sound")
    path = tmp_path / "broken.wav"
    if content in {"nothing", "text"}:
        path.write_bytes(b"" if content == "nothing" else b"not a sound, but long enough for a header of one")
    else:
        with sound.wave.open(str(path), "wb") as file:
            file.setparams((2 if content == "stereo" else 1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(40_000 if content == "stereo" else 400))
    with pytest.raises(ValueError, match=re.escape(str(path))):
        sound.read_part(str(path), sound.np.random.default_rng(0))


@needs_digits
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_train_torch_learns() -> None:
    run = run_example("train_torch.py", "--epochs", "12")
    assert_ended_quietly(run)
    assert read_percentage("accuracy", run.stdout) >= 0.96


def test_text_learns_from_padded_batches() -> None:
    run = run_example("text.py", "--epochs", "3")
    assert_ended_quietly(run)
    assert read_percentage("accuracy", run.stdout) >= 0.8


def test_no_paragraph_is_in_both_parts() -> None:
    training, test = load_example("text").load_paragraphs()
    assert not {dp["text"] for dp in training} & {dp["text"] for dp in test}
    assert len(training) > 3 * len(test) > 300


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("sound", ["--epochs", "0"], "give at least one epoch"),
        ("text", ["--epochs", "0"], "--epochs: 0 is too small; give at least 1"),
        ("feed", ["--epochs", "0"], "--epochs: 0 is too small; give at least 1"),
        ("digits", ["--runner", "carrier-pigeon"], "invalid choice: 'carrier-pigeon'"),
        ("digits", ["--workers", "0"], "0 is too small; give at least 1"),
        ("digits", ["--epochs", "many"], "invalid positive value: 'many'"),
        ("digits", ["--seeds", "-1"], "-1 is too small; give at least 1"),
        ("photos", ["--images", "0"], "0 is too small; give at least 1"),
        ("photos", ["--out", "sheet.jpg"], "sheet.jpg does not end in .png"),
        ("photos", ["--out", "no/such/folder/sheet.png"], f"there is no folder {Path('no/such/folder')}"),
    ],
)
def test_a_wrong_argument_is_named(
    name: str, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        load_example(name).main(arguments)
    assert exit_info.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "missing", "cure"),
    [
        ("digits", "sklearn", 'pip install "dataflow-runners[examples]"'),
        ("feed", "sklearn", 'pip install "dataflow-runners[examples]"'),
        ("photos", "cv2", 'pip install "dataflow-runners[images]"'),
    ],
)
def test_a_missing_package_is_reported_with_the_command_that_installs_it(
    name: str, missing: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_package(monkeypatch, missing)
    with pytest.raises(SystemExit, match=re.escape(cure)):
        load_example(name).main([])


def test_photos_reports_missing_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "sklearn")
    with pytest.raises(SystemExit, match=re.escape('pip install "dataflow-runners[examples]"')):
        load_example("photos").find_photos()
