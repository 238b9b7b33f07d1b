"""An experiment is one typed value: what is said, what is filled in, and what is refused with one sentence."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from own_parts import PRESETS, Colour, Settings, rows
from ternfed.algorithms.optimizers import Adam, Sgd
from ternfed.data.partitions import Classes, Dirichlet, Iid, Unbalanced
from ternfed.data.sets import load
from ternfed.experiment.defaults import KEYS
from ternfed.experiment.experiment import Experiment, ExperimentError, override, read_table
from ternfed.experiment.named import built_in_algorithms, find_algorithm
from ternfed.experiment.schedules import Cosine, Exponential
from ternfed.runs.folder import FILES

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
OWN = {"name": "own_parts:algorithm"}


def make(*given_settings: str, **sections: Any) -> Experiment:
    return Experiment.from_table(override(sections, given_settings))


def own(**values: Any) -> Settings:
    chosen = Experiment.from_table({"algorithm": {**OWN, **values}}).algorithm.settings
    assert isinstance(chosen, Settings)
    return chosen


# Defaults


def test_an_empty_file_is_t_fedavg_on_the_digits() -> None:
    experiment = Experiment.from_toml("")
    assert (experiment.name, experiment.seed) == ("digits-tfedavg", 0)
    assert (experiment.data.dataset, experiment.model.name) == ("digits", "mlp")
    assert experiment.federation.clients == 20


def test_mnist_has_the_papers_configuration() -> None:
    experiment = make("data.dataset=mnist")
    assert experiment.federation.clients == 100
    assert experiment.federation.participation == 0.1
    assert experiment.federation.rounds == 100
    training = experiment.training
    assert (training.optimizer, training.rate, training.epochs, training.batch) == (Sgd(), 0.01, 5, 64)
    assert (experiment.model.name, experiment.model.options) == ("mlp", {"activation": "relu", "hidden": (30, 20)})
    assert {experiment.rate_at(round) for round in range(1, 101)} == {0.01}


@pytest.mark.parametrize(("model", "rate"), [("cnn", 0.001), ("resnet18", 0.002)])
def test_cifar10_has_the_papers_configuration_with_a_rate_for_each_network(model: str, rate: float) -> None:
    experiment = make("data.dataset=cifar10", f"model.name={model}")
    assert (experiment.federation.clients, experiment.federation.participation) == (5, 1.0)
    training = experiment.training
    assert (training.optimizer, training.rate, training.epochs, training.batch) == (Adam(), rate, 10, 64)
    assert training.schedule == Exponential(decay=0.95, every=5)


def test_the_usual_network_of_cifar10_is_resnet18() -> None:
    assert make("data.dataset=cifar10").model.name == "resnet18"


def test_the_centralized_baseline_trains_one_epoch_per_round() -> None:
    assert make("data.dataset=mnist", "algorithm.name=centralized").training.epochs == 1


def test_what_is_given_overrides_every_default() -> None:
    experiment = make("data.dataset=cifar10", "training.rate=0.5", "federation.clients=7")
    assert (experiment.training.rate, experiment.federation.clients, experiment.training.epochs) == (0.5, 7, 10)


def test_at_least_one_client_takes_part_by_default() -> None:
    assert make("data.dataset=mnist", "federation.clients=4").federation.participation == 0.25
    assert make("data.dataset=mnist", "federation.clients=50").federation.participation == 0.1


def test_settings_of_a_partition_alone_say_which_partition_is_meant() -> None:
    assert make("data.classes_per_client=5").data.partition == Classes(5)
    assert make("data.balance=0.3").data.partition == Unbalanced(0.3)
    assert make("data.alpha=1").data.partition == Dirichlet(1.0)
    assert make("data.partition=classes").data.partition == Classes(2)


def test_settings_that_do_not_apply_are_not_there() -> None:
    table = make("training.optimizer=adam").to_table()
    assert list(table["data"]) == ["dataset", "partition", "hold_out"]
    assert not {"momentum", "decay", "decay_every"} & set(table["training"])


# Round trips


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of every section, each given or left to its default."""

    def some(**choices: st.SearchStrategy[Any]) -> dict[str, Any]:
        return draw(st.fixed_dictionaries({}, optional=choices))

    clients = draw(st.integers(5, 500))
    positive = st.floats(1e-9, 1e9)
    partition: dict[str, Any] = draw(st.sampled_from([
        {}, {"partition": "iid"}, {"partition": "unbalanced"}, {"classes_per_client": draw(st.integers(2, 10))},
        {"balance": draw(st.floats(0.01, 1))}, {"partition": "dirichlet", "alpha": draw(positive)},
    ]))  # fmt: skip
    schedule: dict[str, Any] = draw(
        st.sampled_from([{}, {"schedule": "cosine"}, {"schedule": "exponential", "decay_every": 3}])
    )
    optimizer: dict[str, Any] = draw(
        st.sampled_from([{}, {"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}])
    )
    text = st.text(max_size=8).filter(lambda word: word != "none")
    return {
        **some(seed=st.integers(0, 2**63 - 1), name=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,9}", fullmatch=True)),
        "data": {
            **some(dataset=st.sampled_from(["digits", "mnist", "cifar10", "some.module:load"])),
            **some(hold_out=st.floats(0, 0.9)), **partition,
        },
        "model": draw(st.sampled_from([
            {}, {"name": "cnn", "ternary": "all"}, {"name": "resnet18", "width": 32, "ternary": ["stage*", "linear"]},
            {"name": "mlp", "activation": "none", "hidden": []}, {"name": "own_parts:small_network", "width": 9},
        ])),
        "federation": {**some(participation=st.floats(0.2, 1), rounds=st.integers(1, 10**6)), "clients": clients},
        "training": {
            **some(rate=positive, weight_decay=st.floats(0, 1), epochs=st.integers(1, 99), batch=st.integers(1, 999)),
            **some(precision=st.sampled_from(["float32", "bfloat16"])), **schedule, **optimizer,
        },
        "algorithm": {**OWN, **some(
            preset=st.just("bold"), flag=st.booleans(), count=st.integers(0, 2**60), share=st.floats(-1e300, 1e300),
            word=text, colour=st.sampled_from(["red", "blue"]), size=st.sampled_from(["small", "large", 7]),
            limit=st.just("none") | positive, layers=st.lists(text),
        )},
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(table=tables())
def test_an_experiment_comes_back_from_toml_and_from_json_as_it_was(table: dict[str, Any]) -> None:
    experiment = Experiment.from_table(table)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert Experiment.from_table(json.loads(json.dumps(experiment.to_table()))) == experiment
    assert experiment.with_settings([]) == experiment


@settings(max_examples=50, deadline=None)
@given(table=tables())
def test_the_whole_says_everything_that_was_given(table: dict[str, Any]) -> None:
    whole = Experiment.from_table(table).to_table()
    for section, values in table.items():
        assert whole[section] == (values if not isinstance(values, dict) else {**whole[section], **values})


@pytest.mark.parametrize("name", built_in_algorithms())
def test_every_built_in_algorithm_and_preset_comes_back_from_toml(name: str) -> None:
    found = find_algorithm(name)
    for preset in (None, *found.presets):
        experiment = make(algorithm={"name": name} if preset is None else {"name": name, "preset": preset})
        assert experiment.algorithm.settings == (found.settings() if preset is None else found.presets[preset])
        assert Experiment.from_toml(experiment.to_toml()) == experiment


def test_the_algorithms_are_there_and_nothing_else_is_taken_for_one() -> None:
    assert built_in_algorithms() == (
        "centralized", "cmfl", "eden", "fedavg", "fedbat", "fedopt", "fedpaq", "fedpm", "fedprox", "signsgd_ef", "stc",
        "tfedavg", "topk",
    )  # fmt: skip


# What is refused


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("data", "dataset", "minst", '"mnist", "cifar10", "shakespeare", "flwrlabs/shakespeare", "flwrlabs/femnist", '),
        ("data", "dataset", 5, "text"),
        ("data", "partition", "random", '"iid", "classes", "unbalanced", "dirichlet" or "natural"'),
        ("data", "hold_out", 1, "0 to below 1"),
        ("data", "hold_out", -0.1, "0 to below 1"),
        ("data", "classes_per_client", 11, "1 to 10"),
        ("data", "classes_per_client", 0, "at least 1"),
        ("data", "classes_per_client", 2.0, "a whole number"),
        ("data", "balance", 0.0, "above 0 and at most 1"),
        ("data", "balance", 1.01, "above 0 and at most 1"),
        ("data", "alpha", 0, "above 0"),
        ("model", "name", "vgg", '"mlp", "cnn", "resnet18", "charlstm", "chartransformer" or module:function'),
        ("model", "hidden", [30, "x"], "a list (each entry: a whole number)"),
        ("model", "hidden", 30, "a list (each entry: a whole number)"),
        ("model", "ternary", [], "at least one name"),
        ("federation", "clients", 0, "at least 1"),
        ("federation", "clients", True, "a whole number"),
        ("federation", "participation", 0.04, "1/20 to 1"),
        ("federation", "participation", 1.5, "1/20 to 1"),
        ("federation", "rounds", 0, "at least 1"),
        ("training", "optimizer", "lamb", '"sgd" or "adam"'),
        ("training", "rate", 0, "above 0"),
        ("training", "rate", -1.0, "above 0"),
        ("training", "rate", float("nan"), "a finite number"),
        ("training", "rate", float("inf"), "a finite number"),
        ("training", "rate", "fast", "a finite number"),
        ("training", "momentum", 1.0, "0 to below 1"),
        ("training", "weight_decay", -1e-9, "at least 0"),
        ("training", "epochs", 0, "at least 1"),
        ("training", "batch", 0, "at least 1"),
        ("training", "schedule", "linear", '"constant", "exponential" or "cosine"'),
        ("training", "precision", "float16", '"float32" or "bfloat16"'),
        ("algorithm", "name", "fedsgd", '"tfedavg", "topk" or module:function'),
        ("algorithm", "name", 3, "text"),
        ("algorithm", "preset", "papre", '"paper"'),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_with_its_key_and_what_is_allowed(
    section: str, key: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ExperimentError) as refused:
        Experiment.from_table({section: {key: value}})
    sentence = str(refused.value)
    assert sentence.startswith(f"{section}.{key} = ")
    assert allowed in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"data": {"classes_per_client": 1}, "federation": {"clients": 5}},
         "data.classes_per_client = 1: 2 to 10 is allowed with 10 classes and clients = 5"),
        ({"data": {"balance": 0.4}, "federation": {"clients": 2}},
         "data.balance = 0.4: 0.5 to 1 is allowed with clients = 2"),
        ({"data": {"partition": "iid", "classes_per_client": 2}},
         'data.classes_per_client = 2: has no meaning with partition = "iid", only with "classes"'),
        ({"data": {"balance": 0.5, "alpha": 1.0}},
         "data.alpha = 1.0: belongs to another partition than data.balance; one of the two is allowed"),
        ({"training": {"optimizer": "adam", "momentum": 0.9}},
         'training.momentum = 0.9: has no meaning with optimizer = "adam", only with "sgd"'),
        ({"training": {"schedule": "exponential", "decay": 1.1}},
         "training.decay = 1.1: above 0 and at most 1 is allowed"),
        ({"training": {"schedule": "exponential", "decay_every": 0}},
         "training.decay_every = 0: a whole number of at least 1 is allowed"),
        ({"seed": -1}, "seed = -1: 0 to 2^63 - 1 is allowed"),
        ({"name": "a/b"}, "name = \"a/b\": letters, digits, '-', '_' and '.' are allowed, no '.' first"),
        ({"name": ""}, "name = \"\": letters, digits, '-', '_' and '.' are allowed, no '.' first"),
        ({"data": "mnist"}, 'data = "mnist": a table of settings is needed, [data] in TOML'),
        ({"federation": {"client": 5}}, "federation.client = 5: no such setting; did you mean federation.clients?"),
        ({"training": {"rounds": 5}}, "training.rounds = 5: no such setting; did you mean federation.rounds?"),
        ({"rounds": 5}, "rounds = 5: no such setting; did you mean federation.rounds?"),
        ({"federations": {}}, "federations = {}: no such setting; did you mean federation?"),
        ({"federation": {"roundz": 5}}, "federation.roundz = 5: no such setting; did you mean federation.rounds?"),
        ({"federation": {"zzz": 5}},
         "federation.zzz = 5: no such setting; "
         "allowed are federation.clients, federation.participation, federation.rounds, federation.aggregate, "
         "federation.trim, federation.audit"),
        ({"model": {"activtion": "relu"}}, 'model.activtion = "relu": no such setting; did you mean model.activation?'),
        ({"model": {"inputs": 5}},
         "model.inputs = 5: no such setting; allowed are model.name, model.ternary, model.trainable, model.weights, "
         "model.activation, model.hidden"),
        ({"model": {"name": "own_parts:needy_network"}},
         "model.depth: is needed, own_parts:needy_network has no default for it"),
        ({"algorithm": {**OWN, "colr": "red"}},
         'algorithm.colr = "red": no such setting; did you mean algorithm.colour?'),
        ({"algorithm": {**OWN, "count": -1}}, "algorithm.count = -1: at least 0 is needed"),
        ({"algorithm": {"name": "fedavg", "preset": "paper"}}, 'algorithm.preset = "paper": fedavg has no presets'),
    ],
)  # fmt: skip
def test_what_cannot_be_together_or_does_not_exist_is_refused_in_one_sentence(
    table: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ExperimentError, match=f"^{re.escape(sentence)}$"):
        Experiment.from_table(table)


