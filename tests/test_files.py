"""Files written whole or not at all; tensors and facts that come back as they were."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ternfed.files import (
    append_line,
    as_line,
    load_tensors,
    replacing,
    save_tensors,
    tensors_in,
    whole_lines,
    write_atomically,
)


class Killed(BaseException):
    pass


def killed(*_: object) -> None:
    raise Killed


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        write_atomically(tmp_path / "file.json", data)
        assert (tmp_path / "file.json").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_a_process_killed_while_it_writes_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(Killed):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    write_atomically(tmp_path / "file", b"new", lasting=False)  # which does not wait for the disk
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_stream_becomes_the_file_or_nothing(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as stream:
        stream.write(b"old")
    with pytest.raises(TypeError), replacing(tmp_path / "file") as stream:
        stream.writelines([b"ne", None])  # type: ignore[list-item]
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_processes_may_replace_one_file_at_the_same_time(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as other:
        one.write(b"one")
        other.write(b"other")
    assert (tmp_path / "file").read_bytes() == b"one"  # the last to end
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_line_that_was_left_half_written_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    assert list(whole_lines(file)) == []
    append_line(file, as_line({"round": 1}))
    append_line(file, as_line({"round": 2})[:-3])
    assert list(whole_lines(file)) == [b'{"round": 1}\n']


def test_a_number_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_line({"loss": float("nan")})


class TestTensors:
    def test_come_back_with_their_facts(self, tmp_path: Path) -> None:
        tensors = {"b": torch.arange(3), "a/x": torch.randn(2, 3).T, "none": torch.zeros(0)}
        (tmp_path / "file").write_bytes(save_tensors(tensors, {"round": 3, "words": ["é"]}))
        found, facts = load_tensors(tmp_path / "file")
        assert facts == {"round": 3, "words": ["é"]}
        assert set(found) == set(tensors)
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)

    def test_are_the_same_bytes_whatever_the_order(self) -> None:
        one, two = torch.randn(3), torch.randn(4)
        first = save_tensors({"a": one, "b": two}, {"x": 1, "y": 2})
        assert save_tensors({"b": two, "a": one}, {"y": 2, "x": 1}) == first

    def test_may_share_memory(self, tmp_path: Path) -> None:
        whole = torch.randn(6)
        (tmp_path / "file").write_bytes(save_tensors({"a": whole, "b": whole, "c": whole[2:]}, {}))
        assert torch.equal(load_tensors(tmp_path / "file")[0]["c"], whole[2:])

    @pytest.mark.parametrize("metadata", [None, {"other": "maker"}, {"ternfed": "no JSON"}, {"ternfed": "[1]"}])
    def test_of_another_maker_have_no_facts(self, tmp_path: Path, metadata: dict[str, str] | None) -> None:
        save_file({"a": torch.ones(2)}, tmp_path / "file", metadata)
        assert load_tensors(tmp_path / "file")[1] == {}

    @pytest.mark.parametrize("data", [b"", b"hello", save_tensors({"a": torch.ones(9)}, {})[:-1]])
    def test_a_file_that_is_none_is_a_value_error(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(ValueError, match=r"\w"):
            load_tensors(tmp_path / "file")
        with pytest.raises(ValueError, match=r"."):
            tensors_in(data)

    def test_come_back_from_bytes_as_from_a_file(self, tmp_path: Path) -> None:
        data = save_tensors({"b": torch.arange(3), "a": torch.ones(2, 2)}, {"order": ["b", "a"]})
        (tmp_path / "file").write_bytes(data)
        found, facts = tensors_in(data)
        other, same = load_tensors(tmp_path / "file")
        assert facts == same == {"order": ["b", "a"]}
        assert all(torch.equal(found[name], other[name]) for name in ("a", "b"))

    def test_a_file_that_is_absent_is_an_error_of_the_system(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            load_tensors(tmp_path / "file")
