# /// script
# requires-python = ">=3.10"
# dependencies = ["hf-lossy[train]", "numpy"]
# ///
"""Train an EAGLE-3 head for a Llama-, Qwen- or Mistral-type target on text that the target wrote itself.

    python recipes/sample_dialogues.py --target smollm2 --tokens 1000000 --out data/smollm2      # the text
    python recipes/train_eagle3.py --target smollm2 --data data/smollm2 --out heads/smollm2      # the head

The target's tapped and final hidden states are computed once and cached beside the data. The draft vocabulary is the most
frequent answer tokens. Training is EAGLE-3's training-time test with soft cross-entropy (hf_lossy/eagle3/training.py); the
head starts from the target's last layer. An interrupted run goes on from its last checkpoint, and ends where it would have
ended. The last shards, at least a twentieth of the dialogues, are held out; at the end the head, its acceptance on them
(`training.json`) and its model card are written.

Presets set what isn't given: `cpu-100m` for targets around 100M parameters on one thread, `gpu` near the paper's settings.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy.cards import File, head_card
from hf_lossy.eagle3 import Eagle3Config, Eagle3Head, load_head
from hf_lossy.eagle3.training import losses, measured
from hf_lossy.errors import LossyError
from hf_lossy.loading import PAIRS, load_model, load_pair
from hf_lossy.provenance import provenance, write_json

PRESETS: dict[str, dict[str, Any]] = {
    "cpu-100m": {"draft_vocab": 6144, "steps": 4, "epochs": 4.0, "rows": 8, "lr": 1e-3, "threads": 1},
    "gpu": {"draft_vocab": 32000, "steps": 7, "epochs": 10.0, "rows": 16, "lr": 5e-5, "threads": 4},
}
BASE_MODELS = {
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "qwen-coder": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
}
TEMPERATURES = (1.0, 0.7)
"""At which the held-out acceptance is measured."""


# --- data ------------------------------------------------------------------------------------------------------------


def open_data(folder: pathlib.Path, target: str, vocab: int) -> tuple[list[pathlib.Path], dict[str, Any]]:
    """The shards of a folder and what its ``meta.json`` tells about them, which must be that this target wrote them."""
    shards, path = sorted(folder.glob("shard-????.npz")), folder / "meta.json"
    meta = json.loads(path.read_text()) if path.is_file() else {}
    for name, ours in (("target", target), ("vocab_size", vocab)):
        if meta.get(name, ours) != ours:
            raise LossyError(f"{folder} holds text of another target: {name} {meta[name]!r}, this one has {ours!r}")
    if len(shards) < 2:
        raise LossyError(
            f"{folder} holds {len(shards)} of the two shards or more that are needed (one is held out): run "
            f"recipes/sample_dialogues.py --target {target} --out {folder}"
        )
    highest = max(int(np.load(shard)["ids"].max()) for shard in shards)
    if highest >= vocab:
        raise LossyError(f"{folder} holds text of another target: token {highest}, and {target} has {vocab}")
    if not meta:
        meta = {"target": target, "vocab_size": vocab}
        write_json(path, meta)
    return shards, meta


def split(shards: list[pathlib.Path]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Shards to learn from and the last ones, held out: at least one, and a twentieth of the dialogues."""
    sizes = [len(np.load(shard)["ids"]) for shard in shards]
    first = max([1, *(i for i in range(1, len(shards)) if 20 * sum(sizes[i:]) >= sum(sizes))])
    return shards[:first], shards[first:]


def states_path(shard: pathlib.Path) -> pathlib.Path:
    """The file of a shard's cached states."""
    return shard.with_name(f"{shard.stem.replace('shard', 'states')}.safetensors")


