"""The verbs of `ternfed bench`: each measures both sides in one run and prints a table as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ternfed.cli import terminal
from ternfed.cli.options import DataDir, Device, check_device
from ternfed.cli.terminal import answered
from ternfed.cli.verb import CommandLine

Anything = TypeVar("Anything")
Repeats = Annotated[int, typer.Option("--rounds", min=3, help="Measurements of each side.")]


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verbs to a command line."""
    bench = CommandLine(help="Benchmarks: ratios measured side by side in one run.", no_args_is_help=True)
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


def peers(repeats: Repeats = 5) -> None:
    """FedJAX, pfl and Flower's simulation on the same round, each in an environment of its own, made if need be."""
    with answered():
        from ternfed.bench import peers as bench

        _print(bench.table(list(bench.run(repeats, _tell))))


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


def fuzz_files(
    count: Annotated[int, typer.Option(min=1, help="Files to damage.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The damage follows from it.")] = 0,
) -> None:
    """Damaged model files, arrays, experiments and run folders must be answered in one sentence."""
    with answered():
        import click

        from ternfed.bench import fuzz_files as bench

        verbs = click.get_current_context().find_root().command
        _print(bench.table(bench.run(lambda args: verbs.main(args, standalone_mode=False), count, seed, _tell)))


def attacks(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell.")] = 3,
    into: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
) -> None:
    """What one liar of five does to a run, by attack and by aggregation rule; IID and four classes per client."""
    with answered():
        from ternfed.bench import attacks as bench

        _tables(bench.table(_measured(bench.run(seeds))), "attacks", into)


def privacy(
    into: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
    data: DataDir = None,
) -> None:
    """ε against accuracy on MNIST with 1,000 clients, by the noise."""
    with answered():
        from ternfed.bench import privacy as bench

        _tables(bench.table(_measured(bench.run(data))), "privacy", into)


