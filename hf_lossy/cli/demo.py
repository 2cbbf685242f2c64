from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import DEFAULT_PAIR, DeviceOption, DtypeOption

RESULTS = Path("docs/results")
"""Where a checkout has its results; not there in an installed package."""


def demo(
    results: Annotated[
        list[Path] | None,
        typer.Option(help="A result folder of hf-lossy evaluate, or a folder of such; may be given several times."),
    ] = None,
    models: Annotated[
        str, typer.Option(help="The models to begin with: arithmetic, smollm2 or qwen-coder.")
    ] = DEFAULT_PAIR,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets others in.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Default: the first free one from 7860 on.")] = None,
    share: Annotated[bool, typer.Option("--share", help="A public link through gradio's servers.")] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page.")] = False,
) -> None:
    """A page that shows what lossy laws do to a text, token by token."""
    from ..demo import Backend, build_demo, launch

    strangers = share or host not in ("127.0.0.1", "localhost")
    backend = Backend(models, dtype=dtype, device=device, results=results or [RESULTS], local=not strangers)
    launch(build_demo(backend), server_name=host, server_port=port, share=share, inbrowser=browser)
