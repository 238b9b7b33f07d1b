"""The verbs of the real network: `certs init`, `server`, `client`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ternfed.cli import terminal
from ternfed.cli.options import Allow
from ternfed.cli.terminal import answered

if TYPE_CHECKING:
    from ternfed.experiment.experiment import Experiment

LOCAL = ("federation.participation=1.0", "federation.rounds=10")
"""What a local try without an experiment of its own differs in from the defaults of the digits."""

GOES_ON = "a server is resumed by --resume, a client by starting it again"


def add_to(app: typer.Typer) -> None:
    """Add the verbs to a command line."""
    certs = typer.Typer(help="Certificates of a federation: its own authority, one key pair per client.")
    certs.command("init")(certs_init)
    app.add_typer(certs, name="certs")
    app.command()(server)
    app.command()(client)


def certs_init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the certificates and keys.")],
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address by which clients reach the server; may be repeated.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="How many clients get a key pair.")] = 5,
) -> None:
    """Make a certificate authority, the server's certificate, and one key pair per client."""
    from ternfed.engines.flower.certs import make_certificates

    with answered():
        make_certificates(folder, host or [], clients)
    terminal.out.print(
        f"{folder} is ready. It stays on the server. To client i go three files:\n"
        f"  {folder}/ca.crt  {folder}/client-i  {folder}/client-i.pub",
        highlight=False,
    )


def server(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; without it, the digits.")] = None,
    certs: Annotated[Path | None, typer.Option(help="The folder that `ternfed certs init` made.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients there are.")] = None,
    local: Annotated[int | None, typer.Option(min=1, help="Try it on this machine alone, with N clients.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any.")] = 8443,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds that clients have to answer in a round.")] = 600.0,
    patience: Annotated[float, typer.Option(min=1, help="Seconds to wait for clients when there are none.")] = 600.0,
    wait_for: Annotated[int | None, typer.Option(min=1, help="Start with so many clients; else with all.")] = None,
    least: Annotated[int, typer.Option(min=1, help="Uploads that a round needs.")] = 1,
    scale_bound: Annotated[float, typer.Option(help="The largest factor of a ternary layer that is accepted.")] = 10.0,
    weight_bound: Annotated[float, typer.Option(help="The largest weight that is accepted.")] = 100.0,
    samples_bound: Annotated[int, typer.Option(help="The most samples that a client may claim.")] = 10_000_000,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; else a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option(help="Resume the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier run in --out.")] = False,
    allow: Allow = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder with the data sets; else $TERNFED_DATA.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else there.")] = False,
) -> None:
    """Wait for clients, run an experiment with them over TLS, and end with a model."""
    with answered(interrupted=GOES_ON):
        if (local is None) == (certs is None):
            raise ValueError("--certs DIR is needed, or --local N for a try on this machine")
        if resume and out is None:
            raise ValueError("--resume: --out names the run to resume")
        given = [*(LOCAL if local and file is None and not resume else ()), *(settings or [])]
        count = local or clients
        given += [f"federation.clients={count}"] if count else []
        from ternfed.engines.flower.certs import Certificates
        from ternfed.engines.flower.deploy import Plan, serve
        from ternfed.engines.flower.server import ListenAddress, Terms
        from ternfed.experiment.experiment import Experiment
        from ternfed.round.acceptance import Bounds
        from ternfed.runs.folder import fresh_folder
        from ternfed.runs.records import warnings_of

        experiment = Experiment.given(file, given, out if resume else None, allow or ())
        _one_thread()
        listen = None if certs is None else ListenAddress(Certificates(certs), host, port)
        terms = Terms(deadline, patience, least, Bounds(scale_bound, weight_bound, samples_bound))
        folder = out or fresh_folder(experiment.name)
        plan = Plan(experiment, folder, listen, terms, wait_for, resume, overwrite, data)
        total = experiment.federation.rounds
        _stop_at_sigterm()
        rounds = serve(plan, _say(as_json))
        warns = partial(warnings_of, experiment=experiment)
        for outcome in terminal.show_rounds(rounds, total, experiment.name, quiet=as_json, warns=warns):
            for reason in (*outcome.dropped, *outcome.capped):
                _say(as_json)(f"round {outcome.round}: {reason}")
        _show_end(folder, experiment, as_json)


def client(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    certs: Annotated[Path, typer.Option(help="A folder with ca.crt and this client's key.")],
    data_partition: Annotated[str, typer.Option(help="I/N: this is client I of N, counted from 0.")],
    data: Annotated[str | None, typer.Option(help="module:function that returns this client's own data.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="A module that the experiment may name.")] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for what must survive a restart.")] = None,
    stay: Annotated[bool, typer.Option(help="Wait for another run when one is over.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads to train with.")] = 1,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
) -> None:
    """Take part in a federation with this machine's data, until the run is over."""
    with answered(interrupted=GOES_ON):
        found = re.fullmatch(r"(\d+)/(\d+)", data_partition)
        if found is None or not int(found[1]) < int(found[2]):
            raise ValueError(f"--data-partition {data_partition}: I/N with I below N is needed, 0/5 say")
        if not re.fullmatch(r"[^/\s]+:\d+", server):
            raise ValueError(f"--server {server}: HOST:PORT is needed")
        index, count = int(found[1]), int(found[2])
        from ternfed.data.sets import load
        from ternfed.engines.flower.certs import Certificates
        from ternfed.engines.flower.client import ClientConfig, run_client
        from ternfed.engines.flower.client_round import ClientSetup

        modules = tuple(dict.fromkeys([*(allow or []), *([data.partition(":")[0]] if data else [])]))
        setup = ClientSetup(index, count, None if data is None else load(data), modules, device)
        folder = state or Path(f"ternfed-client-{index}")
        config = ClientConfig(server, Certificates(certs), setup, folder, stay, threads)
        _stop_at_sigterm()
        rounds = run_client(config, _say(False))
    terminal.err.print(f"The run is over; this client took part {rounds} times.", highlight=False)


def _show_end(folder: Path, experiment: Experiment, as_json: bool) -> None:
    import json

    from ternfed.runs.folder import read_run

    result = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if as_json:
        terminal.print_json({**result, "run": str(folder)})
        return
    terminal.out.print(terminal.summary_table({experiment.name: result}, read_run(folder).rounds[-1].measure))
    terminal.out.print(f"The model is {folder}/last.safetensors, the run in {folder}", highlight=False)
    for sentence in result.get("warnings", ()):
        terminal.warn(sentence)


def _say(quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            terminal.err.print(terminal.plain(text), highlight=False, soft_wrap=True)

    return say


def _one_thread() -> None:
    """The same bits as the simulator, and on shared machines no slower."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _stop_at_sigterm() -> None:
    """A stop from outside goes through the `finally` blocks, so that no child process is left."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