@torch.inference_mode()
def cache_states(model: PreTrainedModel, shards: list[pathlib.Path], taps: list[int], batch: int) -> None:
    """Of every shard, where they are not there yet, in the target's dtype: joined taps and final hidden states, and the
    target's argmax at each position that an answer token follows, −1 elsewhere."""
    label, to_logits = {"taps": ",".join(map(str, taps))}, model.get_output_embeddings()
    missing = [shard for shard in shards if not _are_cached(states_path(shard), label, model.dtype)]
    began = time.time()
    for done, shard in enumerate(missing):
        data, joined, final, best = np.load(shard), [], [], []
        answer = torch.from_numpy(data["answer"])
        follows = torch.zeros_like(answer)
        follows[:, :-1] = answer[:, 1:]
        ids = torch.from_numpy(data["ids"].astype(np.int64))
        for part, where in zip(ids.split(batch), follows.split(batch), strict=True):
            states = model.model(
                input_ids=part.to(model.device), use_cache=False, output_hidden_states=True
            ).hidden_states
            joined.append(torch.cat([states[t] for t in taps], -1).cpu())
            final.append(states[-1].cpu())
            chunks = states[-1][where.to(model.device)].split(1024)
            best.append(torch.full_like(part, -1, dtype=torch.int32))
            best[-1][where] = torch.cat([to_logits(c).argmax(-1) for c in chunks]).int().cpu() if chunks else 0
        tensors = {"taps": torch.cat(joined), "final": torch.cat(final), "best": torch.cat(best)}
        temporary = states_path(shard).with_suffix(".tmp")
        save_file(tensors, temporary, metadata=label)
        temporary.replace(states_path(shard))
        left = (time.time() - began) / (done + 1) * (len(missing) - done - 1)
        print(f"{states_path(shard).name}: {ids.numel()} tokens, {left:.0f} s left", flush=True)


def _are_cached(path: pathlib.Path, label: dict[str, str], dtype: torch.dtype) -> bool:
    if not path.is_file():
        return False
    with safe_open(path, "pt") as file:
        return file.metadata() == label and file.get_slice("final")[:1, :1].dtype == dtype


def load(shard: pathlib.Path) -> dict[str, Tensor]:
    """Token ids, taps, final hidden states and argmax of a shard's dialogues."""
    ids = torch.from_numpy(np.load(shard)["ids"].astype(np.int64))
    return {"ids": ids, **load_file(states_path(shard))}


def batches(shards: list[pathlib.Path], rows: int, seed: int, skip: int) -> Iterator[dict[str, Tensor]]:
    """Endless batches of dialogues, without the first ``skip``: shards in random order, dialogues in random order."""
    sizes = [len(np.load(shard)["ids"]) for shard in shards]
    for epoch in itertools.count():
        rng = np.random.default_rng([seed, epoch])
        for i in rng.permutation(len(shards)):
            takes = torch.from_numpy(rng.permutation(sizes[i])).split(rows)
            takes = [take for take in takes if len(take) == rows]
            if skip < len(takes):
                data = load(shards[i])
                yield from ({name: x[take] for name, x in data.items()} for take in takes[skip:])
            skip = max(0, skip - len(takes))


def draft_vocabulary(shards: list[pathlib.Path], vocab: int, size: int) -> tuple[Tensor, float]:
    """The most frequent answer tokens, ascending, and the share of answer tokens they cover."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for shard in shards:
        data = np.load(shard)
        counts += torch.bincount(torch.from_numpy(data["ids"][data["answer"]].astype(np.int64)), minlength=vocab)
    kept = counts.topk(min(size, vocab)).indices.sort().values  # padded with ids that never came, if there are fewer
    return kept, float(counts[kept].sum() / counts.sum())


# --- the head --------------------------------------------------------------------------------------------------------


def default_taps(layers: int) -> list[int]:
    """EAGLE-3's low, middle and high layer; around the middle where there are too few layers for these to differ."""
    middle, around = layers // 2, max(1, layers // 4)
    if 2 < middle < layers - 3:
        return [2, middle, layers - 3]
    return sorted({max(middle - around, 0), middle, min(middle + around, layers - 1)})


def warm_head(target: PreTrainedModel, taps: list[int], kept: Tensor) -> Eagle3Head:
    """A head in the shape of the target's layers, started from its last one: the feature is the highest tap, and the
    attention reads its hidden half."""
    theirs, last = target.config.get_text_config(decoder=True), target.model.layers[-1]
    dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    config = Eagle3Config(
        vocab_size=theirs.vocab_size,
        draft_vocab_size=len(kept),
        hidden_size=theirs.hidden_size,
        intermediate_size=theirs.intermediate_size,
        num_attention_heads=theirs.num_attention_heads,
        num_key_value_heads=theirs.num_key_value_heads,
        head_dim=dim,
        rms_norm_eps=theirs.rms_norm_eps,
        max_position_embeddings=theirs.max_position_embeddings,
        rope_parameters=dict(theirs.rope_parameters),
        taps=taps,
        qk_norm=hasattr(last.self_attn, "q_norm"),
    )
    head, hidden = Eagle3Head(config), theirs.hidden_size
    layer = head.layers[0]
    with torch.no_grad():
        head.d2t.copy_(kept - torch.arange(len(kept)))
        head.lm_head.weight.copy_(target.get_output_embeddings().weight[kept])
        head.norm.weight.copy_(target.model.norm.weight)
        head.fc.weight.normal_(std=0.002)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        for name in ("q_proj", "k_proj", "v_proj"):
            mine = getattr(layer.self_attn, name).weight
            mine.normal_(std=0.002)
            mine[:, hidden:] += getattr(last.self_attn, name).weight.to(mine)
        layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
        layer.mlp.load_state_dict(last.mlp.state_dict())
        layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.borrow_embedding(target)
    return head.float()


