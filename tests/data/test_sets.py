"""Where data sets come from, what they hold, and what is said when they are not there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ternfed.data import files, hub, sets
from ternfed.data.sets import DataMissing, DataSet, Samples, from_arrays, from_hub, load, save_arrays

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")
datasets.disable_progress_bars()

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def grey(count: int, seed: int, size: int = 28) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size), dtype=np.uint8)


def rows(pixels: np.ndarray, image: str = "image") -> object:
    """A split as the hub has it: encoded images and class labels."""
    features = datasets.Features({image: datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    columns = {image: [Image.fromarray(each) for each in pixels], "label": [i % 10 for i in range(len(pixels))]}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture
def small_mnist(tmp_path: Path) -> Path:
    """A data folder in the hub's layout with 30 + 10 images, the training set in two files."""
    folder = tmp_path / "data" / "mnist" / "mnist"
    folder.mkdir(parents=True)
    train = grey(30, seed=1)
    rows(train[:20]).to_parquet(folder / "train-00000-of-00002.parquet")
    rows(train[20:]).to_parquet(folder / "train-00001-of-00002.parquet")
    rows(grey(10, seed=2)).to_parquet(folder / "test-00000-of-00001.parquet")
    return tmp_path / "data"


def same(first: DataSet, second: DataSet) -> bool:
    return all(
        torch.equal(getattr(getattr(first, split), field), getattr(getattr(second, split), field))
        for split in ("train", "test")
        for field in ("inputs", "labels")
    )


# The real ones.


def test_mnist_is_whole(real_data: Path) -> None:
    mnist = load("mnist", real_data)
    assert mnist.train.inputs.shape == (60000, 1, 28, 28)
    assert mnist.test.inputs.shape == (10000, 1, 28, 28)
    assert mnist.train.inputs.dtype == torch.uint8
    assert torch.bincount(mnist.train.labels).tolist() == MNIST_TRAIN
    assert torch.bincount(mnist.test.labels).tolist() == MNIST_TEST
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    pixels = mnist.train.inputs.double() / 255
    assert (round(pixels.mean().item(), 4), round(pixels.std().item(), 4)) == (0.1307, 0.3081)
    assert (mnist.classes, mnist.mean, mnist.std, mnist.augment) == (10, (0.1307,), (0.3081,), None)


def test_cifar10_is_whole(real_data: Path) -> None:
    cifar = load("cifar10", real_data)
    assert cifar.train.inputs.shape == (50000, 3, 32, 32)
    assert cifar.test.inputs.shape == (10000, 3, 32, 32)
    assert torch.bincount(cifar.train.labels).tolist() == [5000] * 10
    assert torch.bincount(cifar.test.labels).tolist() == [1000] * 10
    # Known from its makers' files; the paper's 0.4824 and 0.4467 are these to within 0.0002.
    means = [channel.double().mean().item() / 255 for channel in cifar.train.inputs.unbind(1)]
    assert [round(mean, 4) for mean in means] == [0.4914, 0.4822, 0.4465]
    assert cifar.mean == (0.4914, 0.4824, 0.4467)
    assert cifar.std == (0.247, 0.244, 0.262)
    assert cifar.augment == sets.Augment(padding=4, flip=True)


