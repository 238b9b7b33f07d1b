"""`python -m ternfed` is the command `ternfed`."""

from ternfed.cli.app import main

main()
