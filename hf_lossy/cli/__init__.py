"""The command line, one file a command."""

from __future__ import annotations

import sys

import typer

from ..errors import LossyError
from .bench import bench
from .compare import compare
from .demo import demo
from .evaluate import evaluate, report
from .inspect import inspect
from .laws import laws

app = typer.Typer(
    name="hf-lossy",
    help="Lossy speculative decoding for transformers: draft × law × coupling, with the bill attached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
INTERRUPTED = 130
"""What typer exits with on Ctrl-C."""
for command in (compare, inspect, laws, bench, evaluate, report, demo):
    app.command()(command)


def main() -> None:
    """Run the command line; a wrong argument is one line on stderr and exit status 2, Ctrl-C is 130."""
    try:
        app()
    except LossyError as error:
        print(f"hf-lossy: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print("hf-lossy: interrupted; no file was left half-written", file=sys.stderr)
        raise
