"""The verbs of the real network: `certs init`, `certs add`, `server`, `client`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ternfed.cli import terminal
from ternfed.cli.options import (
    BOUNDS,
    NETWORK,
    ROUNDS,
    Allow,
    DataDir,
    Json,
    LogJson,
    Metrics,
    Out,
    Overwrite,
    Resume,
    Settings,
    Track,
    Watch,
    check_device,
)
from ternfed.cli.progress import Shown, style_of
from ternfed.cli.terminal import answered
from ternfed.cli.verb import CommandLine

if TYPE_CHECKING:
    from ternfed.engines.flower.link import Place
    from ternfed.experiment.experiment import Experiment
    from ternfed.track.tracker import Trackers

DEFAULTS = ("federation.participation=1.0", "federation.rounds=10")
"""What a server without an experiment of its own differs in from the defaults of the digits, local or not."""

RULE = "clipped_mean"
"""How a server combines uploads unless told: the mean without what is far off, because clients may be others'."""
AUDIT, AUDITED = 0.03, 20
"""And the share by which held-out loss must fall without an upload that is left out, in rounds of at most so many."""
ATTACHED = "In a federation that is there already"
GOES_ON = "a server is resumed by --resume, a client by starting it again"


def add_to(app: typer.Typer, panel: str) -> None:
    """Add the verbs to a command line."""
    certs = CommandLine(
        help="Certificates of a federation: its own authority, one key pair per client.", no_args_is_help=True
    )
    certs.command("init")(certs_init)
    certs.command("add")(certs_add)
    app.add_typer(certs, name="certs", rich_help_panel=panel)
    app.command(rich_help_panel=panel)(server)
    app.command(rich_help_panel=panel)(client)


Folder = Annotated[Path, typer.Argument(help="The folder of the certificates and keys.")]
Authority = Annotated[
    Path | None, typer.Option("--ca", help="The authority of somebody else's certificate.", rich_help_panel=ATTACHED)
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Speak to it without TLS.", rich_help_panel=ATTACHED)]
Secret = Annotated[
    Path | None,
    typer.Option(help="What it was given as --superexec-auth-secret-file, if it was.", rich_help_panel=ATTACHED),
]
Others = Annotated[
    bool,
    typer.Option(
        "--others", help="Let Flower's own program do what it hands out of other apps.", rich_help_panel=ATTACHED
    ),
]


def certs_init(
    folder: Folder,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address by which clients reach the server; may be repeated.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="How many clients get a key pair.")] = 5,
) -> None:
    """Make a certificate authority, the server's certificate, and one key pair per client."""
    from ternfed.engines.flower.certs import make_certificates

    with answered():
        make_certificates(folder, host or [], clients)
    _say(
        f"{folder} is ready. It stays on the server. To client i go three files:\n"
        f"  {folder}/ca.crt  {folder}/client-i  {folder}/client-i.pub"
    )


def certs_add(
    folder: Folder, clients: Annotated[int, typer.Option(min=1, help="How many more clients get a key pair.")] = 1
) -> None:
    """Add key pairs for clients that come later; those that are there stay as they are."""
    from ternfed.engines.flower.certs import add_clients

    with answered():
        _check_made(folder)
        first, last = add_clients(folder, clients)
    names = f"client {first}" if first == last else f"clients {first} to {last}"
    _say(
        f"{folder} has keys for {names} now. To each go {folder}/ca.crt and its own client-i and client-i.pub.\n"
        "A server that runs does not know them yet; the next one does."
    )


