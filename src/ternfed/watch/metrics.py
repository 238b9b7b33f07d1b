"""Runs as Prometheus reads them: its plain text format, version 0.0.4."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ternfed.runs.several import names_of
from ternfed.watch.follow import Snapshot

STATES = ("away", "ready", "asked", "training", "uploading", "done", "late", "dropped")
RUNS = ("starting", "waiting", "running", "finished", "stopped")


class Metric(NamedTuple):
    """One name with its samples: labels and value."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def metrics_text(snapshots: Sequence[Snapshot]) -> str:
    """Rounds, clients by state, bytes by direction, seconds by phase and refused connections of every run."""
    return "".join(line + "\n" for metric in _metrics(snapshots) for line in _lines(metric))


def _metrics(snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    runs = list(zip(names_of([snapshot.folder for snapshot in snapshots]), snapshots, strict=True))

    def each(name: str, kind: str, help: str, values: Iterable[tuple[str, float | None]]) -> Metric:
        return Metric(name, kind, help, [({"run": run}, value) for run, value in values if value is not None])

    yield each("ternfed_rounds_total", "counter", "Rounds that are done.", ((n, len(s.rounds)) for n, s in runs))
    yield each("ternfed_rounds_wanted", "gauge", "Rounds that the run is to have.", ((n, s.total) for n, s in runs))
    states = [({"run": n, "state": state}, float(s.state == state)) for n, s in runs for state in RUNS]
    yield Metric("ternfed_run_state", "gauge", "1 for the state that the run is in.", states)
    last = [(n, s.rounds[-1]) for n, s in runs if s.rounds]
    scores = [({"run": n, "metric": r.metric}, r.score) for n, r in last]
    yield Metric("ternfed_score", "gauge", "The test score after the last round.", scores)
    yield each("ternfed_loss", "gauge", "The test loss after the last round.", ((n, r.loss) for n, r in last))
    yield each(
        "ternfed_flipped_share",
        "gauge",
        "Share of trits that the last round flipped.",
        ((n, r.changed) for n, r in last),
    )
    sent = [({"run": n, "direction": way}, float(s.sent[at])) for n, s in runs for at, way in enumerate(("up", "down"))]
    yield Metric("ternfed_bytes_total", "counter", "Bytes of messages, up to the server or down to clients.", sent)
    wire = [
        ({"run": n, "direction": way}, float(sum(getattr(totals, f"socket_{way}") for totals in s.clients.values())))
        for n, s in runs
        if s.clients
        for way in ("up", "down")
    ]
    yield Metric("ternfed_socket_bytes_total", "counter", "Bytes on the wire with TLS and heartbeats.", wire)
    yield Metric("ternfed_phase_seconds_total", "counter", "Seconds of all rounds by phase.", list(_seconds(runs)))
    counts = [(n, Counter(s.live.clients.values())) for n, s in runs if s.live is not None]
    clients = [({"run": n, "state": state}, float(count[state])) for n, count in counts for state in STATES]  # type: ignore[index]
    yield Metric("ternfed_clients", "gauge", "Clients by what they are doing.", clients)
    refused = ((n, s.live.refused) for n, s in runs if s.live is not None)
    yield each("ternfed_refused_total", "counter", "Requests that the gate turned away.", refused)
    dropped = ((n, sum(len(r.dropped) for r in s.rounds)) for n, s in runs)
    yield each("ternfed_dropped_uploads_total", "counter", "Uploads that did not count.", dropped)


def _seconds(runs: Iterable[tuple[str, Snapshot]]) -> Iterator[tuple[Mapping[str, str], float]]:
    for name, snapshot in runs:
        sums: dict[str, float] = defaultdict(float)
        for record in snapshot.rounds:
            for phase, spent in record.seconds.items():
                sums[phase] += spent
        yield from (({"run": name, "phase": phase}, float(seconds)) for phase, seconds in sums.items())


def _lines(metric: Metric) -> Iterator[str]:
    if not metric.samples:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{metric.name}{{{inside}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "NaN"
