# /// script
# requires-python = ">=3.10"
# dependencies = ["hf_lossy[train]", "numpy"]
# ///
"""Train an EAGLE-3 head for a Llama-, Qwen- or Mistral-type target on dialogues that the target wrote itself.

    python recipes/sample_dialogues.py --target smollm2 --tokens 1000000 --out data/smollm2      # the text
    python recipes/train_eagle3.py --target smollm2 --data data/smollm2 --out heads/smollm2      # the head

The target's tapped and final hidden states are computed once and cached beside the data. The draft vocabulary is the most
frequent answer tokens. Training is EAGLE-3's training-time test with soft cross-entropy (hf_lossy/eagle3/training.py); the
head starts from the target's last layer. An interrupted run goes on from its last checkpoint; at the end the head, its
held-out acceptance by step and the settings are written.

The defaults are the CPU preset for targets around 100M parameters (bfloat16 matrix products, a small batch, four steps).
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy.eagle3 import Eagle3Config, Eagle3Head
from hf_lossy.eagle3.training import losses
from hf_lossy.loading import load_model, load_pair
from hf_lossy.provenance import provenance, write_json


@torch.inference_mode()
def cache_states(model: PreTrainedModel, folder: pathlib.Path, taps: list[int], batch: int) -> list[pathlib.Path]:
    """Joined taps and final hidden states of every shard, in bfloat16, computed where they are not there yet."""
    paths = []
    for shard in sorted(folder.glob("shard-*.npz")):
        path = shard.with_name(shard.name.replace("shard", "states").replace(".npz", ".safetensors"))
        paths.append(path)
        if path.exists():
            continue
        ids = torch.from_numpy(np.load(shard)["ids"].astype(np.int64))
        joined, final = [], []
        for part in ids.split(batch):
            states = model.model(input_ids=part, use_cache=False, output_hidden_states=True).hidden_states
            joined.append(torch.cat([states[t] for t in taps], -1).to(torch.bfloat16))
            final.append(states[-1].to(torch.bfloat16))
        temporary = path.with_suffix(".tmp")
        save_file({"taps": torch.cat(joined), "final": torch.cat(final)}, temporary)
        temporary.replace(path)
        print(f"{path.name}: {ids.numel()} tokens", flush=True)
    return paths


def draft_vocabulary(folder: pathlib.Path, vocab: int, size: int) -> tuple[Tensor, float]:
    """The most frequent answer tokens, ascending, and the share of answer tokens they cover."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for shard in sorted(folder.glob("shard-*.npz"))[:-1]:  # the last one is held out
        data = np.load(shard)
        counts += torch.bincount(torch.from_numpy(data["ids"][data["answer"]].astype(np.int64)), minlength=vocab)
    size = min(size, vocab)
    kept = counts.topk(size).indices.sort().values  # padded with ids that never came, should there be fewer
    return kept, float(counts[kept].sum() / counts.sum())


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
            mine[:, hidden:] += getattr(last.self_attn, name).weight
        layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
        layer.mlp.load_state_dict(last.mlp.state_dict())
        layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.borrow_embedding(target)
    return head.float()


def batches(folder: pathlib.Path, paths: list[pathlib.Path], rows: int, rng: np.random.Generator):
    """Endless batches of (ids, answer mask, taps, final states), shards in random order."""
    while True:
        for i in rng.permutation(len(paths)):
            data = np.load(folder / paths[i].name.replace("states", "shard").replace(".safetensors", ".npz"))
            states = load_file(paths[i])
            order = rng.permutation(len(data["ids"]))
            for start in range(0, len(order) - rows + 1, rows):
                take = order[start : start + rows]
                yield (
                    torch.from_numpy(data["ids"][take].astype(np.int64)),
                    torch.from_numpy(data["answer"][take]),
                    states["taps"][take],
                    states["final"][take],
                )


