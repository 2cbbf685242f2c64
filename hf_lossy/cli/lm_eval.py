from __future__ import annotations

import sys

import typer

from ..errors import needs


def lm_eval(context: typer.Context) -> None:
    """lm-evaluation-harness with --model hf-lossy; all its own arguments. --model_args takes pretrained=, assistant=,
    verification=, and the law's parameters and options by their names."""
    needs("lm_eval", "hf-lossy lm-eval", "eval", package="lm-eval")
    from lm_eval.__main__ import cli_evaluate

    from ..evaluation import harness  # noqa: F401  registers the model

    sys.argv = ["lm_eval", *context.args]
    cli_evaluate()