def server(
    file: Annotated[Path | None, typer.Argument(help="An experiment as TOML; without it, the digits.")] = None,
    local: Annotated[int | None, typer.Option(min=1, help="Try it on this machine alone, with N clients.")] = None,
    certs: Annotated[Path | None, typer.Option(help="The folder that `ternfed certs init` made.")] = None,
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of a SuperLink that is there, to run in; it hands out its tasks.")
    ] = None,
    ca: Authority = None,
    insecure: Insecure = False,
    secret: Secret = None,
    others: Others = False,
    clients: Annotated[
        int | None, typer.Option(min=1, help="How many clients there are; else as many as have keys in --certs.")
    ] = None,
    settings: Settings = None,
    data: DataDir = None,
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=NETWORK)] = "0.0.0.0",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any.", rich_help_panel=NETWORK)
    ] = 8443,
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds that clients have to answer in a round.", rich_help_panel=ROUNDS)
    ] = 600.0,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for clients when there are none.", rich_help_panel=ROUNDS)
    ] = 600.0,
    wait_for: Annotated[
        int | None, typer.Option(min=1, help="Start with so many clients; else with all.", rich_help_panel=ROUNDS)
    ] = None,
    least: Annotated[int, typer.Option(min=1, help="Uploads that a round needs.", rich_help_panel=ROUNDS)] = 1,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds that a round waits for clients of the last to come again; else by their number and pace.",
            rich_help_panel=ROUNDS,
        ),
    ] = None,
    scale_bound: Annotated[
        float, typer.Option(help="The largest factor of a ternary layer.", rich_help_panel=BOUNDS)
    ] = 10.0,
    weight_bound: Annotated[float, typer.Option(help="The largest weight.", rich_help_panel=BOUNDS)] = 100.0,
    samples_bound: Annotated[
        int, typer.Option(help="The most samples that a client may claim.", rich_help_panel=BOUNDS)
    ] = 10_000_000,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    allow: Allow = None,
    watch: Watch = False,
    metrics: Metrics = None,
    track: Track = None,
    log_json: LogJson = False,
    as_json: Json = False,
) -> None:
    """Wait for clients, run an experiment with them over TLS, and end with a model."""
    with answered(interrupted=GOES_ON):
        if [local, certs, superlink].count(None) != 2:
            raise ValueError(
                "one of --certs DIR, --local N (a try on this machine) and --superlink HOST:PORT is needed"
            )
        place = None if superlink is None else _place("--superlink", superlink, ca, insecure, secret)
        if certs is not None:
            _check_made(certs)
        if resume and out is None:
            raise ValueError("--resume: --out names the run to resume")
        from ternfed.cli.watch import watched
        from ternfed.engines.flower.certs import Certificates
        from ternfed.engines.flower.connected import ListenAddress, SharedSuperLink
        from ternfed.engines.flower.deploy import Plan, serve
        from ternfed.engines.flower.server import Terms
        from ternfed.experiment.experiment import Experiment
        from ternfed.round.acceptance import Bounds
        from ternfed.runs.folder import fresh_folder, read_run
        from ternfed.runs.records import warnings_of
        from ternfed.track.tracker import check_names, tracking

        check_names(track or ())
        given = [*(DEFAULTS if file is None and not resume else ()), *(settings or [])]
        count = local or clients
        if count is None and certs is not None and not _says("clients", file, given, resume):
            count = Certificates(certs).count()
        given += [f"federation.clients={count}"] if count else []
        experiment = Experiment.given(file, given, out if resume else None, allow or ())
        if experiment.privacy.clip is None and not _says("aggregate", file, given, resume):
            experiment = _guarded(experiment, audited=not _says("audit", file, given, resume))
        _check_crowd(experiment, certs, wait_for, least)
        _one_thread()
        listen: ListenAddress | SharedSuperLink | None = None
        if place is not None:
            listen = SharedSuperLink(place, others)
        elif certs is not None:
            listen = ListenAddress(Certificates(certs), host, port)
        terms = Terms(deadline, patience, least, grace, Bounds(scale_bound, weight_bound, samples_bound))
        folder = out or fresh_folder(experiment.name)
        plan = Plan(experiment, folder, listen, terms, wait_for, resume, overwrite, data)
        past = read_run(folder).rounds if resume else []
        shown = Shown(experiment.federation.rounds, experiment.name, style_of(as_json, log_json), past)
        shown.say("starting: data, certificates, Flower's link")
        with ExitStack() as stack:
            trackers: list[Trackers] = []

            def opened() -> None:  # threads may be started from now on, and the folder is there
                stack.enter_context(watched(folder, watch, metrics, None if shown.style == "quiet" else shown.say))
                trackers.append(stack.enter_context(tracking(track or (), folder, experiment.to_table(), past)))

            rounds = serve(plan, shown.say, shown.tell, opened)
            for outcome in shown.follow(rounds, partial(warnings_of, experiment=experiment)):
                trackers[0].log(outcome)
                for reason in (*outcome.dropped, *outcome.capped):
                    shown.say(f"round {outcome.round}: {reason}")
            result = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            trackers[0].finish(result)
        _show_end(folder, experiment, result, as_json)
        for sentence in (*result.get("warnings", ()), *trackers[0].failed):
            shown.warn(sentence)


