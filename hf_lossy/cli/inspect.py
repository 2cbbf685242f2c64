from __future__ import annotations

import json
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress
from rich.table import Table

from ..bench.outside import outside_forwards
from ..drafting.schedule import expected_tokens
from ..errors import LossyError
from ..fit import best_gamma, break_even, checks
from ..generation import VerificationStats, generate
from ..loading import Pair
from ..timing import forward_seconds
from .common import (
    DeviceOption,
    DraftOption,
    DraftWeightsOption,
    DtypeOption,
    PairOption,
    TargetOption,
    ThreadsOption,
    console,
    number,
    open_pair,
    status,
)
from .heads import inspect_head, show_head, show_probe, show_speed

GAMMAS = (1, 2, 3, 4, 5, 7, 10, 15)


def inspect(
    pair: PairOption = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    draft_quantization: DraftWeightsOption = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to measure acceptance on.")] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 32,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    probe: Annotated[
        bool, typer.Option("--probe", help="Of an EAGLE-3 head: does it agree better with the target read another way?")
    ] = False,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Whether a target and a draft fit, how fast they are here, and which draft length, or tree, pays."""
    loaded = open_pair(pair, target, draft, dtype, device, threads, draft_quantization)
    if loaded.draft is None:
        raise LossyError(f"{loaded.name} has no draft model to inspect: give --draft")
    if loaded.head is not None:
        report, fits = inspect_head(loaded, prompts, max_new_tokens, temperature, probe)
    elif probe:
        raise LossyError(f"--probe is for EAGLE-3 heads, and {loaded.name} has a draft model: leave it out")
    else:
        assistant_tokenizer = loaded.generate.pop("assistant_tokenizer", loaded.tokenizer)
        found = checks(loaded.target, loaded.draft, loaded.tokenizer, assistant_tokenizer)
        fits = all(c.ok for c in found)
        report = {"pair": loaded.name, "checks": [vars(c) for c in found]}
        report |= measure(loaded, prompts, max_new_tokens, temperature) if fits else {}
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    if not fits:
        raise typer.Exit(1)


def measure(pair: Pair, prompts: int, max_new_tokens: int, temperature: float) -> dict[str, Any]:
    """Forward times, acceptance under the lossless law, break-even and best γ."""
    assert pair.draft is not None
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    stats = VerificationStats()
    gamma = pair.generate.get("num_assistant_tokens", 7)
    with Progress(console=status, transient=True) as progress:
        task = progress.add_task("measuring acceptance", total=prompts + 2)
        for i, prompt in enumerate(pair.prompts[:prompts]):
            settings = {**pair.inputs(prompt), **pair.drafting(), **sampling, "max_new_tokens": max_new_tokens}
            generator = torch.Generator(device=pair.target.device).manual_seed(i)
            generate(
                pair.target,
                **settings,
                verification="lossless",
                coupling="token",
                generator=generator,
                verification_stats=stats,
            )
            progress.advance(task)
        prefix = pair.inputs(pair.prompts[0])["input_ids"]
        progress.update(task, description="timing forwards")
        target = forward_seconds(pair.target, prefix, [1, *(g + 1 for g in GAMMAS)])
        progress.advance(task)
        step = forward_seconds(pair.draft, prefix.to(pair.draft.device), [1])[1]
    tried = sum(min(r.accepted + 1, r.drafted) for r in stats.rounds)  # positions that were reached
    acceptance = stats.accepted / tried if tried else float("nan")
    overhead = outside_forwards(stats)["microseconds_per_round"]["outside"] / 1e6
    best, speed = best_gamma(acceptance, step, target, overhead)
    return {
        "threads": torch.get_num_threads(),
        "dtype": str(pair.target.dtype),
        "prompts": len(pair.prompts[:prompts]),
        "temperature": temperature,
        "seconds": {
            "target_forward_1": target[1],
            "draft_forward_1": step,
            "ratio": target[1] / step,
            "round_outside_forwards": overhead,
        },
        "measured": {"gamma": gamma, "block_efficiency": stats.block_efficiency, "acceptance_per_token": acceptance},
        "gammas": [
            {
                "gamma": g,
                "verify_seconds": target[g + 1],
                "break_even_block_efficiency": break_even(g, step, target[g + 1], target[1], overhead),
                "expected_block_efficiency": expected_tokens(acceptance, g),
                "expected_speed_up": speed[g],
            }
            for g in GAMMAS
        ],
        "best_gamma": best,
        "pays": speed[best] > 1,
    }


def show(report: dict[str, Any]) -> None:
    """Print a report of :func:`inspect`."""
    if "head" in report:
        show_head(report)
    fits = Table(title=f"{report['pair']}: do they fit?", title_justify="left")
    for column in ("", "target / draft", ""):
        fits.add_column(column, overflow="fold")
    for check in report["checks"]:
        fits.add_row(check["what"], check["found"], "[green]ok[/green]" if check["ok"] else "[red]no[/red]")
    console.print(fits)
    if "probe" in report:
        show_probe(report["probe"])
    if "speed" in report:
        show_speed(report)
    if "gammas" in report:
        show_gammas(report)


def show_gammas(report: dict[str, Any]) -> None:
    """Times, and which draft length pays."""
    seconds, measured = report["seconds"], report["measured"]
    console.print(
        f"forward over one token: target {1e3 * seconds['target_forward_1']:.2f} ms, draft "
        f"{1e3 * seconds['draft_forward_1']:.2f} ms, ratio {seconds['ratio']:.1f} ({report['dtype']}, "
        f"{report['threads']} threads); outside forwards {1e3 * seconds['round_outside_forwards']:.2f} ms a round\n"
        f"measured on {report['prompts']} prompts, lossless, T = {report['temperature']:g}, γ = {measured['gamma']}: "
        f"{measured['acceptance_per_token']:.2f} of the drafted tokens reached are accepted, block efficiency "
        f"{measured['block_efficiency']:.2f}"
    )
    table = Table(title="draft lengths", title_justify="left")
    for column in ("γ", "break-even block eff.", "expected block eff.", "expected speed-up"):
        table.add_column(column, justify="right")
    for g in report["gammas"]:
        best = g["gamma"] == report["best_gamma"]
        table.add_row(
            str(g["gamma"]),
            number(g["break_even_block_efficiency"]),
            number(g["expected_block_efficiency"]),
            f"{number(g['expected_speed_up'])} ×",
            style="bold green" if best and report["pays"] else "bold" if best else "",
        )
    console.print(table)
    verdict = f"best: num_assistant_tokens={report['best_gamma']}"
    if not report["pays"]:
        verdict += ", and even that is slower than plain decoding on this machine"
    console.print(verdict + " (expected from the acceptance of single tokens, taken as independent)")