def test_a_value_changed_in_python_is_checked_like_one_in_a_file() -> None:
    experiment = make()
    with pytest.raises(ExperimentError, match=r"^federation\.rounds = 0: "):
        replace(experiment, federation=replace(experiment.federation, rounds=0))


def test_one_client_of_n_may_take_part_whatever_the_last_bit_of_the_quotient() -> None:
    for clients in range(1, 200):
        assert make(federation={"clients": clients, "participation": 1 / clients}).federation.clients == clients


def test_a_file_that_is_absent_or_no_toml_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"absent\.toml: cannot be read \(No such file or directory\)"):
        Experiment.from_file(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(ExperimentError, match=r"bad\.toml: is no TOML \("):
        read_table(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ExperimentError, match=r"bytes\.toml: cannot be read \(not UTF-8\)"):
        read_table(tmp_path / "bytes.toml")


# An algorithm's own settings


def test_an_own_algorithm_is_found_with_its_settings_and_presets() -> None:
    found = find_algorithm("own_parts:algorithm")
    assert (found.settings, found.presets) == (Settings, PRESETS)
    assert make(algorithm=OWN).name == "digits-algorithm"


def test_settings_have_the_types_of_the_dataclass() -> None:
    chosen = own(flag=True, count=4, share=1, word="w", colour="blue", size=7, limit=2, layers=["a", "b"])
    assert chosen == Settings(True, 4, 1.0, "w", Colour.BLUE, 7, 2.0, ("a", "b"))
    assert isinstance(chosen.share, float)
    assert isinstance(chosen.limit, float)
    assert isinstance(chosen.colour, Colour)


def test_the_word_none_stands_for_no_value() -> None:
    assert own(limit="none").limit is None
    assert Experiment.from_toml(make(algorithm={**OWN, "limit": "none"}).to_toml()).algorithm.settings.limit is None


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("flag", 1, "true or false"), ("flag", "true", "true or false"),
        ("count", True, "a whole number"), ("count", 3.0, "a whole number"), ("count", "none", "a whole number"),
        ("share", True, "a finite number"), ("share", float("inf"), "a finite number"),
        ("word", 5, "text"),
        ("colour", "green", '"red" or "blue"'), ("colour", 0, '"red" or "blue"'),
        ("size", "huge", '"small", "large" or 7'), ("size", True, '"small", "large" or 7'),
        ("limit", "high", 'a finite number or "none"'),
        ("layers", "conv1", "a list (each entry: text)"), ("layers", [1], "a list (each entry: text)"),
    ],
)  # fmt: skip
def test_a_setting_of_another_type_is_refused(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ExperimentError, match=rf"^algorithm\.{key} = .*: {re.escape(allowed)} is allowed$"):
        own(**{key: value})


