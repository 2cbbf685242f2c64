# /// script
# requires-python = ">=3.10"
# dependencies = ["hf-lossy"]
# ///
"""Train the embedded models: a deep, narrow target and two one-layer drafts on clock sums.

    python recipes/train_embedded.py target --out hf_lossy/embedded/models/arithmetic
    python recipes/train_embedded.py draft-natural --out ...
    python recipes/train_embedded.py draft-shortcut --out ...

Each run trains one model on freshly generated workings (the loss is on the working only), keeps a checkpoint so that an
interrupted run goes on where it was, and writes bfloat16 weights, the tokenizer and `training.json` (settings, time,
accuracy with its interval). One thread is fastest at this size; a run prints its progress and the time left.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import time
from dataclasses import asdict, dataclass

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_lossy.embedded import clock_sums


@dataclass(frozen=True)
class Preset:
    """One model: its shape, its corpus and how long it trains."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    steps: int
    lr: float
    corpus: clock_sums.Corpus
    batch: int = 64
    warmup: int = 80


PRESETS = {
    "target": Preset(14, 96, 256, 4, 6000, 2e-3, clock_sums.TARGET_CORPUS),
    "draft-natural": Preset(1, 64, 192, 4, 4000, 4e-3, clock_sums.TARGET_CORPUS),
    "draft-shortcut": Preset(1, 64, 192, 4, 4000, 4e-3, clock_sums.SHORTCUT_CORPUS),
}
IDS = {word: i for i, word in enumerate(clock_sums.WORDS)}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One word, one token; `<bos>` is added in front."""
    core = Tokenizer(models.WordLevel(dict(IDS), unk_token=clock_sums.PAD))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single=f"{clock_sums.BOS} $A", special_tokens=[(clock_sums.BOS, IDS[clock_sums.BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=clock_sums.BOS,
        eos_token=clock_sums.EOS,
        pad_token=clock_sums.PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def make_model(preset: Preset) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(clock_sums.WORDS),
        hidden_size=preset.hidden,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.heads,
        intermediate_size=preset.mlp,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        bos_token_id=IDS[clock_sums.BOS],
        eos_token_id=IDS[clock_sums.EOS],
        pad_token_id=IDS[clock_sums.PAD],
        tie_word_embeddings=False,
        initializer_range=0.5 / math.sqrt(preset.hidden),
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # residual branches start small, so that depth does not blow up the stream
        for layer in model.model.layers:
            for out in (layer.self_attn.o_proj, layer.mlp.down_proj):
                out.weight.mul_(1 / math.sqrt(2 * preset.layers))
    return model


def batch(preset: Preset, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, T] and labels [B, T], -100 on the prompt and the padding."""
    rows = []
    for _ in range(preset.batch):
        operands = clock_sums.problem(rng)
        words = clock_sums.BOS, *map(str, operands), clock_sums.COLON, *preset.corpus.working(operands, rng)
        rows.append([IDS[w] for w in words])
    longest, pad = max(map(len, rows)), IDS[clock_sums.PAD]
    ids = torch.tensor([r + [pad] * (longest - len(r)) for r in rows])
    labels = ids.masked_fill(ids == pad, -100)
    labels[:, : clock_sums.OPERANDS + 2] = -100
    return ids, labels


@torch.inference_mode()
def accuracy(model: LlamaForCausalLM, temperature: float, count: int = 2000, seed: int = 12345) -> dict[str, float]:
    """Share of right answers on `count` problems that training has not seen in this order, with the 95 % half-width."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    sums = clock_sums.problems(count, seed)
    right = 0
    for start in range(0, count, 500):
        part = sums[start : start + 500]
        inputs = tokenizer([clock_sums.prompt(s) for s in part], return_tensors="pt", return_token_type_ids=False)
        out = model.generate(
            **inputs, do_sample=True, temperature=temperature, top_k=0, max_new_tokens=clock_sums.MAX_NEW_TOKENS
        )
        texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :])
        right += sum(clock_sums.is_correct(s, t) for s, t in zip(part, texts, strict=True))
    share = right / count
    return {"accuracy": share, "half_width_95": 1.96 * math.sqrt(share * (1 - share) / count), "problems": count}


def train(name: str, out: pathlib.Path, steps: int | None, seed: int) -> None:
    preset = PRESETS[name]
    total = steps or preset.steps
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = make_model(preset).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=preset.lr,
        betas=(0.9, 0.98),
    )

    def rate(step: int) -> float:  # warm-up, constant, then linear to zero over the second half
        return min(1.0, (step + 1) / preset.warmup) * min(1.0, 2 * (total - step) / total)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    folder, done, spent = out / name, 0, 0.0
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        rng.setstate(state["rng"])
        done, spent = state["step"], state["seconds"]
        print(f"{name}: going on at step {done}")
    folder.mkdir(parents=True, exist_ok=True)
    began, running = time.time() - spent, None
    for step in range(done, total):
        ids, labels = batch(preset, rng)
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            seconds = time.time() - began
            left = seconds / (step + 1) * (total - step - 1)
            print(f"{name}: step {step + 1}/{total} loss {running:.4f} {seconds:.0f} s, {left:.0f} s left", flush=True)
        if (step + 1) % 500 == 0 and step + 1 < total:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
            state |= {"schedule": schedule.state_dict(), "rng": rng.getstate(), "seconds": time.time() - began}
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
    seconds = time.time() - began
    model.eval().to(torch.bfloat16)
    model.generation_config.eos_token_id = IDS[clock_sums.EOS]
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    model.float()  # the shipped weights, as they are loaded
    report = {
        "model": name,
        "preset": {**asdict(preset), "steps": total},
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "final_loss": running,
        "training_seconds": round(seconds),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accuracy_t1.0": accuracy(model, 1.0),
        "accuracy_t0.7": accuracy(model, 0.7),
    }
    (folder / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    checkpoint.unlink(missing_ok=True)
    print(json.dumps(report, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(PRESETS))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("hf_lossy/embedded/models/arithmetic"))
    parser.add_argument("--steps", type=int, default=None, help="training steps (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args.model, args.out, args.steps, args.seed)


if __name__ == "__main__":
    main()
