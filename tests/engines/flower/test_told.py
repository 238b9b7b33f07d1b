"""What a client takes from its server, one test for each thing in the list of `told.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ternfed.data.values import Outline
from ternfed.engines.flower.client import _Work
from ternfed.engines.flower.client_round import END, ClientSetup, RoundRequest, read_experiment
from ternfed.engines.flower.envelope import WrongRound
from ternfed.engines.flower.memory import Kept, Store
from ternfed.engines.flower.told import TEXT, WrongRun, plain, read_terms
from ternfed.experiment.experiment import Experiment, ExperimentError

RUN = "0123456789abcdef"
GOOD = {"run": RUN, "experiment": Experiment.from_toml("").to_toml(), "frozen": ""}


def test_what_an_honest_server_says_is_taken_as_it_is() -> None:
    assert read_terms(GOOD, ()) == (RUN, GOOD["experiment"], "", None)
    assert read_terms({**GOOD, "frozen": "0" * 64}, ()).frozen == "0" * 64
    assert read_terms({"run": RUN, "experiment": ""}, ()).frozen == ""
    assert read_terms({**GOOD, "outline": ""}, ()).outline is None
    letters = Outline(75, 75, "\n abcé\U0001f600")
    assert read_terms({**GOOD, "outline": json.dumps(letters._asdict())}, ()).outline == letters


@pytest.mark.parametrize(
    "run",
    [
        *("", "..", "../../.ssh", "/etc", "~", "a/b", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"),
        *(
            "0123456789abcdeg",
            "0123456789abcdef\n",
            "\u0660123456789abcdef",
            "0123456789abcde\0",
            1234567890123456,
            None,
        ),
        *(b"0123456789abcdef", ["0123456789abcdef"], True, 0.5),
    ],
)
def test_a_run_that_could_be_a_path_is_refused_before_anything_is_written(run: Any, tmp_path: Path) -> None:
    with pytest.raises(WrongRun, match="16 hexadecimal digits are needed"):
        read_terms({**GOOD, "run": run}, ())
    state = tmp_path / "state"
    working = _Work(ClientSetup(0, 2), state)
    with pytest.raises(WrongRun):
        working.site_of({**GOOD, "run": run})
    assert not state.exists()


@pytest.mark.parametrize("run", ["..", "../other", "/tmp/x", ""])
def test_the_store_keeps_to_its_folder_whoever_calls_it(run: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    with pytest.raises(ValueError, match="names no run"):
        store.save(run, Kept(1, {"a": torch.zeros(1)}, None), 0)
    with pytest.raises(ValueError, match="names no run"):
        store.load(run, 2)


@pytest.mark.parametrize("frozen", ["0" * 63, "g" * 64, "../x", None, 5, "0" * 64 + "\n"])
def test_a_digest_is_a_digest(frozen: Any) -> None:
    with pytest.raises(WrongRun, match="64 hexadecimal digits"):
        read_terms({**GOOD, "frozen": frozen}, ())


@pytest.mark.parametrize(
    "text", [None, 5, "a = ", "\0", "x = " + "[" * 100_000, "#" * (TEXT + 1), "[model]\nweights = 'a'\n[model]"]
)
def test_an_experiment_is_toml_and_not_too_long(text: Any) -> None:
    with pytest.raises(WrongRun, match="experiment"):
        read_terms({**GOOD, "experiment": text}, ())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[model]\nweights = "/etc/passwd"', "/etc/passwd"),
        ('[model]\nweights = "model.safetensors"', "model.safetensors"),
        ('[data]\ndataset = "text:/home"\nlength = 5', "text:/home"),
        ('[data]\ndataset = "arrays:/home"', "arrays:/home"),
        ('[data]\ndataset = "parquet:/home"', "parquet:/home"),
        ('[data]\ndataset = "shakespeare"\ntokenizer = "/etc/passwd"', "/etc/passwd"),
    ],
)
def test_files_of_this_machine_are_read_only_where_its_user_allows_it(text: str, name: str) -> None:
    with pytest.raises(ExperimentError, match="names a file of this machine; start the client with --allow"):
        read_terms({**GOOD, "experiment": text}, ())
    with pytest.raises(ExperimentError, match="names a file"):
        read_terms({**GOOD, "experiment": text}, ("text", "/etc"))
    assert read_terms({**GOOD, "experiment": text}, (name,)).experiment == text


@pytest.mark.parametrize("kind", ["text", "arrays", "parquet"])
def test_a_folder_that_is_allowed_is_not_taken_for_code(kind: str) -> None:
    experiment = read_experiment(f'[data]\ndataset = "{kind}:folder"\npartition = "iid"', (f"{kind}:folder",))
    assert experiment.data.dataset == f"{kind}:folder"
    with pytest.raises(ExperimentError, match=f"names code .* --allow {kind} "):
        read_experiment(f'[model]\nname = "{kind}:folder"')


@pytest.mark.parametrize(
    "outline",
    [
        *(None, 5, "{", "[1]", "[" * 100_000, '{"classes": 10}', "null", '"' + "x" * TEXT + '"'),
        *(
            json.dumps({"classes": 10, "vocabulary": None, "characters": None, **wrong})
            for wrong in (
                *({"classes": value} for value in (0, -1, 2.0, True, None, "10", 1 << 31)),
                *({"vocabulary": value} for value in (-1, 2.0, False, "10", 1 << 31)),
                *({"characters": value} for value in ("", 5, ["a"], "\ud800")),
                {"more": 1},
            )
        ),
    ],
)
def test_an_outline_of_the_data_is_two_numbers_and_letters(outline: Any) -> None:
    with pytest.raises(WrongRun, match="outline"):
        read_terms({**GOOD, "outline": outline}, ())


@pytest.mark.parametrize("section", ["model", "data", "algorithm", "task"])
def test_code_is_run_only_where_its_user_allows_it(section: str) -> None:
    key = "dataset" if section == "data" else "name"
    with pytest.raises(ExperimentError, match="names code that this client was not told to run"):
        read_experiment(f'[{section}]\n{key} = "subprocess:Popen"\n')


@pytest.mark.parametrize(
    "group", ["", "-1", "1/held-1", "1/held-2", "1e3", "1/held-", "../1", "1/held-0/held-0", "\u0661", "9" * 10, "end "]
)
def test_a_group_names_a_round_or_the_end(group: str) -> None:
    assert group != END
    with pytest.raises(WrongRound):
        RoundRequest.of(group)


def test_words_are_shown_without_control_characters_and_not_at_length() -> None:
    said = plain("\x1b]0;owned\x07\x1b[2J\u202eline\r\nnext\u2028" + "x" * 10_000)
    assert said.isprintable()
    assert "\x1b" not in said
    assert said.startswith("]0;owned [2J line next")
    assert len(said) <= 400