def test_keys_beside_a_preset_replace_its_values() -> None:
    assert own(preset="bold") == PRESETS["bold"]
    assert own(preset="bold", count=1, limit=5) == replace(PRESETS["bold"], count=1, limit=5.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent_part:f", "absent_part cannot be imported (ModuleNotFoundError: No module named 'absent_part')"),
        ("own_parts:absent", "the module own_parts has no function absent"),
        ("own_parts:PRESETS", "the module own_parts has no function PRESETS"),
        (":", "cannot be imported (ValueError: Empty module name)"),
        ("own_parts:without_settings", "needs an argument settings, annotated with a dataclass"),
        ("own_parts:settings_of_no_kind", "needs an argument settings, annotated with a dataclass"),
        ("own_parts:takes_name", "its settings need another name for name"),
        ("algorithm", "or module:function is allowed"),
        ("statistics", "or module:function is allowed"),
    ],
)  # fmt: skip
def test_what_is_no_algorithm_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        find_algorithm(name)
    assert str(refused.value).startswith(f'algorithm.name = "{name}": ')
    assert reason in str(refused.value)


def test_a_module_that_fails_while_it_is_imported_is_refused_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_part.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ExperimentError, match=r"broken_part cannot be imported \(ZeroDivisionError: division by zero\)"
    ):
        find_algorithm("broken_part:algorithm")


