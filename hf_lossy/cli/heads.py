"""What ``hf-lossy inspect`` says of an EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from ..bench.estimates import clustered_mean
from ..bench.trees import SAMPLED_SHAPES, SHAPES, measure_speed
from ..fit import TREES, Agreement, described, head_checks, probe, variants
from ..loading import Pair, dtype_name
from ..timing import forward_seconds, head_seconds
from .common import console, interval, number, status, track

LENGTHS = (1, 2, 3, 5, 8, 16, 32, 60)
"""Tokens that a target forward is timed over: those of the shapes."""
ROWS = (1, 4, 10)
"""Candidates that a head's step is timed over."""
HARDLY = 0.1
"""An acceptance below which a head does not know its target."""


def inspect_head(
    pair: Pair, prompts: int, max_new_tokens: int, temperature: float, probing: bool
) -> tuple[dict[str, Any], bool]:
    """Everything about a pair with a head, for JSON; and whether they fit."""
    assert pair.head is not None
    found = head_checks(pair.target, pair.head)
    report: dict[str, Any] = {
        "pair": pair.name,
        "head": described(pair.head),
        "checks": [vars(check) for check in found],
        "threads": torch.get_num_threads(),
        "dtype": dtype_name(pair.target),
    }
    failed = {check.what for check in found if not check.ok}
    if failed - {TREES}:
        return report, False
    texts = pair.prompts[:prompts]
    if probing:
        report["probe"] = probed(pair, texts, max_new_tokens)
    shapes = [*SHAPES, *(SAMPLED_SHAPES if temperature else ())]
    shapes = [shape for shape in shapes if not failed or shape["draft_mode"] != "tree"]
    report["speed"] = speed(pair, texts, shapes, max_new_tokens, temperature)
    return report, True


# --- was it read as it was trained? -----------------------------------------------------------------------------------


def probed(pair: Pair, prompts: Sequence[str], max_new_tokens: int) -> dict[str, Any]:
    """Position 0 of the head in every variant, on texts that the target writes greedily."""
    assert pair.head is not None
    texts: list[dict[str, Agreement]] = []
    for prompt in track(prompts, "probing the head"):
        inputs = pair.inputs(prompt)
        ids = pair.target.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
        texts.append(probe(pair.head, pair.target, ids, inputs["input_ids"].shape[1]))
    return judged([(way.name, way.choices) for way in variants(pair.head, pair.target)], texts)


def judged(ways: Sequence[tuple[str, dict[str, Any]]], texts: Sequence[dict[str, Agreement]]) -> dict[str, Any]:
    """Means over the texts' positions with intervals over texts, and what they say.

    Args:
        ways: name of each variant, the one that was read first, and the arguments of ``load_head`` that read it so.
        texts: what :func:`hf_lossy.fit.probe` found on each text.
    """
    positions, clusters = [text[ways[0][0]].positions for text in texts], range(len(texts))
    found: list[dict[str, Any]] = []
    for name, choices in ways:
        mine, read = ([text[which] for text in texts] for which in (name, ways[0][0]))
        more = [a.accepted - b.accepted for a, b in zip(mine, read, strict=True)]
        found.append(
            {
                "name": name,
                "choices": choices,
                "same_argmax": clustered_mean([a.same for a in mine], positions, clusters),
                "acceptance": clustered_mean([a.accepted for a in mine], positions, clusters),
                "more_than_as_read": clustered_mean(more, positions, clusters),
            }
        )
    best = max(found, key=lambda one: one["acceptance"]["mean"])
    return {
        "texts": len(texts),
        "positions": int(sum(positions)),
        "variants": found,
        "best": best["name"],
        "verdict": verdict(found),
    }


def verdict(found: Sequence[dict[str, Any]]) -> str:
    """What the variants' acceptance says, the first of them being the head as it was read."""

    def sure(one: dict[str, Any], sign: int) -> bool:
        more = one["more_than_as_read"]
        return more["half_width"] is not None and sign * more["mean"] > more["half_width"]

    read, *others = found
    acceptance = read["acceptance"]["mean"]
    better = [one for one in others if sure(one, 1)]
    if better:
        best = max(better, key=lambda one: one["acceptance"]["mean"])
        how = ", ".join(f"{name}={value!r}" for name, value in best["choices"].items())
        return (
            f"read the wrong way: acceptance {best['acceptance']['mean']:.3f} with {best['name']}, {acceptance:.3f} as "
            f"read: load_head(path, target, {how})"
        )
    if max(one["acceptance"]["mean"] for one in found) < HARDLY:
        return (
            f"acceptance is below {HARDLY:g} whichever way the head is read: it is not trained, or for another target"
        )
    shifted = [one for one in others if "tap_layers" in one["choices"]]
    if not shifted:
        return "nothing agrees more with the target than as read; there are no taps one layer off"
    unclear = [one["name"] for one in shifted if not sure(one, -1)]
    if unclear:
        return f"nothing is surely better than as read, but {', '.join(unclear)} can't be told from it: more --prompts"
    return "the taps are right: those one layer off agree less with the target, and nothing agrees more"


