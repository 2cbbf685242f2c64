"""The model card of a trained head, every figure from its ``training.json`` and from the benchmark's part ``trees``."""

from __future__ import annotations

import textwrap
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

_BODY = """\
# EAGLE-3 head for {name}

A draft head for speculative decoding with `hf_lossy`: one decoder layer that reads the target's hidden states {taps} and
drafts over {vocabulary}. {parameters:.2f}M parameters. The target's embedding is not in the files: the head borrows it.

```python
import hf_lossy
from hf_lossy.eagle3 import load_head

head = load_head("path/of/this/folder", target)
hf_lossy.generate(target, **inputs, assistant_model=head, verification="lossless", max_new_tokens=128)
```

## Data

{how}: {answer_tokens:,} answer tokens in {dialogues:,} dialogues to learn from, and {held_tokens:,} in {held_dialogues:,} of
the same source held out.

## Training

EAGLE-3's training-time test (arXiv 2503.01840), {depth} steps deep, soft cross-entropy with weights 0.8^k, AdamW, started
from the target's last layer. {steps:,} optimiser steps of {rows} dialogues ({epochs:.1f} epochs), learning rate {lr:g}, seed
{seed}; final loss {loss:.3f}. {minutes:.1f} minutes on {machine}, after the target's hidden states had been computed.

## Held-out acceptance

| step | argmax is the target's | argmax is the text's token | accepted at T = 1 | accepted at T = 0.7 |
|---|---|---|---|---|
{table}

Over all answer tokens of the held-out text and the target's whole vocabulary. Accepted: Σ min(p, q), the probability that
lossless verification takes a token drawn from the head. {beyond}
{in_use}
## Limits

- The table is teacher-forced: the tokens before each draft are the text's own, as if all earlier drafts had been right. A
  chain in use stops at its first rejection, so these figures are not its mean acceptance length.
- It learnt from text of this one kind, written by the target itself. Other topics, languages and temperatures, and longer
  contexts than {length} tokens, were not tried.
{coverage}{notes}- One run with one seed: how much the figures vary between runs is not known.
- Whether drafting saves time depends on the machine. For a small target on a CPU it may well cost time.
"""

_IN_USE = """
## In use

Lossless verification, {sequences} chat prompts that are not in the training data, {tokens} tokens each, {dtype}; mean
acceptance length (tokens a round, the replaced or bonus token included) with half of a 95 % interval over prompts, and the
share of rounds that kept a token at each depth.

| draft | temperature | mean acceptance length | kept at depth 1, 2, … |
|---|---|---|---|
{acceptance}

Greedy speed over plain decoding on {machine}: a round pays where the mean acceptance length is above the break-even.

| dtype | draft | mean acceptance length | break-even | × plain decoding |
|---|---|---|---|---|
{speed}
"""


def model_card(report: dict[str, Any], bench: dict[str, Any] | None = None) -> ModelCard:
    """The card of a head.

    Args:
        report: what ``recipes/train_eagle3.py`` writes as ``training.json``.
        bench: what ``hf-lossy bench --only trees --write`` writes as the part ``trees``; without it the card has no figures
            of the head in use.
    """
    data, settings, vocabulary = report["data"], report["settings"], report["draft_vocabulary"]
    machine, base, depth = report["provenance"]["machine"], report["base_model"], settings["steps"]
    size, whole = vocabulary["size"], vocabulary["of"]
    threads = f"{machine['torch_threads']} thread{'s' * (machine['torch_threads'] > 1)} of {machine['cpu']}"
    body = _BODY.format(
        name=f"[{base}](https://huggingface.co/{base})" if base else f"hf_lossy's embedded {report['target']} target",
        taps=", ".join(map(str, report["taps"])),
        vocabulary=f"{size:,} of its {whole:,} tokens" if size < whole else f"all of its {whole:,} tokens",
        parameters=report["parameters"] / 1e6,
        how=data["how"][:1].upper() + data["how"][1:],
        answer_tokens=data["answer_tokens"],
        dialogues=data["dialogues"],
        held_tokens=data["held_out_answer_tokens"],
        held_dialogues=data["held_out_dialogues"],
        length=data["length"],
        depth=depth,
        steps=report["optimiser_steps"],
        rows=settings["rows"],
        epochs=report["epochs"],
        lr=settings["lr"],
        seed=settings["seed"],
        loss=report["final_loss"],
        minutes=report["training_seconds"] / 60,
        machine=machine["gpu"] or threads,
        table="\n".join(_row(step) for step in report["held_out"]),
        in_use="" if bench is None else _in_use(bench),
        notes="".join(f"- {note}\n" for note in report.get("notes", ())),
        beyond=f"Steps from {depth} on lie beyond the depth of training.",
        coverage=f"- It can't draft tokens outside its vocabulary, which holds {vocabulary['covers']:.1%} of the training "
        "answers' tokens.\n"
        if size < whole
        else "",
    )
    header = ModelCardData(
        license=report["license"],
        base_model=base,
        library_name="hf_lossy",
        tags=["eagle3", "speculative-decoding", "hf_lossy"],
    )
    blocks = body.split("\n\n")
    text = "\n\n".join(
        textwrap.fill(block, 120) if block[0].isupper() else block for block in blocks
    )  # prose in even lines
    return ModelCard(f"---\n{header.to_yaml()}\n---\n\n{text}")


def _row(step: dict[str, float]) -> str:
    cells = (step[name] for name in ("argmax", "token", "accepted_t1", "accepted_t0.7"))
    return f"| {step['step']} | {' | '.join(f'{cell:.3f}' for cell in cells)} |"


def _in_use(bench: dict[str, Any]) -> str:
    settings, machine = bench["settings"], bench["provenance"]["machine"]
    return _IN_USE.format(
        sequences=settings["sequences"],
        tokens=settings["max_new_tokens"],
        dtype=settings["dtype"],
        machine=f"{machine['torch_threads']} threads of {machine['cpu']}",
        acceptance="\n".join(
            f"| {one['name']} | {one['temperature']:g} | {_interval(one['mean_acceptance_length'])} | "
            f"{', '.join(format(share['mean'], '.2f') for share in one['per_position'])} |"
            for one in bench["acceptance"]
        ),
        speed="\n".join(
            f"| {dtype} | {one['name']} | {one['mean_acceptance_length']['mean']:.2f} | {one['break_even']['median']:.2f} | "
            f"{one['ratio']['median']:.2f} |"
            for dtype, speed in bench["speed"].items()
            for one in speed["shapes"]
        ),
    )


def _interval(found: dict[str, Any]) -> str:
    half = found["half_width"]
    return f"{found['mean']:.2f}" + ("" if half is None else f" ± {half:.2f}")