def test_the_algorithm_is_made_with_the_training_and_its_settings() -> None:
    experiment = make("training.rate=0.5", "training.momentum=0.9", algorithm={**OWN, "share": 0.25})
    made = experiment.make_algorithm(experiment.make_network(load("digits")))
    assert (made.name, made.training.rate, made.training.optimizer) == ("own", 0.125, Sgd(momentum=0.9))


def test_every_setting_of_local_training_reaches_the_clients() -> None:
    chosen = {
        "rate": 0.5, "weight_decay": 0.25, "epochs": 7, "batch": 13, "precision": "bfloat16",
    }  # fmt: skip
    training = make(training={**chosen, "optimizer": "sgd", "momentum": 0.9}).make_training()
    assert {key: getattr(training, key) for key in chosen} == chosen
    assert training.optimizer == Sgd(momentum=0.9)


# key=value


def test_values_are_toml_and_bare_words_are_text() -> None:
    experiment = make(
        "seed=7", "name=first", "training.rate=1e-3", "model.hidden=[12, 8]", "algorithm.name=own_parts:algorithm",
        "algorithm.flag=true", "algorithm.word=2020-01-01", 'algorithm.layers=["a"]', "algorithm.limit=none",
    )  # fmt: skip
    assert (experiment.seed, experiment.name, experiment.training.rate) == (7, "first", 0.001)
    assert experiment.model.options["hidden"] == (12, 8)
    assert experiment.algorithm.settings == Settings(flag=True, word="2020-01-01", layers=("a",), limit=None)


