"""`python -m ternfed.flower`: the verbs of the network alone."""

import typer

from ternfed.flower.commands import add_to

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
add_to(app)
app()
