"""The command line, one file a command."""

from __future__ import annotations

import sys

import typer

from ..errors import LossyError
from .analyse import analyse
from .bench import bench
from .card import card
from .compare import compare
from .demo import demo
from .evaluate import evaluate, report
from .inspect import inspect
from .laws import laws
from .lm_eval import lm_eval
from .push import push

app = typer.Typer(
    name="hf-lossy",
    help="Lossy speculative decoding for transformers: draft × law × coupling, with the bill attached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
INTERRUPTED = 130
"""What typer exits with on Ctrl-C."""
for command in (compare, inspect, laws, bench, evaluate, report, analyse, card, push, demo):
    app.command()(command)
# nothing of it is ours to read, --help neither
FOREIGN = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("lm-eval", context_settings=FOREIGN, add_help_option=False)(lm_eval)


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
