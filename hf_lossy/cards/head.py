"""The model card of a trained EAGLE-3 head, from its ``training.json`` and from the benchmark's part ``trees``."""

from __future__ import annotations

from typing import Any

from huggingface_hub import ModelCardData

from .build import CONTACT, PAPERS, Card, build, measured
from .figures import Figure, File, Prose, Value, bullets, code, fill, hardware, table
from .tables import acceptance, speed

CODE = """
import hf_lossy
from hf_lossy.eagle3 import load_head

head = load_head("path/of/this/folder", target)
hf_lossy.generate(target, **inputs, assistant_model=head, verification="lossless", max_new_tokens=128)
"""
HELD_OUT = {"argmax": "argmax is the target's", "token": "argmax is the text's token"}
"""Columns of the held-out table; the others are acceptances, named ``accepted_t<temperature>``."""
ACCEPTED = "accepted_t"


def head_card(training: File, bench: File | None = None) -> Card:
    """The card of a head.

    Args:
        training: the ``training.json`` that ``recipes/train_eagle3.py`` writes.
        bench: the benchmark of a pair with this head, which has a part ``trees`` (``hf-lossy bench --only trees --write``);
            without it the card has no figures of the head in use.
    """
    base, size, whole = training.get("base_model"), *(training.get("draft_vocabulary", k) for k in ("size", "of"))
    target: Value = (
        f"[{base}](https://huggingface.co/{base})"
        if base
        else fill("hf_lossy's embedded {target} target", target=training.figure("target"))
    )
    vocabulary = fill(
        "{size} of its {of} tokens" if size < whole else "all of its {of} tokens",
        size=training.figure("draft_vocabulary", "size", form=","),
        of=training.figure("draft_vocabulary", "of", form=","),
    )
    name = base.split("/")[-1] if base else str(training.get("target"))
    in_use = fill("The head was not measured in use.") if bench is None else acceptance(bench) + speed(bench)
    return build(
        f"EAGLE-3 head for {base or f'the embedded {name} target'}",
        metadata(training, f"{name}-eagle3", base),
        {
            "summary": fill("A draft head for speculative decoding with hf_lossy, for {target}.", target=target),
            "description": fill(
                "One decoder layer that reads the target's hidden states {taps} and drafts over {vocabulary}. "
                "{parameters} parameters. The target's embedding is not in the files: the head borrows it.",
                taps=training.figure("taps", form=lambda taps: ", ".join(map(str, taps))),
                vocabulary=vocabulary,
                parameters=training.figure("parameters", form=_millions),
            ),
            "sources": bullets(
                fill("Method: {paper}", paper=PAPERS["heads"]), fill("Laws: {paper}", paper=PAPERS["laws"])
            ),
            "direct_use": fill(
                "Drafting for its target, with hf_lossy.generate and any of its laws: verification=lossless gives the "
                "target's own distribution."
            ),
            "downstream_use": fill(
                "Drafting for a fine-tune of its target, after measuring: hf-lossy inspect says what the head still agrees "
                "with."
            ),
            "out_of_scope": bullets(
                fill("Drafting for any other target: the hidden states mean nothing there."),
                fill("Writing text by itself: it is no language model without its target."),
                fill(
                    "Under a lossy law: roll-outs for reinforcement learning, use of the log-probabilities, and anything "
                    "else that needs the target's exact law."
                ),
            ),
            "limitations": limitations(training, size < whole),
            "recommendations": fill(
                "Measure on your machine before relying on a speed-up: hf-lossy inspect, with the target and this head, "
                "prints which draft shape pays, if any."
            ),
            "start": code(CODE),
            "training": train(training),
            "testing_data": fill(
                "{tokens} answer tokens in {dialogues} dialogues of the same source as the training data, held out.",
                tokens=training.figure("data", "held_out_answer_tokens", form=","),
                dialogues=training.figure("data", "held_out_dialogues", form=","),
            ),
            "factors": fill("The step within a draft, and the temperature; in use, the draft's shape and the dtype."),
            "metrics": fill(
                "Acceptance: Σ min(p, q), the probability that lossless verification takes a token drawn from the head, "
                "over the target's whole vocabulary. Mean acceptance length: tokens a round in use."
            ),
            "results": held_out(training) + in_use,
            "environment": fill(
                "Training took {minutes} minutes on {machine}, after the target's hidden states had been computed. Energy "
                "and emissions were not measured.",
                minutes=training.figure("training_seconds", form=lambda seconds: f"{seconds / 60:.1f}"),
                machine=hardware(training),
            ),
            "specifications": fill(
                "Trained with torch {torch} and transformers {transformers}; weights in safetensors.",
                torch=training.figure("provenance", "versions", "torch"),
                transformers=training.figure("provenance", "versions", "transformers"),
            ),
            "citation": fill("{paper}", paper=PAPERS["heads"]),
            "contact": CONTACT,
        },
    )