def many_clients(
    clients: Annotated[int, typer.Option(min=10, help="The number of clients; a tenth take part.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="The number of rounds.")] = 3,
) -> None:
    """Seconds per round and peak memory with thousands of simulated clients."""
    with answered():
        from ternfed.bench import many_clients as bench

        _print(bench.table(_measured(bench.run(clients, rounds))))


def ranks(
    dataset: Annotated[str, typer.Option(help="The data set: 100 clients, a fifth take part.")] = "mnist",
    rounds: Annotated[int, typer.Option(min=1, help="The number of rounds.")] = 8,
) -> None:
    """A round in one process against the same over two ranks: CPU time of rank 0, and wall time."""
    with answered():
        from ternfed.bench import ranks as bench

        _print(bench.table(_measured(bench.run(dataset, rounds))))


def server_memory() -> None:
    """What a server holds in a round, by the number of clients: 100 to 100,000."""
    with answered():
        from ternfed.bench import server_memory as bench

        _print(bench.table(_measured(bench.run())))


def convolutions(repeats: Repeats = 5) -> None:
    """Local training of the CNN and ResNet18* on the CPU: ternfed in float32 and bfloat16 against the plain loop."""
    with answered():
        from ternfed.bench import convolutions as bench

        _print(bench.table(_measured(bench.run(repeats))))


def big_model(
    weights: Annotated[int, typer.Option(min=10_000, help="The number of ternary weights.")] = 20_000_000,
) -> None:
    """A round with one large layer: peak memory in copies of the model, and the codec within a message."""
    with answered():
        from ternfed.bench import big_model as bench

        with terminal.err.status("measuring"):
            text = bench.table(list(bench.rounds(weights)), [bench.message(weights)])
        _print(text)


def speed(
    out: Annotated[Path, typer.Option(help="Where the measurement is stored, as JSON.")] = Path("speed.json"),
    into: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
    stored: Annotated[bool, typer.Option("--stored", help="Make the page of the stored measurement.")] = False,
    parts: Annotated[list[str] | None, typer.Option("--part", help="Measure this part alone; may be repeated.")] = None,
    steps: Annotated[bool, typer.Option(help="Single training steps too; ResNet18*'s take seconds each.")] = True,
    repeats: Repeats = 7,
    participants: Annotated[int, typer.Option(min=10, help="Clients per round of 10,000.")] = 1_000,
    weights: Annotated[int, typer.Option(min=10_000, help="Weights of the big model.")] = 20_000_000,
) -> None:
    """Every promise about speed, measured in one run, on one page: which are kept and which are missed."""
    with answered():
        from ternfed.bench import speed as bench
        from ternfed.files import json_page, read_json, write_atomically
        from ternfed.runs.folder import RunError

        before = read_json(out)
        found = before if isinstance(before, dict) else {}
        if not (stored or parts):  # a whole run begins anew, but for what this machine may not be able to measure
            found = {name: part for name, part in found.items() if name == bench.GPU}
        if stored and not found:
            raise RunError(f"{out}: no stored measurement; measure one first, without --stored")
        limits = bench.Limits(repeats, steps, participants, big=weights)
        for name, part in [] if stored else bench.measure(limits, parts or ()):
            found = {**found, name: part}
            write_atomically(out, json_page(found))
            _tell(f"{name}: done")
        _tables(bench.page(found), "speed", into)


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


def flower(
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", help="FedAvg, FedAdam, …; by default all; may be repeated.")
    ] = None,
    modes: Annotated[
        list[str] | None, typer.Option("--mode", help="none, updates, ternary; by default all; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds, from 0 on.")] = 3,
    dataset: Annotated[str, typer.Option(help="mnist or digits.")] = "mnist",
    bits_up: Annotated[float, typer.Option(help="Bits of an upload in the mode updates: 1 to 4; 1.5: trits.")] = 1.5,
    keep: Annotated[
        Path | None, typer.Option(help="A file of outcomes: those in it are not run again, new ones are added.")
    ] = None,
    real: Annotated[bool, typer.Option("--real", help="By flwr run, with a SuperLink and five SuperNodes.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Only the rows with all clients and without BatchNorm.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 10,
    simulated: Annotated[bool, typer.Option("--simulated", help="By flwr run, in Flower's simulation.")] = False,
    again: Annotated[
        Path | None, typer.Option(help="A file of outcomes: play each of them in one process, and compare the models.")
    ] = None,
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing: the table of what --keep has.")] = False,
    into: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
) -> None:
    """A Flower app with and without ternfed's two lines: accuracy and bytes by strategy and mode."""
    with answered():
        from ternfed.bench import flower_apps as bench
        from ternfed.bench import flower_table as tables
        from ternfed.bench.real_flower import real_flower
        from ternfed.engines.flower.adapter import need_flower

        need_flower()
        rows = [case for case in bench.cases(strategies) if not plain or case == bench.Case(case.strategy)]
        chosen = bench.modes(modes)
        if again is not None:
            kept = bench.stored(again, rows, chosen, range(seeds))
            _tables(tables.comparison(_measured(bench.again(kept, dataset, rounds, bits_up))), "flower-again", into)
            return
        if stored:
            if keep is None:
                raise ValueError("--stored needs --keep FILE, the file of outcomes")
            _tables(tables.table(bench.stored(keep, rows, chosen, range(seeds))), "flower", into)
            return
        flwr_run = real or simulated
        here = nullcontext(partial(bench.play_each, rounds=rounds))
        with real_flower(dataset, rounds, simulated) if flwr_run else here as play:
            outcomes = _measured(bench.run(rows, chosen, range(seeds), dataset, bits_up, keep, play))
        _tables(tables.table(outcomes), "flower", into)


def flower_rates(
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", help="FedAdam, FedYogi, FedAdagrad, QFedAvg; by default all.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="A file of what was tried: that is not run again, more is added.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="mnist or digits.")] = "mnist",
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing: the table of what --keep has.")] = False,
    into: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
) -> None:
    """Server rates of Flower's strategies with BatchNorm, tried without ternfed on held-out images."""
    with answered():
        from ternfed.bench import flower_rates as bench
        from ternfed.bench.flower_apps import data
        from ternfed.engines.flower.adapter import need_flower

        need_flower()
        if stored and keep is None:
            raise ValueError("--stored needs --keep FILE, the file of what was tried")
        names = bench.chosen(strategies)
        known = [each for each in bench.read(keep) if each.strategy in names] if stored and keep is not None else None
        tried = known if known is not None else _measured(bench.run(names, bench.SEEDS, data(dataset, True), keep))
        _tables(bench.table(tried), "flower-rates", into)


def large_round(
    weights: Annotated[int, typer.Option(min=10_000, help="Weights of the model.")] = 100_000_000,
) -> None:
    """Peak memory of a server and a client over one round with a large model, step by step."""
    with answered():
        from ternfed.bench import large_round as bench
        from ternfed.engines.flower.adapter import need_flower

        need_flower()
        _print(bench.table(_measured(bench.measure(weights))))


def _measured(rows: Iterable[Anything]) -> list[Anything]:
    """All rows, with a spinner while they are measured."""
    with terminal.err.status("measuring"):
        return list(rows)


def _tables(text: str, name: str, into: Path | None) -> None:
    from ternfed.bench.tables import write_into

    if into is None:
        _print(text)
    else:
        write_into(into, name, text)


def _tell(text: str) -> None:
    terminal.err.print(text)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


VERBS: tuple[Callable[..., None], ...] = (
    step, wire, rounds, peers, gpu, edge, edge_products, theory, cmfl_threshold, flower, flower_rates, fuzz_wire,
    fuzz_files, attacks, privacy, many_clients, ranks, server_memory, convolutions, big_model, speed, network_bytes,
    round_latency, slow_link, large_round,
)  # fmt: skip