def client(
    data_partition: Annotated[str, typer.Option(help="I/N: this is client I of N, counted from 0.")],
    server: Annotated[str | None, typer.Option(help="HOST:PORT of the server.")] = None,
    certs: Annotated[Path | None, typer.Option(help="A folder with ca.crt and this client's key.")] = None,
    supernode: Annotated[
        str | None, typer.Option(help="HOST:PORT where a SuperNode that is there hands out its tasks.")
    ] = None,
    ca: Authority = None,
    insecure: Insecure = False,
    secret: Secret = None,
    others: Others = False,
    data: Annotated[
        str | None,
        typer.Option(help="module:function that returns this client's own data, or text:FOLDER."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A module, file or folder (text:FOLDER) that the experiment may name; may be repeated."),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for what must survive a restart.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Wait for another run when one is over.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads to train with.")] = 1,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    log_json: LogJson = False,
) -> None:
    """Take part in a federation with this machine's data, until the run is over."""
    with answered(interrupted=GOES_ON):
        found = re.fullmatch(r"(\d+)/(\d+)", data_partition)
        if found is None or not int(found[1]) < int(found[2]):
            raise ValueError(f"--data-partition {data_partition}: I/N with I below N is needed, 0/5 say")
        if (server is None) == (supernode is None):
            raise ValueError("--server HOST:PORT is needed, or --supernode HOST:PORT of a SuperNode that is there")
        if server is not None and certs is None:
            raise ValueError("--certs DIR is needed: the folder with ca.crt and this client's key")
        place = None if supernode is None else _place("--supernode", supernode, ca, insecure, secret)
        if server is not None:
            _check_address("--server", server)
        check_device(device)
        index, count = int(found[1]), int(found[2])
        folder = state or Path(f"ternfed-client-{index}")
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder}: is no folder for what this client must not forget; --state names another")
        from ternfed.data.sets import source_of
        from ternfed.engines.flower.certs import Certificates
        from ternfed.engines.flower.client import AttachedConfig, ClientConfig, run_attached, run_client
        from ternfed.engines.flower.client_round import ClientSetup
        from ternfed.engines.flower.told import named_in

        own = {} if data is None else {"data": {"dataset": data}}  # what the user names, an experiment may
        allowed = tuple(dict.fromkeys([*(allow or []), *named_in(own)]))
        setup = ClientSetup(index, count, None if data is None else source_of(data), allowed, device)
        shown = Shown(0, f"client {index}", style_of(False, log_json))
        if place is not None:
            rounds = run_attached(AttachedConfig(place, setup, folder, stay, threads, others), shown.say)
        elif server is not None and certs is not None:
            rounds = run_client(ClientConfig(server, Certificates(certs), setup, folder, stay, threads), shown.say)
    shown.say(f"The run is over; this client took part {rounds} times.")


def _check_made(certs: Path) -> None:
    """Refuse a folder that `certs init` did not make, before anything is started."""
    if not (certs / "ca.crt").is_file():
        raise ValueError(f"{certs}: holds no certificates; make them with: ternfed certs init {certs}")


def _check_address(option: str, address: str) -> None:
    found = re.fullmatch(r"[^/\s]+:([0-9]{1,5})", address)
    if found is None or not 0 < int(found[1]) < 1 << 16:
        raise ValueError(f"{option} {address}: HOST:PORT is needed, without https://, and a port from 1 to 65535")


def _guarded(experiment: Experiment, *, audited: bool) -> Experiment:
    """An experiment that does not say how uploads are combined, as a server does it, whose clients may be others'."""
    rules = [f"federation.aggregate={RULE}"]
    if audited and experiment.data.hold_out > 0 and _asked(experiment) <= AUDITED:
        rules.append(f"federation.audit={AUDIT}")
    return experiment.with_settings(rules)


def _asked(experiment: Experiment) -> int:
    """How many clients a round asks."""
    from ternfed.draws import asked

    return asked(experiment.federation.clients, experiment.federation.participation)


def _check_crowd(experiment: Experiment, certs: Path | None, wait_for: int | None, least: int) -> None:
    """Refuse a server that would wait for clients that cannot come."""
    from ternfed.engines.flower.certs import Certificates

    own = experiment.federation
    keys = own.clients if certs is None else Certificates(certs).count()
    if keys < own.clients:
        raise ValueError(
            f"federation.clients = {own.clients}: {certs} has keys for {keys}; "
            f"make the others with: ternfed certs add {certs} --clients {own.clients - keys}"
        )
    if wait_for is not None and wait_for > own.clients:
        raise ValueError(f"--wait-for {wait_for}: there are {own.clients} clients")
    if least > _asked(experiment):
        raise ValueError(f"--least {least}: a round asks {_asked(experiment)} of the {own.clients} clients")


def _place(option: str, address: str, ca: Path | None, insecure: bool, secret: Path | None) -> Place:
    """Where somebody else's SuperLink or SuperNode hands out tasks."""
    from ternfed.engines.flower.link import Place

    _check_address(option, address)
    if (ca is None) != insecure:
        raise ValueError(f"{option}: --ca FILE is needed, the authority of its certificate, or --insecure without TLS")
    for file in (ca, secret):
        if file is not None and not file.is_file():
            raise ValueError(f"{file}: there is no such file")
    return Place(address, ca, None if secret is None else secret.read_bytes())


def _says(key: str, file: Path | None, given: Sequence[str], resume: bool) -> bool:
    """Whether the experiment says something of its federation: how many clients there are, for example."""
    from ternfed.experiment.experiment import read_table

    section = {} if file is None else read_table(file).get("federation", {})
    written = isinstance(section, dict) and key in section
    return resume or written or any(setting.startswith(f"federation.{key}=") for setting in given)


def _show_end(folder: Path, experiment: Experiment, result: Mapping[str, Any], as_json: bool) -> None:
    from ternfed.runs.folder import read_run

    if as_json:
        terminal.print_json({**result, "run": str(folder)})
        return
    terminal.out.print(terminal.summary_table({experiment.name: result}, read_run(folder).rounds[-1].measure))
    _say(f"The model is {folder}/last.safetensors, the run in {folder}")


def _say(text: str) -> None:
    terminal.out.print(terminal.plain(text), highlight=False, soft_wrap=True)


def _one_thread() -> None:
    """The same bits as the simulator, and on shared machines no slower."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