def metadata(training: File, name: str, base: str | None) -> ModelCardData:
    """Its YAML block. Data sets are left out: none of the Hub's was used."""
    results = [
        measured(
            training,
            *("held_out", 0, key),
            dataset_type="held-out",
            dataset_name="held-out text of the target",
            metric_type="acceptance",
            metric_name=f"acceptance of the first drafted token at T = {key.removeprefix(ACCEPTED)}",
        )
        for key in training.get("held_out", 0)
        if key.startswith(ACCEPTED)
    ]
    return ModelCardData(
        language="en",
        license=training.get("license"),
        library_name="hf_lossy",
        pipeline_tag="text-generation",
        tags=["eagle3", "speculative-decoding", "hf_lossy"],
        metrics=["acceptance"],
        base_model=base,
        # of the Hub's relations (adapter, merge, quantized, finetune) the one for a module beside an unchanged model
        base_model_relation="adapter" if base else None,
        model_name=name,
        eval_results=results,
    )


def train(training: File) -> Prose:
    """Data and procedure."""
    data, settings = "data", "settings"
    return fill(
        "{how}: {tokens} answer tokens in {dialogues} dialogues to learn from."
        "\n\n"
        "EAGLE-3's training-time test, {depth} steps deep, soft cross-entropy, AdamW, started from the target's last layer. "
        "{steps} optimiser steps of {rows} dialogues ({epochs} epochs), learning rate {lr}, seed {seed}; final loss {loss}.",
        how=training.figure(data, "how", form=lambda how: how[:1].upper() + how[1:]),
        tokens=training.figure(data, "answer_tokens", form=","),
        dialogues=training.figure(data, "dialogues", form=","),
        depth=training.figure(settings, "steps"),
        steps=training.figure("optimiser_steps", form=","),
        rows=training.figure(settings, "rows"),
        epochs=training.figure("epochs", form=".1f"),
        lr=training.figure(settings, "lr", form="g"),
        seed=training.figure(settings, "seed"),
        loss=training.figure("final_loss", form=".3f"),
    )


def held_out(training: File) -> Prose:
    """The teacher-forced table."""
    keys = [key for key in training.get("held_out", 0) if key != "step"]
    header = [HELD_OUT[key] if key in HELD_OUT else _temperature(training, key) for key in keys]
    rows = [
        [
            training.figure("held_out", i, "step"),
            *(training.figure("held_out", i, key, form=".3f") for key in keys),
        ]
        for i in training.indices("held_out")
    ]
    said = fill(
        "Over all answer tokens of the held-out text. Steps from {depth} on lie beyond the depth of training.",
        depth=training.figure("settings", "steps"),
    )
    return table(["step", *header], rows) + said


def limitations(training: File, pruned: bool) -> Prose:
    """What the figures do not say."""
    notes = [fill("{note}", note=training.figure("notes", i)) for i in range(len(training.data.get("notes", ())))]
    coverage = fill(
        "It can't draft tokens outside its vocabulary, which holds {covers} of the training answers' tokens.",
        covers=training.figure("draft_vocabulary", "covers", form=".1%"),
    )
    return bullets(
        fill(
            "The held-out table is teacher-forced: the tokens before each draft are the text's own, as if all earlier "
            "drafts had been right. A chain in use stops at its first rejection, so these figures are not its mean "
            "acceptance length."
        ),
        fill(
            "It learnt from text of this one kind, written by the target itself, whose biases it shares. Other topics, "
            "languages and temperatures, and longer contexts than {length} tokens, were not tried.",
            length=training.figure("data", "length"),
        ),
        *([coverage] if pruned else []),
        *notes,
        fill("One run with one seed: how much the figures vary between runs is not known."),
        fill("Whether drafting saves time depends on the machine. For a small target on a CPU it may well cost time."),
    )


def _temperature(training: File, key: str) -> Prose:
    return fill("accepted at T = {value}", value=Figure(key.removeprefix(ACCEPTED), training))


def _millions(count: Any) -> str:
    return f"{count / 1e6:.2f}M"
