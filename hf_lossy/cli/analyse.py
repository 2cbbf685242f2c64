from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import unknown
from .common import (
    DeviceOption,
    DraftOption,
    DtypeOption,
    PairOption,
    TargetOption,
    ThreadsOption,
    console,
    open_pair,
    track,
)

RESULTS = Path("docs/results/analysis")


def analyse(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="truncation, divergence, tree, lenience, differences (default: all).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"Each analysis writes into a folder of its name there (default: {RESULTS}, with the name of another pair "
            "or target behind it).",
            show_default=False,
        ),
    ] = None,
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    texts: Annotated[
        int | None, typer.Option(min=3, help="Texts that the target writes (default: the pair's).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Recorded rounds (default: the pair's).")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens a text (default: the pair's).")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="Of target and draft (default: 0.7).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything (default: 0).")] = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
) -> None:
    """What laws do to p and q, position by position: figures, numbers and a README for each analysis."""
    from ..analysis import ANALYSES, defaults, write

    for name in names or ():
        if name not in ANALYSES:
            raise unknown("analysis", name, ANALYSES)
    another = pair or (None if target is None else Path(target).name)
    results = out or (RESULTS if another is None else RESULTS / another)
    given = {
        "texts": texts,
        "rounds": rounds,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    loaded, opened = None, None
    for name in names or ANALYSES:
        analysis = ANALYSES[name]
        which = pair or (None if target else analysis.pair)
        if loaded is None or which != opened:
            loaded, opened = open_pair(which, target, draft, dtype, device, threads), which
        if names is None and name == "tree" and loaded.head is None:
            console.print(f"left out tree: {loaded.name} has no EAGLE-3 head")
            continue
        fewer = analysis.fewer if loaded.arithmetic else {}
        settings = defaults(loaded.arithmetic, **{**given, **{k: v for k, v in fewer.items() if given[k] is None}})
        figures = analysis.measure(loaded, settings, track)
        folder = results / name
        write(folder, analysis, figures)
        console.print(f"{name}: wrote {folder}/README.md, figure.png, figure.svg and numbers.json")
