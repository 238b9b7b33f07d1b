"""The verbs of `ternfed bench`: each measures both sides in one run and prints a table as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer

from ternfed.cli import terminal
from ternfed.cli.options import DataDir, Device, check_device
from ternfed.cli.terminal import answered

Anything = TypeVar("Anything")
Repeats = Annotated[int, typer.Option("--rounds", min=3, help="Measurements of each side.")]


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verbs to a command line."""
    bench = typer.Typer(help="Benchmarks: ratios measured side by side in one run.", no_args_is_help=True)
    for verb in VERBS:
        bench.command()(verb)
    app.add_typer(bench, name="bench", rich_help_panel=panel)


def step(repeats: Repeats = 41) -> None:
    """What FTTQ costs a training step, with and without it in turns."""
    with answered():
        from ternfed.bench import step as bench

        _print(bench.table(_measured(bench.run(repeats))))


def wire() -> None:
    """Sizes, speeds and memory of the codecs, beside 2-bit packing, zstd alone and nncodec."""
    with answered():
        from ternfed.bench import wire as bench

        with terminal.err.status("measuring"):
            report = bench.run()
        _print(bench.table(report))


def rounds(repeats: Repeats = 15) -> None:
    """Local training of a round: the plain loop, one client at a time, all at once, T-FedAvg, FedJAX."""
    with answered():
        from ternfed.bench import rounds as bench

        _print(bench.table(_measured(bench.run(repeats))))


def gpu() -> None:
    """Milliseconds of a local step on a GPU, by precision and by clients side by side."""
    with answered():
        from ternfed.bench import gpu as bench

        check_device("cuda")
        _print(bench.table(_measured(bench.run())))


def edge() -> None:
    """File size, memory and milliseconds of exported models, against fp32 ONNX and PyTorch."""
    with answered():
        from ternfed.bench import edge as bench

        _print(bench.table(_measured(bench.run())))


def edge_products() -> None:
    """Which forms of a ternary layer pay in ONNX, by block size and size of the matrix."""
    with answered():
        from ternfed.bench import edge_products as bench

        _print(bench.table(_measured(bench.run())))


def theory() -> None:
    """The paper's propositions on trained layers: the tables of docs/theory.md, a minute and a half."""
    with answered():
        from ternfed.bench import theory as bench

        with terminal.err.status("training"):
            measured = bench.run()
        _print(bench.table(measured))


def cmfl_threshold(
    row: Annotated[str, typer.Argument(help="A CMFL row of `ternfed reproduce`.")],
    rounds: Annotated[int, typer.Option(min=2, help="The number of rounds to look at.")] = 20,
    data: DataDir = None,
    device: Device = "cpu",
) -> None:
    """The threshold at which CMFL's clients would upload a given share of their updates."""
    with answered():
        from ternfed.bench import cmfl_threshold as bench

        check_device(device)
        with terminal.err.status("training"):
            seen = bench.relevances(row, data, rounds, device)
        _print(bench.table(row, seen))


def fuzz_wire(
    count: Annotated[int, typer.Option(min=1, help="Inputs to try.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="The damage follows from it.")] = 0,
    sample: Annotated[int, typer.Option(min=1, help="Measure the memory of one input in this many.")] = 50,
) -> None:
    """Damaged messages and files must be refused by name or be valid; anything else is a finding."""
    with answered():
        from ternfed.bench import fuzz_wire as bench

        fuzzed, grown = bench.run_long(count, seed, sample, terminal.err.print)
        _print(bench.table(fuzzed, grown))


def many_clients(
    clients: Annotated[int, typer.Option(min=10, help="The number of clients; a tenth take part.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="The number of rounds.")] = 3,
) -> None:
    """Seconds per round and peak memory with thousands of simulated clients."""
    with answered():
        from ternfed.bench import many_clients as bench

        _print(bench.table(_measured(bench.run(clients, rounds))))


def network_bytes(
    clients: Annotated[int, typer.Option(min=1, help="The number of clients.")] = 5,
    rounds: Annotated[int, typer.Option(min=2, help="The number of rounds; the first is not counted.")] = 4,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the experiment; may be repeated.")
    ] = None,
) -> None:
    """Bytes per client and round over TLS, payload and on the socket: FedAvg against T-FedAvg."""
    with answered():
        from ternfed.bench import network_bytes as bench

        _print(bench.table(_measured(bench.run(clients, rounds, settings or ()))))


def round_latency(
    nodes: Annotated[int, typer.Option(min=1, help="The number of clients.")] = 5,
    rounds: Annotated[int, typer.Option(min=2, help="The number of rounds; the first is not counted.")] = 5,
) -> None:
    """What a round costs besides training: `ternfed server` against Flower as it comes."""
    with answered():
        from ternfed.bench import round_latency as bench

        _print(bench.table(_measured(bench.run(nodes, rounds))))


def slow_link(
    down: Annotated[float, typer.Option(min=0.001, help="Mbit/s from the server to each client.")] = 26.36,
    up: Annotated[float, typer.Option(min=0.001, help="Mbit/s from each client to the server.")] = 11.05,
    clients: Annotated[int, typer.Option(min=1, max=200, help="The number of clients.")] = 5,
    rounds: Annotated[int, typer.Option(min=2, help="The number of rounds; the first is not counted.")] = 4,
    model: Annotated[str, typer.Option(help="mlp, cnn or resnet18.")] = "resnet18",
    limit: Annotated[float, typer.Option(min=1, help="Seconds for one federation.")] = 1800.0,
    algorithms: Annotated[
        list[str] | None, typer.Option("--algorithm", help="By default fedavg and tfedavg; may be repeated.")
    ] = None,
) -> None:
    """Seconds of communication on links as slow as the paper's; needs Linux, root and iproute2."""
    with answered():
        from ternfed.bench import slow_link as bench

        plan = bench.Plan(down, up, clients, rounds, model, limit, tuple(algorithms or bench.Plan.algorithms))
        _print(bench.table(plan, _measured(bench.run(plan))))


def _measured(rows: Iterable[Anything]) -> list[Anything]:
    """All rows, with a spinner while they are measured."""
    with terminal.err.status("measuring"):
        return list(rows)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


VERBS: tuple[Callable[..., None], ...] = (
    step, wire, rounds, gpu, edge, edge_products, theory, cmfl_threshold, fuzz_wire, many_clients, network_bytes,
    round_latency, slow_link,
)  # fmt: skip