def evaluate(
    head: Eagle3Head, shards: list[pathlib.Path], whole: Tensor, steps: int, accelerator: Accelerator
) -> list[dict[str, float]]:
    """How well each step drafts the answers of held-out shards (:func:`hf_lossy.eagle3.training.measured`), as means.

    Args:
        whole: the target's output embedding, [V, h].
    """
    sums, whole = torch.zeros(()), whole.float()
    for shard in shards:
        data = load(shard)
        rows = max(1, 1024 // data["ids"].shape[1])  # logits over the whole vocabulary are large
        for part in zip(*(data[name].split(rows) for name in ("ids", "taps", "final", "best")), strict=True):
            ids, taps, final, best = (x.to(accelerator.device) for x in part)
            logits = final[best >= 0].float() @ whole.T
            with accelerator.autocast():
                sums = sums + measured(head, taps, ids, logits, best >= 0, steps, TEMPERATURES).cpu().double()
    names = ["argmax", "token", *(f"accepted_t{t:g}" for t in TEMPERATURES)]
    means = (sums[:, 1:] / sums[:, :1].clamp_min(1)).tolist()
    return [{"step": k, **dict(zip(names, row, strict=True))} for k, row in enumerate(means)]


# --- training --------------------------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2", help="a pair's name, a Hub id, a folder or a .gguf file")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="shards of sample_dialogues.py")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu-100m", help="what isn't given is set by it")
    parser.add_argument("--draft-vocab", type=int)
    parser.add_argument("--taps", type=int, nargs="+", help="hidden_states indices (default 2, N/2, N-3)")
    parser.add_argument("--steps", type=int, help="depth of the training-time test")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--rows", type=int, help="dialogues a batch")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minutes", type=float, help="plan the schedule for this long instead of --epochs")
    parser.add_argument("--dtype", help="of the target (default bfloat16; arithmetic float32)")
    parser.add_argument("--precision", choices=["bf16", "no"], default="bf16", help="of the head's matrix products")
    parser.add_argument("--save-every", type=int, default=50, help="optimiser steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--license", default="apache-2.0", help="of the head, for its card")
    parser.add_argument("--base-model", help="the target's Hub id, for the card")
    args = parser.parse_args(argv)
    for name, value in PRESETS[args.preset].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.dtype = args.dtype or ("float32" if args.target.startswith("arithmetic") else "bfloat16")
    if args.base_model is None:
        hub = "/" in args.target and not pathlib.Path(args.target).exists()
        args.base_model = BASE_MODELS.get(args.target, args.target if hub else None)
    return args