def test_a_value_cannot_smuggle_in_another_setting() -> None:
    assert make("algorithm.name=own_parts:algorithm", "algorithm.word=1\nseed = 5").seed == 0


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("federation.rounds", '"federation.rounds": key=value is needed'),
        ("=5", '"=5": key=value is needed'),
        ("rounds=5", "rounds = 5: no such setting; did you mean federation.rounds?"),
        ("federation.round=5", "federation.round = 5: no such setting; did you mean federation.rounds?"),
        ("algorithm.settings.clip=1", "algorithm.settings = "),
        ("algorithm.facter=1", "algorithm.facter = 1: no such setting; did you mean algorithm.factor?"),
    ],
)
def test_a_setting_that_is_none_is_refused(setting: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=f"^{re.escape(sentence)}"):
        make(setting)


def test_settings_given_with_a_file_decide_its_defaults_too(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("[federation]\nrounds = 7\n")
    experiment = Experiment.from_file(file, ["data.dataset=mnist"])
    assert (experiment.federation.rounds, experiment.federation.clients) == (7, 100)


def test_settings_of_a_whole_experiment_keep_everything_else() -> None:
    experiment = make("data.dataset=mnist").with_settings(["data.dataset=digits"])
    assert (experiment.data.dataset, experiment.federation.clients, experiment.name) == (
        "digits",
        100,
        "digits-tfedavg",
    )
    assert make("name=mine").with_settings(["algorithm.name=fedavg"]).name == "mine"


def test_another_algorithm_or_preset_drops_the_settings_of_the_one_before() -> None:
    before = make(algorithm={**OWN, "count": 5, "word": "w"})
    assert before.with_settings(["algorithm.preset=bold"]).algorithm.settings == PRESETS["bold"]
    assert before.with_settings(["algorithm.name=own_parts:algorithm"]) == before
    assert before.with_settings(["algorithm.name=fedavg"]).algorithm.name == "fedavg"
    assert before.with_settings(["algorithm.count=6"]).algorithm.settings == Settings(count=6, word="w")


@pytest.mark.parametrize("name", built_in_algorithms())
def test_which_layers_could_be_ternary_is_a_difference_where_some_are(name: str) -> None:
    options = [f"algorithm.name={name}", *(["algorithm.ternary=true"] if name == "fedprox" else [])]
    inner, every = (make(*options, f"model.ternary={which}") for which in ("inner", "all"))
    first, second = (made.make_algorithm(made.make_network(load("digits"))).down for made in (inner, every))
    assert [key for key, _, _ in inner.differences(every)] == (["model.ternary"] if first != second else [])


def test_another_choice_drops_what_belonged_to_the_one_before() -> None:
    classes = make("data.classes_per_client=5")
    assert classes.with_settings(["data.partition=iid"]).data.partition == Iid()
    assert classes.with_settings(["data.balance=0.2"]).data.partition == Unbalanced(0.2)
    assert classes.with_settings(["data.partition=classes"]) == classes
    assert make().with_settings(["data.classes_per_client=3"]).data.partition == Classes(3)
    falling = make("training.schedule=exponential", "training.decay=0.5")
    assert falling.training.schedule == Exponential(decay=0.5)
    assert falling.with_settings(["training.schedule=cosine"]).training.schedule == Cosine()
    assert make("training.momentum=0.9").with_settings(["training.optimizer=adam"]).training.optimizer == Adam()
    assert make("model.hidden=[5]").with_settings(["model.name=cnn"]).model.options == {}


# Rates


def test_a_constant_rate_stays() -> None:
    assert [make("training.rate=0.3").rate_at(round) for round in (1, 7, 30)] == [0.3, 0.3, 0.3]


def test_an_exponential_rate_falls_by_its_factor_after_every_so_many_rounds() -> None:
    experiment = make("data.dataset=cifar10", "training.rate=1")
    assert [experiment.rate_at(round) for round in (1, 5, 6, 10, 11)] == [1.0, 1.0, 0.95, 0.95, 0.95**2]


def test_a_cosine_rate_falls_from_the_whole_to_nothing_over_the_rounds() -> None:
    experiment = make("training.schedule=cosine", "training.rate=1", "federation.rounds=4")
    rates = [experiment.rate_at(round) for round in range(1, 6)]
    # cos(π/4) in double precision, and two roundings after it.
    assert rates == pytest.approx([1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5, 0.0], abs=1e-15)


def test_there_is_no_round_before_the_first() -> None:
    with pytest.raises(ValueError, match="rounds are counted from 1"):
        make().rate_at(0)


# What is made of it


def test_first_weights_follow_from_the_seed_alone_and_leave_the_global_generator_as_it_was() -> None:
    data = load("digits")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make("seed=3").make_network(data).weights()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again, other = make("seed=3").make_network(data).weights(), make("seed=4").make_network(data).weights()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_networks_are_made_for_the_shape_and_the_classes_of_the_data() -> None:
    digits = load("digits")
    assert make().make_network(digits).weights()["linear1.weight"].shape == (30, 64)
    assert make("model.name=cnn").make_network(digits).weights()["conv1.weight"].shape == (32, 1, 3, 3)
    assert make("model.name=resnet18", "model.width=4").make_network(digits).weights()["stem.weight"].shape[:2] == (
        4,
        1,
    )
    own_network = make("model.name=own_parts:small_network", "model.width=6").make_network(rows())
    assert [tuple(t.shape) for t in own_network.weights().values()] == [(6, 4), (6, 6), (3, 6)]


def test_ternary_layers_are_the_inner_ones_or_those_that_are_named() -> None:
    def chosen(*given_settings: str) -> tuple[str, ...]:
        return make(*given_settings).make_network(load("digits")).ternary

    assert chosen() == ("linear2.weight",)
    assert chosen("model.ternary=all") == ("linear1.weight", "linear2.weight", "linear3.weight")
    assert chosen('model.ternary=["linear[12]"]') == ("linear1.weight", "linear2.weight")
    assert chosen("model.hidden=[]") == ()
    for pattern, hint in (("conv*", "there is linear1, linear2, linear3"), ("liner2", "did you mean linear2?")):
        sentence = f'model.ternary = "{pattern}": matches no layer and no parameter; {hint}'
        with pytest.raises(ExperimentError, match=f"^{re.escape(sentence)}$"):
            chosen(f'model.ternary=["linear2", "{pattern}"]')


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model.activation=tanh", "model.name = \"mlp\": activation is 'tanh'; allowed are 'relu' and 'none'"),
        ("model.name=cnn", 'model.name = "cnn": takes images, but a sample of rows has the shape (4,)'),
        ("model.name=own_parts:no_network",
         'model.name = "own_parts:no_network": returned str; a torch.nn.Module is needed'),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_made_is_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ExperimentError, match=f"^{re.escape(sentence)}$"):
        make(setting).make_network(rows())


