"""What came out of a round, as a value and as a line of JSON, and what a whole run comes to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ternfed.algorithms.algorithm import Strategy
from ternfed.experiment.accountant import epsilon
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import about
from ternfed.experiment.settings import Table
from ternfed.files import as_line, whole_lines
from ternfed.task import ACCURACY, Measure


@dataclass(frozen=True)
class Round:
    """What came out of one round. Shares are 0 to 1; bytes are lengths of what was really encoded."""

    round: int
    """The first is 1."""
    score: float
    """On test data, by the metric; an accuracy is 0 to 1."""
    loss: float
    """On test data."""
    train_loss: float | None
    """Mean over the clients' last local epoch."""
    validation: float | None
    """The score on the data held out on the server."""
    bytes_up: int
    bytes_down: int
    bytes_up_fp32: int
    """What the same messages cost as raw float32."""
    bytes_down_fp32: int
    bits_per_weight_up: float | None
    """Of the uploads' trits, a ternary weight."""
    clients: int
    """So many took part."""
    skipped: int = 0
    """Of these, so many kept their update to themselves."""
    dropped: tuple[str, ...] = ()
    """One reason for each upload that did not count."""
    capped: tuple[str, ...] = ()
    """One sentence for each upload that the server held back: it counted for less than it claimed, or not at all."""
    strategy: str | None = None
    """`I`: the quantized model is broadcast. `II`: the full-precision one."""
    changed: float | None = None
    """Share of the broadcast's trits that differ from those of the broadcast before."""
    zeros: float | None = None
    """Share of the broadcast's trits that are 0."""
    layer_bits: Mapping[str, float] | None = None
    """Of each ternary layer in the uploads: the entropy of its trits given the broadcast's, in bits per weight."""
    metric: str = ACCURACY.measure.name
    """What the score is: its key in a line of JSON."""
    higher_is_better: bool = ACCURACY.measure.higher_is_better
    percent: bool = ACCURACY.measure.percent
    """Scores are shown in percent."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase. In a file of its own, because it is never the same twice."""

    @property
    def is_full_precision(self) -> bool:
        """Whether a ternary algorithm broadcast this round's model in full precision (Strategy II)."""
        return self.strategy == Strategy.FULL

    @property
    def measure(self) -> Measure:
        """How the score is read."""
        return Measure(self.metric, self.higher_is_better, self.percent)

    def to_line(self) -> bytes:
        """One line of `rounds.jsonl`. A number that is not finite becomes null: JSON has no word for it."""
        values = asdict(replace(self, seconds={}))
        del values["seconds"], values["metric"]
        if not self.capped:  # as in the lines of the first runs
            del values["capped"]
        if self.measure == ACCURACY.measure:
            for key in READING:
                del values[key]
        named = {self.metric if key == "score" else key: value for key, value in values.items()}
        return as_line({key: None if _is_not_finite(value) else value for key, value in named.items()})

    def timing_line(self) -> bytes:
        """One line of `timing.jsonl`."""
        return as_line({"round": self.round, "seconds": {phase: round(s, 5) for phase, s in self.seconds.items()}})

    @staticmethod
    def from_line(line: bytes) -> Round:
        """The record of a line; ValueError where it is none."""
        values = json.loads(line)
        known = {each.name for each in fields(Round)} - {"seconds", "score", "metric"}
        own = set(values) - known if isinstance(values, dict) else set()
        optional = LATER | READING if own == {ACCURACY.measure.name} else LATER
        if len(own) != 1 or own & RESERVED or not known - optional <= set(values):
            raise ValueError("not the record of a round")
        (metric,) = own
        _check_types(values, metric)
        values |= {"metric": metric, "score": values.pop(metric), "dropped": tuple(values["dropped"])}
        values["capped"] = tuple(values.get("capped", ()))
        missing = {key: math.nan for key in ("score", "loss") if values[key] is None}
        return Round(**{**values, **missing})


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < 2**63
    return type(value) is float and math.isfinite(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


_WHOLE = ("round", "bytes_up", "bytes_down", "bytes_up_fp32", "bytes_down_fp32", "clients", "skipped")
_NUMBERS = ("loss", "train_loss", "validation", "bits_per_weight_up", "changed", "zeros")


def _check_types(values: Mapping[str, Any], metric: str) -> None:
    """ValueError where a record holds something else than a round's numbers: anyone may have written it."""
    layers = values.get("layer_bits")
    good = (
        all(_is_whole(values[key]) for key in _WHOLE)
        and all(values[key] is None or _is_number(values[key]) for key in (*_NUMBERS, metric))
        and all(_are_texts(values.get(key, [])) for key in ("dropped", "capped"))
        and values["strategy"] in (None, *Strategy)
        and all(type(values.get(key, True)) is bool for key in READING)
        and (layers is None or (isinstance(layers, dict) and all(map(_is_number, layers.values()))))
        and metric.isprintable()
    )
    if not good:
        raise ValueError("not the record of a round")


READING = frozenset({"higher_is_better", "percent"})
"""Fields that say how a score is read: in the lines of every metric but accuracy, which the first runs knew alone."""
LATER = {"layer_bits", "capped"}
"""Fields that the first runs did not have."""


RESERVED = frozenset(
    {each.name for each in fields(Round)}
    | {"best_round", "compression_up", "compression_down", "strategy_one", "rounds", "run", "settings", "samples"}
    | {"flips_first", "flips_mean", "flips_last", "warnings", "epsilon"}
)
"""What the numbers of a record, of a summary or of an upload are called: no metric can have these names."""


def read_rounds(path: Path, upto: int | None = None) -> tuple[list[Round], int]:
    """The records 1, 2, … of a `rounds.jsonl`, and the bytes they take.

    A line that a killed process left half written, or anything else that is no next record, ends them.
    """
    rounds: list[Round] = []
    size = 0
    for line in whole_lines(path):
        try:
            record = Round.from_line(line)
        except (ValueError, TypeError, KeyError, RecursionError):
            break
        if len(rounds) == upto or record.round != len(rounds) + 1:
            break
        rounds.append(record)
        size += len(line)
    return rounds, size


def read_timing(path: Path, upto: int | None = None) -> tuple[dict[int, dict[str, float]], int]:
    """Seconds by phase of each round up to one, and the bytes that their lines take."""
    timing: dict[int, dict[str, float]] = {}
    size = 0
    for line in whole_lines(path):
        try:
            values = json.loads(line)
            number, seconds = values["round"], values["seconds"]
            if not (_is_whole(number) and isinstance(seconds, dict) and all(map(_is_number, seconds.values()))):
                break
        except (ValueError, TypeError, KeyError, RecursionError):
            break
        if upto is not None and number > upto:
            break
        timing[number] = seconds
        size += len(line)
    return timing, size


def with_seconds(rounds: Sequence[Round], timing: Mapping[int, Mapping[str, float]]) -> list[Round]:
    return [replace(record, seconds=timing.get(record.round, {})) for record in rounds]


def best_round(rounds: Sequence[Round]) -> Round:
    """The first round of the best validation score; the last round where nothing was held out to judge by.

    Never chosen by the test score: that would be the best of many draws, not what to expect.
    """
    judged = [record for record in rounds if record.validation is not None]
    return max(judged, key=lambda record: (_goodness(record), -record.round)) if judged else rounds[-1]


def judged_rounds(length: int) -> int:
    """So many last rounds of a run settings are chosen by: a tenth, three at least, because one depends on chance."""
    return max(3, length // 10)


def _goodness(record: Round) -> float:
    return -math.inf if record.validation is None else record.measure.goodness(record.validation)


def summarise(
    rounds: Sequence[Round],
    experiment: Experiment,
    run: str | None = None,
    class_counts: Sequence[Sequence[int]] | None = None,
) -> Table:
    """What a run comes to, as plain values: the object that `ternfed run --json` prints. `run` names its folder.

    `class_counts` are the samples of each class on each client, where they are known: they tell what chance is.
    """
    best = best_round(rounds)
    up, down = (sum(getattr(record, key) for record in rounds) for key in ("bytes_up", "bytes_down"))
    up_fp32, down_fp32 = (sum(getattr(record, f"bytes_{way}_fp32") for record in rounds) for way in ("up", "down"))
    strategies = [record.strategy for record in rounds if record.strategy is not None]
    flips = [record.changed for record in rounds if record.changed is not None]
    values = {
        best.metric: rounds[-1].score,
        f"best_{best.metric}": best.score,
        "best_round": best.round,
        "metric": best.metric,
        "higher_is_better": best.higher_is_better,
        "bytes_up": up,
        "bytes_down": down,
        "compression_up": up_fp32 / up if up else None,
        "compression_down": down_fp32 / down if down else None,
        "bits_per_weight_up": _mean_bits(rounds),
        "strategy_one": strategies.count(Strategy.TERNARY) if strategies else None,
        "flips_first": flips[0] if flips else None,
        "flips_mean": sum(flips) / len(flips) if flips else None,
        "flips_last": flips[-1] if flips else None,
        "rounds": len(rounds),
        "seconds": sum(seconds for record in rounds for seconds in record.seconds.values()),
        "warnings": [*warnings_of(rounds, experiment), *_end_warnings(rounds, class_counts)],
        **({} if (spent := epsilon(experiment, len(rounds))) is None else {"epsilon": spent}),
        "run": experiment.name if run is None else run,
        "settings": experiment.to_table(),
    }
    return {key: None if _is_not_finite(value) else value for key, value in values.items()}


STILL = 1e-4
"""A share of trits below which a round does not move them: less than one in ten thousand."""
DECAYED = 0.1
"""A rate below so much of the first one has decayed; trits may rest then."""
FEWEST = 3
"""Rounds that say something about a run, however short it is."""


def warnings_of(rounds: Sequence[Round], experiment: Experiment) -> list[str]:
    """What whoever reads a run's numbers should know about it: one sentence each."""
    if is_frozen(experiment.to_table()["algorithm"]):
        return []
    sentence = unmoved(rounds, experiment.rate_at, experiment.federation.rounds)
    return [] if sentence is None else [sentence]


CHANCE = 0.02
"""An accuracy no more than this above that of always naming the most common class is chance."""
LOST = 0.25
"""Where more than this share of the uploads did not count, it is said."""


def _end_warnings(rounds: Sequence[Round], class_counts: Sequence[Sequence[int]] | None) -> Iterator[str]:
    """What can be said of a run only when it is over."""
    last = rounds[-1]
    if not (math.isfinite(last.score) and math.isfinite(last.loss)):
        yield f"the model after round {last.round} gives no finite numbers: training diverged; lower training.rate"
    elif last.measure == ACCURACY.measure and last.score <= (chance := _chance(class_counts)) + CHANCE:
        yield (
            f"the run ends at chance: {100 * last.score:.1f}% on test data, and always naming the most common class of "
            f"the training data would give {100 * chance:.1f}%"
        )
    asked, dropped = sum(record.clients for record in rounds), [why for record in rounds for why in record.dropped]
    diverged = [reason for reason in dropped if any(word in reason for word in DIVERGED)]
    if diverged:
        yield (
            f"{len(diverged)} of {asked} uploads did not count because training diverged on the client "
            f"(the first: {diverged[0]}); lower training.rate"
        )
    elif len(dropped) > LOST * asked:
        yield f"{len(dropped)} of {asked} uploads did not count (the first: {dropped[0]})"


DIVERGED = ("not finite", "NaN or infinity", "beyond float32", "NotFinite", "NonFinite")
"""In the reason why an upload did not count: training ended in NaN, infinity or beyond what can be added."""


def _chance(class_counts: Sequence[Sequence[int]] | None) -> float:
    """The share of the most common class; far below 0 where no classes are known."""
    sums = [sum(column) for column in zip(*(class_counts or ()), strict=False)]
    return max(sums) / sum(sums) if len(sums) > 1 and sum(sums) else -math.inf


def unmoved(rounds: Sequence[Round], rate_at: Callable[[int], float], total: int) -> str | None:
    """A sentence for a run whose trits rest for a quarter of its rounds while its rates have not decayed.

    `rate_at` is the learning rate of a round, `total` the number of rounds that the run is to have.
    """
    resting = _longest_rest(rounds, rate_at)
    if len(resting) < max(FEWEST, math.ceil(total / 4)):
        return None
    none = all(record.changed == 0 for record in resting)
    return (
        f"{'no' if none else 'hardly a'} trit changed in rounds {resting[0].round} to {resting[-1].round} of {total} "
        "while the learning rate had not decayed: this trains a frozen ternary network, in which only the scales and "
        "what is not ternary learn"
    )


def is_frozen(algorithm: Mapping[str, Any]) -> bool:
    """Whether an algorithm's settings keep its trits on purpose: the control."""
    known = about(str(algorithm.get("name")))
    return known is not None and known.frozen(algorithm)


def _longest_rest(rounds: Sequence[Round], rate_at: Callable[[int], float]) -> Sequence[Round]:
    """The longest sequence of rounds that did not move the trits, at rates that could."""
    best, first = slice(0, 0), 0
    for place, record in enumerate(rounds):
        rests = record.changed is not None and record.changed < STILL
        if not rests or rate_at(record.round) < DECAYED * rate_at(1):
            first = place + 1
        elif place + 1 - first > best.stop - best.start:
            best = slice(first, place + 1)
    return rounds[best]


def _mean_bits(rounds: Sequence[Round]) -> float | None:
    """Over all uploads of the run, not over its rounds: some have more."""
    uploads = [
        (record.bits_per_weight_up, record.clients - record.skipped - len(record.dropped))
        for record in rounds
        if record.bits_per_weight_up is not None
    ]
    count = sum(number for _, number in uploads)
    return sum(bits * number for bits, number in uploads) / count if count else None


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