def test_digits_are_split_the_same_way_everywhere() -> None:
    digits = load("digits")
    assert digits.train.inputs.shape == (1442, 1, 8, 8)
    assert digits.test.inputs.shape == (355, 1, 8, 8)
    assert torch.bincount(digits.test.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert torch.equal(digits.train.inputs * 16, (digits.train.inputs * 16).round())
    assert (digits.train.inputs.min(), digits.train.inputs.max()) == (0, 1)
    assert round(digits.train.inputs.double().mean().item(), 4) == digits.mean[0]
    assert round(digits.train.inputs.double().std().item(), 4) == digits.std[0]
    assert same(digits, load("digits"))


def test_no_digit_is_both_in_training_and_test_set() -> None:
    digits = load("digits")
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    ours = torch.cat([digits.train.inputs, digits.test.inputs]).flatten(1)
    theirs = torch.from_numpy(sklearn_datasets.load_digits().data / 16).float()
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


# Parquet, the cache, plain arrays.


def test_parquet_files_are_decoded_exactly_and_in_order(small_mnist: Path) -> None:
    mnist = load("mnist", small_mnist)
    assert np.array_equal(mnist.train.inputs.numpy()[:, 0], grey(30, seed=1))
    assert mnist.train.labels.tolist() == [i % 10 for i in range(20)] + [i % 10 for i in range(10)]
    assert len(mnist.test) == 10


def test_the_environment_names_the_folder_when_the_caller_does_not(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERNFED_DATA", str(small_mnist))
    assert same(load("mnist"), load("mnist", small_mnist))


@pytest.mark.parametrize("below", ["", "mnist", "mnist/mnist"])
def test_the_folder_may_be_named_at_any_depth(small_mnist: Path, below: str) -> None:
    assert len(load("mnist", small_mnist / below).train) == 30


def test_a_second_load_comes_from_the_cache_without_decoding(
    small_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("mnist", small_mnist)
    monkeypatch.setattr(files, "open_image", lambda blob: pytest.fail("decoded again"))
    assert same(load("mnist", small_mnist), first)


def damage_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [damage_middle, lambda path: path.write_bytes(path.read_bytes()[:-100]), lambda path: path.write_bytes(b"")],
    ids=["a flipped byte", "a cut end", "an empty file"],
)
def test_a_damaged_cache_is_made_again(small_mnist: Path, damage: object) -> None:
    first = load("mnist", small_mnist)
    (cache,) = files.cache_folder().iterdir()
    whole = cache.stat().st_size
    damage(cache)  # type: ignore[operator]
    assert same(load("mnist", small_mnist), first)
    assert [each.stat().st_size for each in files.cache_folder().iterdir()] == [whole]


def test_other_files_do_not_get_the_cache_of_these(small_mnist: Path) -> None:
    first = load("mnist", small_mnist)
    rows(grey(10, seed=3)).to_parquet(small_mnist / "mnist/mnist/test-00000-of-00001.parquet")
    assert not same(load("mnist", small_mnist), first)


def test_a_cache_that_cannot_be_written_is_done_without(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TERNFED_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load("mnist", small_mnist).train) == 30


@pytest.mark.parametrize("parts", [1, 3])
def test_saved_arrays_come_back_without_the_extras(
    small_mnist: Path, tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist = load("mnist", small_mnist)
    written = save_arrays(mnist, tmp_path / "arrays", parts)
    assert sum(path.name.startswith("train_inputs") for path in written) == parts
    for extra in ("datasets", "pyarrow", "PIL", "sklearn"):
        monkeypatch.setitem(sys.modules, extra, None)
    assert same(load("mnist", tmp_path / "arrays"), mnist)


def test_more_than_ten_parts_are_joined_in_the_order_of_their_numbers(small_mnist: Path, tmp_path: Path) -> None:
    mnist = load("mnist", small_mnist)
    save_arrays(mnist, tmp_path / "arrays", 12)
    assert same(load("mnist", tmp_path / "arrays"), mnist)


def test_saving_again_leaves_no_part_of_an_earlier_division(small_mnist: Path, tmp_path: Path) -> None:
    mnist = load("mnist", small_mnist)
    for parts in (1, 5, 2):
        save_arrays(mnist, tmp_path / "arrays", parts)
        assert len(list((tmp_path / "arrays").glob("train_inputs*"))) == parts
        assert same(load("mnist", tmp_path / "arrays"), mnist)


@pytest.mark.parametrize("absent", ["train_inputs.1.npy", "train_inputs.2.npy", "test_inputs.npy"])
def test_an_absent_part_is_noticed(small_mnist: Path, tmp_path: Path, absent: str) -> None:
    save_arrays(load("mnist", small_mnist), tmp_path / "arrays", 3)
    (tmp_path / "arrays" / absent).unlink()
    with pytest.raises(DataMissing, match="write it again with save_arrays"):
        load("mnist", tmp_path / "arrays")


def test_arrays_of_another_data_set_are_refused(small_mnist: Path, tmp_path: Path) -> None:
    save_arrays(load("mnist", small_mnist), tmp_path / "arrays")
    with pytest.raises(DataMissing, match="holds samples of 1×28×28, but cifar10 is 3×32×32"):
        load("cifar10", tmp_path / "arrays")


# What is not there.


def test_a_data_set_that_is_nowhere_is_refused_soon_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    begun = time.monotonic()
    with pytest.raises(DataMissing, match=r"cifar10: not in .*--data DIR.*TERNFED_DATA.*network") as refusal:
        load("cifar10", tmp_path)
    assert time.monotonic() - begun < 2 * hub.PATIENCE
    assert "\n" not in str(refusal.value)
    assert not constants.HF_HUB_OFFLINE


def test_what_the_hub_gave_earlier_is_found_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    (tmp_path / "mnist").mkdir()
    rows(grey(20, seed=1)).to_parquet(tmp_path / "mnist" / "train.parquet")
    rows(grey(10, seed=2)).to_parquet(tmp_path / "mnist" / "test.parquet")
    datasets.load_dataset(str(tmp_path / "mnist"), cache_dir=str(tmp_path / "made"))
    # What fetching ylecun/mnist leaves behind has the same files under the hub's names.
    kept = tmp_path / "hub" / "ylecun___mnist"
    kept.mkdir(parents=True)
    (tmp_path / "made" / "mnist" / "default").rename(kept / "mnist")
    for about in kept.rglob("dataset_info.json"):
        about.write_text(json.dumps({**json.loads(about.read_text()), "config_name": "mnist"}))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    mnist = load("mnist")
    assert np.array_equal(mnist.train.inputs.numpy()[:, 0], grey(20, seed=1))
    assert len(mnist.test) == 10


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="nowhere: no such folder; --data or TERNFED_DATA"):
        load("mnist", tmp_path / "nowhere")


def test_a_broken_parquet_file_is_named(small_mnist: Path) -> None:
    (small_mnist / "mnist/mnist/test-00000-of-00001.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DataMissing, match=r"test-00000-of-00001\.parquet: no parquet file") as refusal:
        load("mnist", small_mnist)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "absent"), [("digits", "sklearn.datasets"), ("mnist", "pyarrow.parquet")])
def test_an_absent_extra_is_named(name: str, absent: str, small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(DataMissing, match=r"pip install 'ternfed\[data\]'"):
        load(name, small_mnist)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    known = r"^data\.dataset = minst: digits, .*, text:FOLDER, .* or module:function is allowed"
    with pytest.raises(ValueError, match=known):
        load("minst")


# A user's own.


def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (tmp_path / "own_data.py").write_text("import numpy as np\nfrom ternfed.data.sets import from_arrays\n" + body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_data", raising=False)


def test_a_function_of_the_users_gives_arrays_or_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_module(
        tmp_path, monkeypatch,
        "def arrays(): return np.ones((6, 3)), np.arange(6) % 3, np.zeros((2, 3)), np.array([0, 1])\n"
        "def whole(): return from_arrays('mine', *arrays(), classes=4)\n",
    )  # fmt: skip
    assert load("own_data:arrays").classes == 3
    assert load("own_data:arrays").train.inputs.dtype == torch.float32
    assert (load("own_data:whole").name, load("own_data:whole").classes) == ("mine", 4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_data:absent", "cannot be imported"),
        ("no_such_module:f", "cannot be imported"),
        ("own_data:nothing", "returned NoneType; a DataSet or"),
    ],
)
def test_a_function_that_does_not_serve_is_refused(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_module(tmp_path, monkeypatch, "def nothing(): return None\n")
    with pytest.raises(ValueError, match=rf"^data\.dataset = {name}: {sentence}"):
        load(name)


def test_arrays_keep_bytes_as_bytes_and_measure_their_channels() -> None:
    pixels = np.zeros((4, 2, 3, 3), dtype=np.uint8)
    pixels[:2, 0] = 255
    data = from_arrays("mine", pixels, [0, 1, 0, 1], pixels, [0, 1, 0, 1])
    assert data.train.inputs.dtype == torch.uint8
    assert data.mean == (0.5, 0.0)
    assert data.std == (0.5, 1.0)  # a channel that never changes is not divided by zero


def test_grey_images_get_their_channel_and_tensors_are_taken_as_well() -> None:
    pixels = torch.zeros(4, 5, 5, dtype=torch.uint8)
    data = from_arrays("mine", pixels, torch.tensor([0, 1, 2, 0]), pixels[::2], np.array([1, 2], dtype=np.uint8))
    assert data.train.inputs.shape == (4, 1, 5, 5)
    assert (data.classes, data.test.labels.dtype) == (3, torch.int64)


def test_true_and_false_are_two_classes() -> None:
    x, y = np.zeros((3, 4)), np.array([True, False, True])
    data = from_arrays("two", x, y, x, y)
    assert (data.classes, data.train.labels.tolist()) == (2, [1, 0, 1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_y": [0, 1]}, "one label per input"),
        ({"train_y": [0, 1, -1]}, "labels run from -1 to 1"),
        ({"train_y": [0, 1, 7], "classes": 5}, "with classes = 5 they must be 0 to 4"),
        ({"train_y": [0.0, 1.0, 0.0]}, "one whole number per sample"),
        ({"test_x": np.zeros((2, 5))}, "train_x is 4 float32 but test_x is 5 float32"),
        ({"train_x": np.full((3, 4), np.nan)}, "not finite"),
        ({"train_x": np.zeros((3, 32, 32, 3), dtype=np.uint8)}, "channels last"),
        ({"train_x": np.array(["a", "b", "c"])}, "numbers of shape samples"),
        ({"test_x": np.zeros((0, 4)), "test_y": np.zeros(0, dtype=int)}, "the test set is empty"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    fitting = {"train_x": np.zeros((3, 4)), "train_y": [0, 1, 0], "test_x": np.zeros((2, 4)), "test_y": [0, 1]}
    with pytest.raises(ValueError, match=sentence) as refusal:
        from_arrays("mine", **{**fitting, **change})  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)


def test_samples_are_taken_by_position() -> None:
    samples = Samples(torch.arange(5.0)[:, None], torch.arange(5))
    taken = samples.take(torch.tensor([3, 1]))
    assert (len(taken), taken.inputs.flatten().tolist(), taken.labels.tolist()) == (2, [3.0, 1.0], [3, 1])


# Hugging Face data sets.


def test_a_hugging_face_data_set_in_memory_finds_its_columns_by_their_type() -> None:
    splits = datasets.DatasetDict({"train": rows(grey(20, 1), image="photo"), "test": rows(grey(10, 2), image="photo")})
    data = from_hub(splits, name="mine")
    assert np.array_equal(data.train.inputs.numpy()[:, 0], grey(20, 1))
    assert data.train.labels.tolist() == [i % 10 for i in range(20)]
    assert (data.name, data.classes) == ("mine", 10)


def test_a_hugging_face_data_set_on_disk_is_read_in_both_of_its_forms(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    parquet = from_hub(small_mnist / "mnist" / "mnist")
    assert np.array_equal(parquet.train.inputs.numpy()[:, 0], grey(30, seed=1))
    datasets.DatasetDict({"train": rows(grey(20, 1)), "test": rows(grey(10, 2))}).save_to_disk(tmp_path / "saved")
    assert np.array_equal(from_hub(tmp_path / "saved").test.inputs.numpy()[:, 0], grey(10, 2))


def test_colour_images_become_channels_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 6, 7, 3), dtype=np.uint8)
    data = from_hub({"train": rows(pixels), "test": rows(pixels)})
    assert np.array_equal(data.train.inputs.numpy(), pixels.transpose(0, 3, 1, 2))


def test_columns_of_numbers_are_inputs_too() -> None:
    table = datasets.Dataset.from_dict({"x": [[0.5, 1.0], [2.0, 3.0]], "y": [0, 1]})
    data = from_hub({"fit": table, "check": table}, image="x", label="y", train="fit", test="check")
    assert data.train.inputs.tolist() == [[0.5, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"test": "validation"}, "no split validation; there is train, test"),
        ({"image": "photo"}, "no column photo; there is image, label"),
        ({"label": "kind"}, "no column kind; there is image, label"),
    ],
)
def test_an_absent_split_or_column_is_refused_with_those_there_are(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(DataMissing, match=sentence):
        from_hub({"train": rows(grey(10, 1)), "test": rows(grey(10, 2))}, **options)


def test_images_of_different_sizes_are_refused() -> None:
    mixed = datasets.concatenate_datasets([rows(grey(2, 1)), rows(grey(2, 1, size=20))])
    with pytest.raises(ValueError, match="image 2 is 20×20 but the first is 28×28"):
        from_hub({"train": mixed, "test": mixed})