def learning_rate(step: int, total: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to 2 %."""
    warm = min(1, (step + 1) / max(30, 0.015 * total))
    return peak * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * step / total)) / 2)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=args.precision)
    known = args.target in PAIRS
    target = load_pair(args.target, args.dtype).target if known else load_model(args.target, args.dtype)[0]
    config = target.config.get_text_config(decoder=True)
    shards, meta = open_data(args.data, args.target, config.vocab_size)
    taps = args.taps or default_taps(config.num_hidden_layers)
    if not all(0 <= t < config.num_hidden_layers for t in taps):
        raise LossyError(f"--taps must lie in 0 … {config.num_hidden_layers - 1}, got {taps}")
    ways = {"draft_vocab", "steps", "epochs", "minutes", "rows", "lr", "dtype", "precision", "seed"}
    settings = {name: value for name, value in vars(args).items() if name in ways} | {"taps": taps}

    checkpoint, state = args.out / "checkpoint.pt", None
    args.out.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for name, value in settings.items():
            if state["settings"][name] != value:
                raise LossyError(
                    f"{checkpoint} is of a run with {name} {state['settings'][name]}, got {value}: delete it, or choose "
                    "another --out"
                )
        shards = [args.data / name for name in state["shards"]]  # there may be more by now
    train, held = split(shards)
    per_epoch = sum(len(np.load(shard)["ids"]) // args.rows for shard in train)
    if not per_epoch:
        raise LossyError(f"the shards of {args.data} have fewer than --rows {args.rows} dialogues")

    target.to(accelerator.device).eval()
    cache_states(target, shards, taps, batch=16)
    kept, coverage = draft_vocabulary(train, config.vocab_size, args.draft_vocab)
    head = warm_head(target, taps, kept)
    whole = target.get_output_embeddings().weight.detach()
    rows = whole[kept]
    draftable = torch.zeros(config.vocab_size + 1, dtype=torch.bool)  # its last entry stands for −1: no answer follows
    draftable[kept] = True
    del target.model.layers  # done with; the embeddings are not

    total, done, spent, running = max(1, int(args.epochs * per_epoch)), 0, 0.0, None
    optimiser = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    head, optimiser = accelerator.prepare(head, optimiser)
    bare = accelerator.unwrap_model(head)
    if state is not None:
        bare.load_state_dict(state["head"])
        optimiser.load_state_dict(state["optimiser"])
        done, total, spent, running = (state[name] for name in ("step", "total", "seconds", "running"))
        print(f"going on at step {done} of {total}")
    feed, weights = batches(train, args.rows, args.seed, done), [0.8**k for k in range(args.steps)]
    began = said = time.time()
    for step in itertools.count(done):
        seconds = spent + time.time() - began
        if args.minutes and step == 20:  # the first steps tell how many fit
            total = max(step + 1, int(60 * args.minutes / (seconds / step)))
        if step >= total:
            break
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, total, args.lr)
        batch = next(feed)
        counts = draftable[batch["best"].long()].to(accelerator.device)
        ids, joined, final = (batch[name].to(accelerator.device) for name in ("ids", "taps", "final"))
        goal = final[counts] @ rows.T
        with accelerator.autocast():
            values = losses(bare, joined, ids, goal, counts, args.steps)
            loss = sum(w * v for w, v in zip(weights, values, strict=False))
        optimiser.zero_grad(set_to_none=True)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(head.parameters(), 0.5)
        optimiser.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        seconds, last = spent + time.time() - began, step + 1 == total
        if last or ((step + 1) % 20 == 0 and time.time() - said > 10):
            left, said = seconds / (step + 1) * (total - step - 1), time.time()
            print(f"step {step + 1}/{total} loss {running:.3f} {seconds:.0f} s, {left:.0f} s left", flush=True)
        if last or (step + 1) % args.save_every == 0:
            state = {"head": bare.state_dict(), "optimiser": optimiser.state_dict(), "settings": settings}
            state |= {"step": step + 1, "total": total, "seconds": seconds, "running": running}
            torch.save({**state, "shards": [shard.name for shard in shards]}, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)

    bare.to("cpu", torch.bfloat16).save_pretrained(args.out)
    saved = load_head(args.out, target, dtype=torch.float32).to(accelerator.device)  # the figures are the files'
    answers = [int(sum(np.load(shard)["answer"].sum() for shard in part)) for part in (train, held)]
    dialogues = [sum(len(np.load(shard)["ids"]) for shard in part) for part in (train, held)]
    report = {
        "target": args.target,
        "base_model": args.base_model,
        "license": args.license,
        "parameters": sum(p.numel() for p in saved.parameters()),
        "taps": taps,
        "draft_vocabulary": {"size": len(kept), "of": config.vocab_size, "covers": coverage},
        "data": {
            "how": meta.get("how", "text of the target, sampled in a way that its folder does not tell"),
            "dialogues": dialogues[0],
            "answer_tokens": answers[0],
            "held_out_dialogues": dialogues[1],
            "held_out_answer_tokens": answers[1],
            "length": int(np.load(train[0])["ids"].shape[1]),
        },
        "settings": {"preset": args.preset, **settings},
        "optimiser_steps": total,
        "epochs": total / per_epoch,
        "training_seconds": round(seconds),
        "final_loss": running,
        "held_out": evaluate(saved, held, whole, args.steps + 2, accelerator),
        "provenance": provenance(),
    }
    write_json(args.out / "training.json", report)
    (args.out / "README.md").write_text(str(head_card(File(args.out / "training.json"))), encoding="utf-8")
    checkpoint.unlink(missing_ok=True)
    for row in report["held_out"]:
        print("held out,", ", ".join(f"{k} {v:.3f}" if k != "step" else f"step {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
