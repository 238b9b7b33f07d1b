"""Text as data: characters become ids that stay whole numbers, files become clients, the last tenth is for tests."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ternfed.data.sets import DataMissing, load, without_samples
from ternfed.data.text import read_text, text_files, vocabulary
from ternfed.experiment.experiment import Experiment, ExperimentError


def folder_of(tmp_path: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_sequence_is_followed_by_its_targets(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, b="ab" * 50, a="abcdefghij" * 10)
    data = load(f"text:{folder}", length=4)
    letters = vocabulary(text_files(folder))
    assert letters == "abcdefghij"
    assert data.classes == len(letters) + 1  # and one for any other character
    texts = ["".join(letters[i - 1] for i in row) for row in data.train.inputs.tolist()]
    assert texts[:3] == ["abcd", "efgh", "ijab"]
    assert torch.equal(data.train.labels[:, :-1], data.train.inputs[:, 1:])
    assert [letters[row[-1] - 1] for row in data.train.labels.tolist()[:2]] == ["e", "i"]
    assert data.clients is not None
    # 90 characters each, the last one of a file only as a target.
    assert data.clients.tolist() == [0] * 22 + [1] * 22
    assert len(data.test) == 4
    assert data.train.inputs.dtype == data.train.labels.dtype == torch.int64


def test_a_character_that_only_the_test_part_has_is_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    data = load(f"text:{folder_of(tmp_path, a='ab' * 45 + 'ñ' * 10)}", length=3)
    assert data.classes == 3
    assert set(data.test.inputs.flatten().tolist()) == {0}
    assert set(data.train.inputs.flatten().tolist()) == {1, 2}


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({}, "holds no .txt files; one for each client is needed"),
        ({"a": "long enough for a few" * 9, "b": "short"}, "b.txt: its 5 training characters make no sequence of 10"),
        ({"a": "x" * 40}, "no file's last tenth makes a sequence of 10"),
    ],
)
def test_what_gives_no_sequence_is_refused_in_one_sentence(
    tmp_path: Path, texts: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        load(f"text:{folder_of(tmp_path, **texts)}", length=10)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(DataMissing, match=r"a\.txt: is not UTF-8"):
        load(f"text:{tmp_path}")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="there is no such folder"):
        load(f"text:{tmp_path / 'nowhere'}")


class TestShakespeare:
    def test_has_425_roles(self, real_data: Path) -> None:
        data = load("shakespeare", real_data)
        assert data.clients is not None
        assert int(data.clients.max()) + 1 == 425
        shape_only = without_samples("shakespeare")
        assert shape_only is not None
        assert (data.classes, data.train.inputs.shape[1:]) == (shape_only.classes, shape_only.train.inputs.shape[1:])
        first = text_files(real_data / "shakespeare")[0].read_text(encoding="utf-8")
        letters = vocabulary(text_files(real_data / "shakespeare"))
        assert "".join(letters[i - 1] for i in data.train.inputs[:2].flatten().tolist()) == first[:160]
        assert (data.test.labels > 0).double().mean() > 0.999  # hardly any character is new in the last tenths

    def test_a_few_roles_are_a_data_set_of_their_own(self, real_data: Path) -> None:
        files = text_files(real_data / "shakespeare")[:3]
        data = read_text(files, "roles", length=40)
        assert data.clients is not None
        lengths = np.array([len(file.read_text("utf-8")) for file in files])
        assert np.bincount(data.clients.numpy()).tolist() == ((lengths - lengths // 10 - 1) // 40).tolist()

    def test_without_a_folder_it_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(DataMissing, match="name a folder that holds shakespeare"):
            load("shakespeare")
        with pytest.raises(DataMissing, match=r"not in .*; name a folder that holds shakespeare"):
            load("shakespeare", tmp_path)


class TestTokenizers:
    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Path:
        tokenizers = pytest.importorskip("tokenizers", reason="the extra [text]")
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="?"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words = tokenizers.trainers.WordLevelTrainer(special_tokens=["?"])
        made.train_from_iterator(["the cat sat on the mat"], words)
        made.save(str(tmp_path / "words.json"))
        return tmp_path / "words.json"

    def test_tokens_take_the_place_of_characters(self, tmp_path: Path, tokenizer: Path) -> None:
        (tmp_path / "cat.txt").write_text("the cat sat on the mat " * 20, encoding="utf-8")
        (tmp_path / "dog.txt").write_text("the dog sat on the log " * 20, encoding="utf-8")
        settings = [f"data.dataset=text:{tmp_path}", "data.length=6", f"data.tokenizer={tokenizer}"]
        data = Experiment.from_toml("", settings).load_data()
        assert data.vocabulary == 6  # five words and what is none
        assert torch.equal(data.train.inputs[:, 1:], data.train.labels[:, :-1])
        assert data.clients is not None
        assert data.clients.unique().tolist() == [0, 1]
        dog = data.train.inputs[data.clients == 1][0].tolist()
        assert dog[1] == dog[5] == 0
        assert dog[0] == dog[4] == int(data.train.inputs[0, 0])

    def test_too_few_tokens_for_a_sequence(self, tmp_path: Path, tokenizer: Path) -> None:
        (tmp_path / "cat.txt").write_text("the cat sat on the mat", encoding="utf-8")
        with pytest.raises(ValueError, match=r"cat.txt: its \d training tokens make no sequence of 80"):
            read_text(text_files(tmp_path), "cats", tokenizer=tokenizer)

    @pytest.mark.parametrize("content", [None, "no JSON"])
    def test_what_is_no_tokenizer_is_named(self, tmp_path: Path, content: str | None) -> None:
        pytest.importorskip("tokenizers", reason="the extra [text]")
        (tmp_path / "cat.txt").write_text("the cat " * 200, encoding="utf-8")
        if content is not None:
            (tmp_path / "words.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataMissing, match=r"data.tokenizer = .*words.json: is no file of a tokenizer"):
            read_text(text_files(tmp_path), "cats", tokenizer=tmp_path / "words.json")

    def test_without_the_extra_it_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        (tmp_path / "cat.txt").write_text("the cat " * 200, encoding="utf-8")
        with pytest.raises(DataMissing, match=r"needs the extra \[text\]"):
            read_text(text_files(tmp_path), "cats", tokenizer=tmp_path / "words.json")

    def test_has_no_meaning_without_text(self) -> None:
        with pytest.raises(ExperimentError, match=r'data.tokenizer = "a.json": has no meaning with dataset = "digits"'):
            Experiment.from_toml("", ["data.tokenizer=a.json"])
