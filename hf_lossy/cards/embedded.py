"""The model card of the embedded target and its drafts, from the ``training.json`` beside each."""

from __future__ import annotations

from collections.abc import Sequence

from huggingface_hub import ModelCardData

from .build import CONTACT, PAPERS, Card, build, measured
from .figures import Figure, File, bullets, code, fill, table

CODE = """
import hf_lossy

target, draft, tokenizer = hf_lossy.embedded.load("arithmetic", draft="natural")
inputs = tokenizer("14 4 1 1 21 :", return_tensors="pt", return_token_type_ids=False)
out = hf_lossy.generate(target, **inputs, assistant_model=draft, verification="lossless", max_new_tokens=24)
print(tokenizer.decode(out[0]))
"""
ACCURACY = "accuracy_t"


def embedded_card(name: str, models: Sequence[File]) -> Card:
    """The card of an embedded pair.

    Args:
        name: of the pair.
        models: the ``training.json`` of the target and of each draft, as ``recipes/train_embedded.py`` writes them.
    """
    accuracies = [key for key in models[0].data if key.startswith(ACCURACY)]
    problems = models[0].figure(accuracies[0], "problems", form=",")
    shape = ("layers", "hidden", "mlp", "heads")
    return build(
        f"The embedded {name} models",
        metadata(name, models, accuracies),
        {
            "summary": fill(
                "A tiny target and its drafts, which ship inside hf_lossy so that everything can be tried without the Hub."
            ),
            "description": fill(
                "Llama models over a vocabulary of words that add five numbers modulo thirty-two with written-out working "
                "(clock sums). The draft natural learnt the target's own corpus with one layer. The draft shortcut learnt a "
                "corpus that likes a risky legal short cut: a planted bias, whose effects are large and show the mechanism, "
                "not the size."
            )
            + table(
                ["model", "parameters", *shape],
                [
                    [
                        file.figure("model"),
                        file.figure("parameters", form=","),
                        *(file.figure("preset", part) for part in shape),
                    ]
                    for file in models
                ],
            ),
            "sources": bullets(
                fill("Code: hf_lossy/embedded, recipes/train_embedded.py"), fill("Laws: {paper}", paper=PAPERS["laws"])
            ),
            "direct_use": fill("Trying, testing and explaining verification laws, where wrong answers can be counted."),
            "downstream_use": fill("A target for small experiments, such as training an EAGLE-3 head in minutes."),
            "out_of_scope": bullets(
                fill("Any text but clock sums."),
                fill("Conclusions about the size of an effect on models that people use."),
                fill(
                    "Under a lossy law: roll-outs for reinforcement learning, use of the log-probabilities, and anything "
                    "else that needs the target's exact law."
                ),
            ),
            "limitations": fill(
                "One synthetic task, one target, one seed. The target makes mistakes itself; a law may raise its accuracy "
                "by sharpening its distribution, which is distortion all the same."
            ),
            "recommendations": fill("Report results of the draft shortcut as what they are: those of a planted bias."),
            "start": code(CODE),
            "training": fill(
                "Freshly generated workings in batches, AdamW, loss on the working only; recipes/train_embedded.py is the "
                "whole of it. The files don't record the processor, so that no training time is given."
            )
            + table(
                [
                    "model",
                    "steps",
                    "batch",
                    "learning rate",
                    "seed",
                    "rate of double steps in the corpus",
                    "final loss",
                ],
                [
                    [
                        file.figure("model"),
                        file.figure("preset", "steps", form=","),
                        file.figure("preset", "batch"),
                        file.figure("preset", "lr", form="g"),
                        file.figure("seed"),
                        file.figure("preset", "corpus", "double_rate", form="g"),
                        file.figure("final_loss", form=".3f"),
                    ]
                    for file in models
                ],
            ),
            "testing_data": fill("{problems} clock sums a model and temperature.", problems=problems),
            "factors": fill("The model, and the temperature."),
            "metrics": fill("Share of right final answers, each model alone; ± half of a 95 % interval."),
            "results": table(
                ["model", *(_temperature(models[0], key) for key in accuracies)],
                [
                    [
                        file.figure("model"),
                        *(
                            file.figure(
                                key,
                                form=lambda found: (
                                    f"{100 * found['accuracy']:.1f} ± {100 * found['half_width_95']:.1f} %"
                                ),
                            )
                            for key in accuracies
                        ),
                    ]
                    for file in models
                ],
            ),
            "environment": fill("Trained on a CPU. Energy and emissions were not measured."),
            "specifications": fill(
                "Trained with torch {torch} and transformers {transformers}; weights in safetensors.",
                torch=models[0].figure("torch"),
                transformers=models[0].figure("transformers"),
            ),
            "citation": fill("{paper}", paper=PAPERS["laws"]),
            "contact": CONTACT,
        },
    )


def metadata(name: str, models: Sequence[File], accuracies: Sequence[str]) -> ModelCardData:
    """Its YAML block. Data sets are left out: none of the Hub's was used."""
    return ModelCardData(
        language="en",
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "hf_lossy"],
        metrics=["accuracy"],
        model_name=f"hf-lossy-{name}",
        eval_results=[
            measured(
                file,
                *(key, "accuracy"),
                interval=_interval(file, key),
                dataset_type="clock_sums",
                dataset_name="Clock sums",
                metric_type="accuracy",
                metric_name=f"accuracy of {file.get('model')} at T = {key.removeprefix(ACCURACY)}",
            )
            for file in models
            for key in accuracies
        ],
    )


def _interval(file: File, key: str) -> list[float]:
    middle, half = file.get(key, "accuracy"), file.get(key, "half_width_95")
    return [middle - half, middle + half]


def _temperature(file: File, key: str) -> Figure:
    return Figure(f"right at T = {key.removeprefix(ACCURACY)}", file)