# --- does it pay? -----------------------------------------------------------------------------------------------------


def speed(
    pair: Pair, prompts: Sequence[str], shapes: Sequence[dict[str, Any]], max_new_tokens: int, temperature: float
) -> dict[str, Any]:
    """Times of forwards and head steps, and the shapes beside plain decoding."""
    assert pair.head is not None
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    inputs = [pair.inputs(prompt) for prompt in prompts]
    prefix = inputs[0]["input_ids"]
    with status.status("timing forwards"):
        forwards = forward_seconds(pair.target, prefix, LENGTHS)
        steps = head_seconds(pair.target, pair.head, prefix, ROWS)
    found = measure_speed([pair], inputs, shapes, 1, max_new_tokens, sampling, 0, track)
    return {
        "prompts": len(inputs),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "target_forward_seconds": forwards,
        "head_step_seconds": steps,
        **found[dtype_name(pair.target)],
    }


# --- for people -------------------------------------------------------------------------------------------------------


def show_head(report: dict[str, Any]) -> None:
    """What was detected."""
    head = report["head"]
    rope = head["rope_parameters"]
    scaling = "" if rope["rope_type"] == "default" else f", {rope['rope_type']}"
    table = Table(title=f"{report['pair']}: what was read", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    lines = {
        "producer": head["producer"],
        "taps (hidden_states)": ", ".join(map(str, head["taps"])),
        "target's width → head's": f"{head['target_hidden_size']} → {head['hidden_size']}",
        "attention": f"{head['num_attention_heads']} heads, {head['num_key_value_heads']} of keys, of {head['head_dim']}",
        "MLP": str(head["intermediate_size"]),
        "draft vocabulary": f"{head['draft_vocab_size']:,} of {head['vocab_size']:,}",
        "rope_theta": f"{rope['rope_theta']:g}{scaling}",
        "feedback": head["feedback"],
        **{
            name: "yes" if head[name] else "no"
            for name in (
                "norm_before_residual",
                "fc_norm",
                "norm_before_fc",
                "qk_norm",
                "double_norm",
                "own_embedding",
            )
        },
        "parameters": f"{head['parameters'] / 1e6:.2f}M, {head['dtype']}",
    }
    for name, value in lines.items():
        table.add_row(name, value)
    console.print(table)


def show_probe(found: dict[str, Any]) -> None:
    """The variants, and the verdict."""
    title = f"position 0 on {found['texts']} texts of the target, {found['positions']} positions"
    caption = "± half of a 95 % interval over texts; acceptance: Σ min(p, q) at T = 1"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("read with")
    for column in ("same argmax", "acceptance", "minus as read"):
        table.add_column(column, justify="right")
    for one in found["variants"]:
        cells = (interval(one[name], 3) for name in ("same_argmax", "acceptance", "more_than_as_read"))
        table.add_row(one["name"], *cells, style="bold" if one["name"] == found["best"] else "")
    console.print(table)
    console.print(f"verdict: {found['verdict']}")


def show_speed(report: dict[str, Any]) -> None:
    """Times, and which shape pays."""
    found = report["speed"]
    forwards, steps = (
        ", ".join(f"{n} {1e3 * seconds:.1f}" for n, seconds in found[name].items())
        for name in ("target_forward_seconds", "head_step_seconds")
    )
    console.print(
        f"target forward over n tokens, ms: {forwards}\nhead step over n candidates, ms: {steps}\n"
        f"plain decoding: {found['plain']['step_milliseconds']['median']:.1f} ms a token ({report['dtype']}, "
        f"{report['threads']} threads)"
    )
    title = f"lossless, T = {found['temperature']:g}, {found['prompts']} prompts of {found['max_new_tokens']} tokens"
    caption = (
        "tree: size/depth/top-k. MAL: mean acceptance length, tokens a round; break-even: the MAL at which a round takes as "
        "long as the plain steps it replaces; speed-up: MAL / break-even. tokens/s: the prompt's reading included"
    )
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("draft", no_wrap=True)
    for column in ("ms a\nround", "MAL", "break-\neven", "speed-up", "tokens/s\n× plain"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found["shapes"]:
        best = one["name"] == found["best"]
        table.add_row(
            one["name"],
            number(one["round_milliseconds"]["median"], 1),
            interval(one["mean_acceptance_length"], 2),
            number(one["break_even"]["median"]),
            f"{number(one['speed_up']['median'])} ×",
            number(one["ratio"]["median"]),
            style="bold green" if best and found["pays"] else "bold" if best else "",
        )
    console.print(table)
    verdict = f"best: {found['best']}"
    if not found["pays"]:
        verdict = f"nothing pays: the best, {found['best']}, is slower than plain decoding on this machine"
    console.print(verdict)