@pytest.mark.parametrize(
    "partition", ["partition=iid", "classes_per_client=2", "partition=unbalanced", "partition=dirichlet"]
)
def test_every_training_sample_is_held_out_or_on_one_client(partition: str) -> None:
    labels = load("digits").train.labels
    held, parts = make(f"data.{partition}").make_partition(labels)
    assert len(held) == round(0.07 * len(labels)) >= 100
    assert len(parts) == 20
    assert torch.cat([held, *parts]).sort().values.tolist() == list(range(len(labels)))


def test_the_partition_is_the_one_that_was_chosen() -> None:
    labels = load("digits").train.labels
    assert [
        len(torch.unique(labels[part])) for part in make("data.classes_per_client=3").make_partition(labels)[1]
    ] == [3] * 20
    sizes = torch.tensor([len(part) for part in make("data.balance=0.2").make_partition(labels)[1]])
    assert (
        abs(sizes.double().quantile(0.5).item() / sizes.max().item() - 0.2) < 0.01
    )  # 67 samples per client: whole ones
    few = make("data.alpha=0.01").make_partition(labels)[1]
    assert max(len(torch.unique(labels[part])) for part in few) < 10


def test_the_hold_out_and_the_partition_follow_from_the_seed() -> None:
    labels = load("digits").train.labels
    (held, parts), (held_again, parts_again) = (make("seed=5").make_partition(labels) for _ in range(2))
    held_other, parts_other = make("seed=6").make_partition(labels)
    assert torch.equal(held, held_again)
    assert all(torch.equal(a, b) for a, b in zip(parts, parts_again, strict=True))
    assert not torch.equal(held, held_other)
    assert not all(torch.equal(a, b) for a, b in zip(parts, parts_other, strict=True))


