"""The model card of a verified pair: target, draft and laws, from evaluations and from the pair's benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from ..evaluation.tasks import names, task_named
from .build import CONTACT, PAPERS, Card, build, measured
from .figures import Figure, File, Prose, Value, bullets, code, fill, table
from .tables import PARTS, Evaluation, method_of

NOT_RUN = "not run"


@dataclass(frozen=True)
class Subject:
    """A target and what drafts for it.

    Attributes:
        name: of the card, and of the pair on the command line.
        called: what result files call the pair.
        target, draft: what they are, in words.
        start: Python that runs the pair.
        base_model: Hub ids of target and draft, where they have any.
        language: of the texts.
        local: names of the folders of target and draft, by which an evaluation of local copies is known as this pair's.
        notes: what else limits the use of this pair.
    """

    name: str
    called: str
    target: str
    draft: str
    start: str
    base_model: tuple[str, ...] = ()
    language: tuple[str, ...] = ("en",)
    local: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def pair_card(subject: Subject, evaluations: Sequence[Evaluation], bench: File | None = None) -> Card:
    """The card of a pair, from whatever was measured of it; what was not is listed as such.

    Args:
        evaluations: result folders of ``hf-lossy evaluate`` with this pair.
        bench: what ``hf-lossy bench --write`` wrote of it.
    """
    measured_parts = [part for part in PARTS if bench is not None and part in bench.data]
    parts = [part for part in measured_parts if bench is not None and "left_out" not in bench.get(part)]
    results = exists(evaluations, bench)
    for one in evaluations:
        results = results + Prose(f"#### {one.task}, from {one.label}") + one.describe() + one.table()
    for part in parts:
        assert bench is not None
        results = results + Prose(f"#### Benchmark: {part}") + PARTS[part](bench)
    return build(
        f"{subject.target[:1].upper()}{subject.target[1:]} verified with {subject.draft}",
        metadata(subject, evaluations),
        {
            "summary": fill(
                "A pair for speculative decoding with hf_lossy, and what verification laws did to it. No new weights."
            ),
            "description": bullets(
                fill("Target: {target}", target=subject.target),
                fill("Draft: {draft}", draft=subject.draft),
                fill(
                    "Law: what is emitted, a map (p, q) → π from the target's and the draft's next-token distributions. "
                    "The laws that were run are the rows of the tables below."
                ),
            )
            + laws(evaluations),
            "sources": bullets(
                fill("Laws: {paper}", paper=PAPERS["laws"]), fill("Formulas: hf_lossy/laws, one file a law")
            ),
            "direct_use": fill(
                "Generating text with fewer forwards of the target, where a distribution near the target's will do: with "
                "lossless exactly, with a lossy law as far from it as the tables say."
            ),
            "downstream_use": fill("Products that check their answers, and that were measured with the law they use."),
            "out_of_scope": out_of_scope(),
            "limitations": limitations(subject),
            "recommendations": fill(
                "Start with lossless. Take a lossy law only where it beats its matched baseline in the next row, under the "
                "same draft, on your own task; prefer laws with a bound on π/p, which keep what the target finds unlikely "
                "unlikely."
            ),
            "start": code(subject.start),
            "training": fill("Nothing was trained for this card; target and draft have cards of their own."),
            "testing_data": testing_data(evaluations),
            "factors": fill("Law and strength, draft, coupling, how q is read, temperature."),
            "metrics": bullets(
                fill("Score: share of right answers, with a 95 % Wilson interval."),
                fill(
                    "Block efficiency: tokens a target forward; mean acceptance length (MAL): tokens a round that drafted; "
                    "± half of a 95 % interval, clustered by item."
                ),
                fill(
                    "TV: mean TV(π, p) a token; overshoot: the largest log(π/p); seq. KL: mean KL divergence of a text, in "
                    "nats."
                ),
                fill(
                    "Gap: score minus the matched baseline's on the same items and seeds, with a paired bootstrap interval "
                    "of 95 %; p: McNemar's exact test; (noise): the interval holds zero."
                ),
            ),
            "results": results,
            "environment": fill("Inference only. Energy and emissions were not measured."),
            "specifications": fill(
                "hf_lossy runs inside transformers' generate; the commands, commits and dates of every result stand at the "
                "end of this card."
            ),
            "citation": fill("{paper}", paper=PAPERS["laws"]),
            "contact": CONTACT,
        },
    )


def out_of_scope() -> Prose:
    """What a verified pair must not be used for."""
    return bullets(
        fill(
            "Roll-outs for reinforcement learning: the text does not come from the target's law, and importance weights "
            "that assume it does are wrong."
        ),
        fill(
            "Use of log-probabilities: the probability under p of a token that was drawn from π is no sample's likelihood "
            "(scoring, distillation, calibration, perplexity)."
        ),
        fill(
            "Anything else that needs the target's exact law: comparing models, safety evaluations of the target, watermark "
            "detection, sampling guarantees."
        ),
        fill("Under lossless all of these are sound; the distribution is the target's."),
    )


def limitations(subject: Subject) -> Prose:
    """What the results do not say."""
    return bullets(
        fill(
            "Biases and risks are those of target and draft; a lossy law adds the draft's where the target would say no."
        ),
        fill("The tables are of these tasks, prompts and settings; an effect on others has to be measured there."),
        fill("Speeds are of the hardware named beside them, and of no other."),
        *(fill("{note}", note=note) for note in subject.notes),
    )


def laws(evaluations: Sequence[Evaluation]) -> Prose:
    """The laws of the evaluations, with what bounds them."""
    rows: dict[str, list[Value]] = {}
    for one in evaluations:
        for row in one.rows:
            law = method_of(row).law
            if law is None or str(law) in rows:
                continue
            bound, baseline = law.overshoot_bound, method_of(row).baseline()
            rows[str(law)] = [
                Figure(str(law), one.file),
                "yes" if law.is_strict else "no",
                "none" if math.isinf(bound) else Figure(f"{math.exp(bound):.3g}", one.file),
                "" if baseline is None else Figure(str(baseline.law), one.file),
            ]
    if not rows:
        return fill("No law was evaluated on a task with this pair.")
    return table(["law", "π = p", "bound on π/p", "matched baseline"], [*rows.values()])


def testing_data(evaluations: Sequence[Evaluation]) -> Prose:
    """The data sets of the evaluations."""
    tasks = {one.task: one for one in evaluations}
    if not tasks:
        return fill("No task was evaluated with this pair.")
    rows: list[list[Value]] = []
    for name, one in tasks.items():
        task, task_figure = task_named(name), one.file.figure("settings", "task")
        dataset = (
            f"[{task.dataset}](https://huggingface.co/datasets/{task.dataset})" if task.dataset else "made by hf_lossy"
        )
        rows.append([task_figure, dataset, task.split if task.dataset else "", task.license])
    return table(["task", "data set", "split", "license"], rows)


def exists(evaluations: Sequence[Evaluation], bench: File | None) -> Prose:
    """Which results there are of this pair, and which there are not."""
    rows: list[list[Value]] = []
    for task in sorted({*names(), *(one.task for one in evaluations)}):
        found = [one for one in evaluations if one.task == task]
        labels = ", ".join(f"`{one.label}`" for one in found)
        rows.append(["evaluation", task, Prose(labels, tuple(one.file for one in found)) if found else NOT_RUN])
    for part in PARTS:
        if bench is None or part not in bench.data:
            rows.append(["benchmark", part, NOT_RUN])
        elif "left_out" in bench.get(part):
            rows.append(["benchmark", part, bench.figure(part, "left_out", form=lambda why: f"left out: {why}")])
        else:
            rows.append(["benchmark", part, Prose(f"`{bench.label}`", (bench,))])
    return table(["result", "of", "file"], rows)


def metadata(subject: Subject, evaluations: Sequence[Evaluation]) -> ModelCardData:
    """Its YAML block. ``datasets`` is left out: on the Hub it means what a model was trained on."""
    results = [result for one in evaluations for result in eval_results(one)]
    several = len(subject.base_model) > 1
    return ModelCardData(
        language=[*subject.language],
        license="apache-2.0",
        library_name="hf_lossy",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "lossy-verification", "hf_lossy"],
        metrics=["accuracy", "block_efficiency"],
        base_model=[*subject.base_model] if several else subject.base_model[0] if subject.base_model else None,
        # unless told, the Hub takes a card with two base models for a merge; of its relations (adapter, merge, quantized,
        # finetune) this is the one that leaves the weights alone
        base_model_relation="adapter" if subject.base_model else None,
        model_name=f"hf-lossy-{subject.name}" if results else None,
        eval_results=results or None,
    )


def eval_results(one: Evaluation) -> list[EvalResult]:
    """Score and block efficiency of every method."""
    task = task_named(one.task)
    found: list[EvalResult] = []
    about = {
        "dataset_type": task.dataset or task.name,
        "dataset_name": task.name,
        "dataset_config": task.subset,
        "dataset_split": task.split if task.dataset else None,
        "dataset_revision": task.revision,
    }
    for i, row in enumerate(one.rows):
        against = f" (against {row['baseline_name']})" if "baseline_name" in row else ""
        name = f"{row['name']}{against}, {one.label}"
        where = ("rows", i, "score")
        interval = row["score_interval"]
        found.append(
            measured(
                one.file, *where, interval=interval, metric_type="accuracy", metric_name=f"accuracy, {name}", **about
            )
        )
        if row.get("block_efficiency") is None:
            continue
        mean, half = (row["block_efficiency"][key] for key in ("mean", "half_width"))
        found.append(
            measured(
                one.file,
                *("rows", i, "block_efficiency", "mean"),
                interval=None if half is None else [mean - half, mean + half],
                metric_type="block_efficiency",
                metric_name=f"block efficiency, {name}",
                **about,
            )
        )
    return found