def goals(lm_rows: Tensor, whole: Tensor, kept: Tensor, answer: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """The target's logits over the draft vocabulary, and the positions that count: an answer token follows and the
    target's argmax over everything is one the head can draft."""
    small = (final @ lm_rows.T).float()
    best = (final @ whole.T).argmax(-1)
    reachable = torch.zeros(whole.shape[0], dtype=torch.bool)
    reachable[kept] = True
    follows = torch.zeros_like(answer)
    follows[:, :-1] = answer[:, 1:]
    return small, follows & reachable[best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2", help="a pair's name, a Hub id, a folder or a .gguf file")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="shards of sample_dialogues.py")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--draft-vocab", type=int, default=6144)
    parser.add_argument("--taps", type=int, nargs="+", help="hidden_states indices (default 2, N/2, N-3)")
    parser.add_argument("--steps", type=int, default=4, help="depth of the training-time test")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--rows", type=int, default=8, help="dialogues a batch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="plan the schedule for this long instead of --epochs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="bf16")
    if args.target == "smollm2":
        model = load_pair("smollm2", "bfloat16").target
    else:
        model, _ = load_model(args.target, "bfloat16")
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    taps = args.taps or [2, layers // 2, layers - 3]
    paths = cache_states(model, args.data, taps, 16)
    kept, coverage = draft_vocabulary(args.data, model.config.vocab_size, args.draft_vocab)
    whole = model.get_output_embeddings().weight.detach()
    head = warm_head(model.float(), taps, kept)
    del model.model.layers
    whole_bf = whole.to(torch.bfloat16)
    lm_rows = whole_bf[kept]
    train, held = paths[:-1], paths[-1:]
    per_epoch = sum(
        len(np.load(args.data / p.name.replace("states", "shard").replace(".safetensors", ".npz"))["ids"])
        for p in train
    )
    total = max(1, int(args.epochs * per_epoch / args.rows))
    optimiser = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    head, optimiser = accelerator.prepare(head, optimiser)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, done, spent = args.out / "checkpoint.pt", 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        accelerator.unwrap_model(head).load_state_dict(state["head"])
        optimiser.load_state_dict(state["optimiser"])
        done, spent, total = state["step"], state["seconds"], state["total"]
        print(f"going on at step {done} of {total}")
    rng, began = np.random.default_rng(args.seed + done), time.time() - spent
    feed, running = batches(args.data, train, args.rows, rng), None
    weights = [0.8**k for k in range(args.steps)]
    for step in range(done, 10**9):
        seconds = time.time() - began
        if args.minutes and step - done == 20:  # the first steps tell how many fit
            total = max(step + 1, int(60 * args.minutes / (seconds / (step or 1))))
        if step >= total:
            break
        for group in optimiser.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 30) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / total)) / 2)
        ids, answer, joined, final = next(feed)
        goal, mask = goals(lm_rows, whole_bf, kept, answer, final)
        with accelerator.autocast():
            values, _ = losses(accelerator.unwrap_model(head), joined, ids, goal, mask, args.steps)
            loss = sum(w * v for w, v in zip(weights, values, strict=True))
        optimiser.zero_grad(set_to_none=True)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(head.parameters(), 0.5)
        optimiser.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if (step + 1) % 20 == 0:
            seconds = time.time() - began
            left = seconds / (step + 1) * (total - step - 1)
            print(f"step {step + 1}/{total} loss {running:.3f} {seconds:.0f} s, {left:.0f} s left", flush=True)
        if (step + 1) % 100 == 0:
            state = {"head": accelerator.unwrap_model(head).state_dict(), "optimiser": optimiser.state_dict()}
            torch.save({**state, "step": step + 1, "seconds": time.time() - began, "total": total}, checkpoint)
    head = accelerator.unwrap_model(head).eval()
    hits, feed = [], batches(args.data, held, args.rows, np.random.default_rng(0))
    with torch.no_grad(), accelerator.autocast():
        for _ in range(8):
            ids, answer, joined, final = next(feed)
            goal, mask = goals(lm_rows, whole_bf, kept, answer, final)
            hits.append(torch.stack(losses(head, joined, ids, goal, mask, args.steps + 2)[1]))
    agreement = torch.stack(hits).mean(0).tolist()
    head.to(torch.bfloat16).save_pretrained(args.out)
    write_json(
        args.out / "training.json",
        {
            "settings": {k: str(v) for k, v in vars(args).items()},
            "taps": taps,
            "steps": total,
            "training_seconds": round(time.time() - began),
            "dialogues": per_epoch,
            "answer_tokens": int(sum(np.load(p)["answer"].sum() for p in sorted(args.data.glob("shard-*.npz"))[:-1])),
            "draft_vocabulary_covers": coverage,
            "final_loss": running,
            "held_out_agreement_with_the_target_by_step": agreement,
            "parameters": sum(p.numel() for p in head.parameters()),
            "provenance": provenance(),
        },
    )
    checkpoint.unlink(missing_ok=True)
    print("held-out: the head's argmax is the target's, by step:", [round(a, 3) for a in agreement])


if __name__ == "__main__":
    main()