def test_nothing_is_held_out_where_nothing_is_wanted() -> None:
    held, parts = make("data.hold_out=0").make_partition(load("digits").train.labels)
    assert len(held) == 0
    assert sum(map(len, parts)) == 1442


@pytest.mark.parametrize(
    ("given_settings", "sentence"),
    [
        (["federation.clients=29"], "federation.clients = 29: 1 to 28 is allowed, the training samples there are"),
        (["data.classes_per_client=4"],
         "data.classes_per_client = 4: 1 to 3 is allowed with 3 classes and clients = 10"),
        (["data.classes_per_client=1", "federation.clients=2"],
         "data.classes_per_client = 1: 2 to 3 is allowed with 3 classes and clients = 2"),
        (["data.hold_out=0.01"],
         "data.hold_out = 0.01: enough for one of the 30 training samples of rows, or 0, is needed"),
    ],
)  # fmt: skip
def test_what_only_the_data_can_tell_is_refused_before_training(given_settings: list[str], sentence: str) -> None:
    experiment = make("data.dataset=own_parts:rows", *given_settings)
    with pytest.raises(ExperimentError, match=f"^{re.escape(sentence)}$"):
        experiment.check_with(rows())


def test_a_partition_that_these_samples_cannot_make_is_refused_in_one_sentence() -> None:
    experiment = make("data.dataset=own_parts:rows", "data.classes_per_client=3", "federation.clients=20")
    experiment.check_with(rows())
    with pytest.raises(
        ExperimentError, match=r'^data\.partition = "classes": classes_per_client = 3: 20 clients need 60'
    ):
        experiment.make_partition(rows().train.labels)


# The page


def test_the_page_names_every_setting_and_every_file() -> None:
    for section, keys in {**KEYS, "model": ("name", "ternary")}.items():
        part = PAGE.partition(f"### `[{section}]`")[2].partition("\n##")[0]
        for key in keys:
            assert f"| `{key}` |" in part, f"{section}.{key}"
    for name in FILES:
        assert f"| `{name}` |" in PAGE


def test_the_defaults_on_the_page_are_the_defaults() -> None:
    rows_of_page = re.findall(r"^\| `([\w.]+)`" + r" \| ([^|]*)" * 5 + r" \|$", PAGE, re.MULTILINE)
    assert len(rows_of_page) >= 10
    for key, *cells in rows_of_page:
        section, name = key.split(".")
        for dataset, cell in zip(("digits", "mnist", "cifar10", "shakespeare", "own_parts:rows"), cells, strict=True):
            value = make(f"data.dataset={dataset}").to_table()[section][name]
            assert cell.strip(" `") == (value if isinstance(value, str) else json.dumps(value)), key


def test_the_examples_on_the_page_are_experiments() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        assert tomllib.loads(example)
        Experiment.from_toml(example)
