"""EAGLE-3 heads: five producers' formats, against an independent step-by-step evaluation; the training-time test."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy import LossyError
from hf_lossy.eagle3 import Eagle3Config, Eagle3Head, HeadCache, load_head, save_speculators
from hf_lossy.eagle3.training import losses, unrolled

V, DV, H, LAYERS, HEADS, GROUPS, DIM, MLP = 40, 12, 32, 6, 4, 2, 8, 48
TAPS = [1, 3, 5]  # hidden_states indices


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        intermediate_size=MLP,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    return LlamaForCausalLM(config).double().eval()


def tensors(seed=1, hidden=H, **extra):
    """A random head's tensors under the names of `layers.0.`, and the target ids of its draft tokens."""
    g = torch.Generator().manual_seed(seed)

    def w(*shape):
        return torch.randn(*shape, generator=g) / math.sqrt(shape[-1])

    def norm(n):
        return 1 + 0.2 * torch.randn(n, generator=g)

    layer = {
        "hidden_norm.weight": norm(hidden),
        "input_layernorm.weight": norm(hidden),
        "post_attention_layernorm.weight": norm(hidden),
        "self_attn.q_proj.weight": w(HEADS * DIM, 2 * hidden),
        "self_attn.k_proj.weight": w(GROUPS * DIM, 2 * hidden),
        "self_attn.v_proj.weight": w(GROUPS * DIM, 2 * hidden),
        "self_attn.o_proj.weight": w(hidden, HEADS * DIM),
        "mlp.gate_proj.weight": w(MLP, hidden),
        "mlp.up_proj.weight": w(MLP, hidden),
        "mlp.down_proj.weight": w(hidden, MLP),
    }
    ids = torch.randperm(V, generator=g)[:DV].sort().values
    top = {
        "fc.weight": w(hidden, len(TAPS) * H),
        "norm.weight": norm(hidden),
        "lm_head.weight": w(DV, hidden),
        "d2t": ids - torch.arange(DV),
    }
    if extra.get("fc_norm"):
        top |= {f"fc_norm.{i}.weight": norm(H) for i in range(len(TAPS))}
    if extra.get("input_norm"):
        top["input_norm.weight"] = norm(len(TAPS) * H)
    if extra.get("qk_norm"):
        layer |= {"self_attn.q_norm.weight": norm(DIM), "self_attn.k_norm.weight": norm(DIM)}
    return top, layer, ids


def t2d(ids):
    mask = torch.zeros(V, dtype=torch.bool)
    mask[ids] = True
    return mask


GEOMETRY = {
    "hidden_size": H,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "intermediate_size": MLP,
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "draft_vocab_size": DV,
}
A_IDS = [t - 1 for t in TAPS]  # "output of layer i"


def write(folder, producer, seed=1, **extra):
    """A checkpoint as a producer writes it, and the choices it implies."""
    top, layer, ids = tensors(seed, **extra)
    prefix = "layers.0." if producer == "speculators" else "midlayer."
    state = {**top, **{prefix + k: v for k, v in layer.items()}}
    choices = {"theta": 10000.0, "nbr": False, "post": False, **extra}
    if producer == "speculators":
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": {**GEOMETRY, "model_type": "llama", "rope_theta": 700.0},
            "draft_vocab_size": DV,
            "norm_before_residual": True,
            "norm_output": bool(extra.get("post")),
            "eagle_aux_hidden_state_layer_ids": TAPS,
        }
        state |= {"t2d": t2d(ids), "embed_tokens.weight": torch.randn(V, H, generator=torch.Generator().manual_seed(9))}
        choices |= {"theta": 700.0, "nbr": True, "own": state["embed_tokens.weight"]}
    elif producer == "safeailab":
        config = {**GEOMETRY, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        state["t2d"] = t2d(ids)
    elif producer == "specforge":
        config = {**GEOMETRY, "architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 700.0}
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": A_IDS}
        config["norm_output"] = True  # here it only says that a norm stands before lm_head
        state["t2d"] = t2d(ids)
        choices["theta"] = 700.0
    elif producer == "angelslim":
        config = {**GEOMETRY, "architectures": ["Eagle3LlamaForCausalLM"], "rope_theta": 1e6, "head_dim": 5}
        config |= {"aux_hidden_states_layer_ids": A_IDS, "tie_word_embeddings": True}
        state["t2d"] = t2d(ids)
    else:  # modelopt: no t2d, ids by frequency
        order = torch.randperm(DV, generator=torch.Generator().manual_seed(3))
        ids = ids[order]
        state["d2t"] = ids - torch.arange(DV)
        config = {**GEOMETRY, "architectures": ["LlamaForCausalLMEagle3"]}
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": A_IDS,
            "use_input_layernorm_in_first_layer": True,
            "next_layer_regular": True,
        }
        config["rope_scaling"] = {"type": "linear", "factor": 2.0}
        choices["scale"] = 2.0
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if producer == "safeailab":
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    return top, layer, ids, choices


def rms(x, w, eps=1e-5):
    return x / (x.pow(2).mean() + eps).sqrt() * w


def rotate(x, position, theta, scale=1.0):
    """Rotary embedding of one head's vector, written out."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position / scale * theta ** (-2 * i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[half + i] = x[i] * c - x[half + i] * s, x[half + i] * c + x[i] * s
    return out


def step_by_step(top, layer, choices, embedding, features, tokens, positions):
    """Rows one after the other, each attending to all before it, with loops instead of a cache; y of each row."""
    top = {k: v.double() for k, v in top.items()}
    layer = {k: v.double() for k, v in layer.items()}
    keys, values, ys = [], [], []
    for feature, token, position in zip(features, tokens, positions, strict=True):
        g = ys[-1] if feature is None else feature
        if feature is None and choices.get("post"):
            g = rms(g, top["norm.weight"])
        if feature is not None:
            parts = list(feature.split(H))
            if choices.get("fc_norm"):
                parts = [rms(part, top[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)]
            joined = torch.cat(parts)
            if choices.get("input_norm"):
                joined = rms(joined, top["input_norm.weight"])
            g = top["fc.weight"] @ joined
        normed = rms(g, layer["hidden_norm.weight"])
        if choices.get("double"):
            normed = rms(rms(g, layer["input_layernorm.weight"]), layer["hidden_norm.weight"])
        x = torch.cat([rms(embedding[token].double(), layer["input_layernorm.weight"]), normed])
        q, k, v = (layer[f"self_attn.{n}_proj.weight"] @ x for n in "qkv")
        q, k, v = q.view(HEADS, DIM), k.view(GROUPS, DIM), v.view(GROUPS, DIM)
        if choices.get("qk_norm"):
            q = torch.stack([rms(h, layer["self_attn.q_norm.weight"]) for h in q])
            k = torch.stack([rms(h, layer["self_attn.k_norm.weight"]) for h in k])
        scale = choices.get("scale", 1.0)
        q = torch.stack([rotate(h, position, choices["theta"], scale) for h in q])
        keys.append(torch.stack([rotate(h, position, choices["theta"], scale) for h in k]))
        values.append(v)
        heads = []
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            scores = torch.stack([q[h] @ key[group] for key in keys]) / math.sqrt(DIM)
            weights = scores.softmax(0)
            heads.append(sum(w * value[group] for w, value in zip(weights, values, strict=True)))
        a = (normed if choices["nbr"] else g) + layer["self_attn.o_proj.weight"] @ torch.cat(heads)
        m = rms(a, layer["post_attention_layernorm.weight"])
        gate = layer["mlp.gate_proj.weight"] @ m
        ys.append(a + layer["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * (layer["mlp.up_proj.weight"] @ m)))
    return [top["lm_head.weight"] @ rms(y, top["norm.weight"]) for y in ys]


def head_logits(head, target, text, drafted):
    """The head itself: the text's rows in one pass, then a chain over the drafted tokens with its cache."""
    with torch.no_grad():
        states = target(text, output_hidden_states=True).hidden_states
        taps = torch.cat([states[t] for t in head.config.taps], -1)
        rows, cache = text.shape[1] - 1, HeadCache()
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()
        y = head(head.features(taps[:, :-1]), text[:, 1:], torch.arange(rows)[None], cache, mask)
        out = [head.logits(y)[0]]
        for i, token in enumerate(drafted):
            y = head(head.feedback(y[:, -1:]), torch.tensor([[token]]), torch.tensor([[rows + i]]), cache)
            out.append(head.logits(y)[0])
    return torch.cat(out), taps


VARIANTS = [
    ("safeailab", {}),
    ("specforge", {}),
    ("specforge", {"fc_norm": True}),
    ("speculators", {}),
    ("speculators", {"post": True, "qk_norm": True}),
    ("angelslim", {}),
    ("modelopt", {"input_norm": True}),
]


@pytest.mark.parametrize(("producer", "extra"), VARIANTS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_every_format_gives_the_logits_of_a_step_by_step_evaluation(producer, extra, target, tmp_path):
    top, layer, ids, choices = write(tmp_path / "head", producer, **extra)
    more = {"tap_layers": TAPS} if producer == "safeailab" else {}  # its files name no layers
    head = load_head(tmp_path / "head", target, **more)
    assert head.config.producer == producer
    assert head.config.taps == TAPS
    assert torch.equal(head.draft_to_target, ids)
    text, drafted = torch.tensor([[3, 17, 5, 22, 8]]), [9, 30, 1]
    found, taps = head_logits(head, target, text, drafted)
    embedding = choices.get("own", target.get_input_embeddings().weight.detach())
    rows = [*taps[0, :-1].double(), None, None, None]
    tokens = [*text[0, 1:].tolist(), *drafted]
    expected = step_by_step(top, layer, choices, embedding, rows, tokens, range(len(rows)))
    # float32 head weights in a float64 head; the RMS norms and the final logits are computed in float32
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=2e-5, rtol=2e-5)


def test_overrides_change_what_they_name(target, tmp_path):
    top, layer, _, choices = write(tmp_path / "head", "safeailab")
    text, embedding = torch.tensor([[3, 17, 5, 22, 8]]), target.get_input_embeddings().weight.detach()
    for override, changed in (
        ({"rope_theta": 50.0}, {"theta": 50.0}),
        ({"norm_before_residual": True}, {"nbr": True}),
        ({"double_norm": True}, {"double": True}),
        ({"feedback": "post_norm"}, {"post": True}),
    ):
        head = load_head(tmp_path / "head", target, tap_layers=TAPS, **override)
        found, taps = head_logits(head, target, text, [9, 30])
        rows, tokens = [*taps[0, :-1].double(), None, None], [*text[0, 1:].tolist(), 9, 30]
        expected = torch.stack(step_by_step(top, layer, {**choices, **changed}, embedding, rows, tokens, range(6)))
        plain = torch.stack(step_by_step(top, layer, choices, embedding, rows, tokens, range(6)))
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
        assert (expected - plain).abs().max() > 1e-3


def test_tap_conventions(target, tmp_path):
    write(tmp_path / "head", "specforge")
    assert load_head(tmp_path / "head", target).config.taps == TAPS
    assert load_head(tmp_path / "head", target, tap_convention="input").config.taps == A_IDS
    assert load_head(tmp_path / "head", target, tap_layers=[2, 3, 4]).config.taps == [2, 3, 4]
    assert load_head(tmp_path / "head", target, tap_layers=[2, 3, 4], tap_convention="output").config.taps == [3, 4, 5]


def test_own_format_and_speculators_round_trip(target, tmp_path):
    write(tmp_path / "head", "specforge", fc_norm=True)
    head = load_head(tmp_path / "head", target)
    head.save_pretrained(tmp_path / "own")
    save_speculators(head, tmp_path / "spec", "some/target")
    text = torch.tensor([[3, 17, 5, 22, 8]])
    expected, _ = head_logits(head, target, text, [9])
    for folder in ("own", "spec"):
        again = load_head(tmp_path / folder, target)
        assert again.config.taps == head.config.taps
        torch.testing.assert_close(head_logits(again, target, text, [9])[0], expected)
    assert Eagle3Head.from_pretrained(tmp_path / "own", target).config.producer == "specforge"


def broken(tmp_path, target, edit, producer="specforge", **choices):
    write(tmp_path / "head", producer)
    path = tmp_path / "head" / "model.safetensors"
    state = load_file(path)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    edit(state, config)
    save_file(state, path)
    (tmp_path / "head" / "config.json").write_text(json.dumps(config))
    with pytest.raises(LossyError) as error:
        load_head(tmp_path / "head", target, **choices)
    return str(error.value)


def test_damaged_and_mislabelled_checkpoints(target, tmp_path):
    def drop(name):
        return lambda state, config: state.pop(name)

    def put(name, value):
        return lambda state, config: state.__setitem__(name, value)

    assert "no d2t" in broken(tmp_path, target, lambda s, c: (s.pop("d2t"), s.pop("t2d")), producer="specforge")
    assert "d2t" in broken(tmp_path, target, put("d2t", torch.zeros(DV, dtype=torch.long)))  # with t2d elsewhere
    assert "different target ids below 40" in broken(tmp_path, target, put("d2t", torch.full((DV,), V)))
    # ids where offsets belong
    assert "offsets" in broken(tmp_path, target, put("d2t", torch.arange(28, 28 + DV)))
    assert "missing norm.weight" in broken(tmp_path, target, drop("norm.weight"))
    assert "unexpected extra.weight" in broken(tmp_path, target, put("extra.weight", torch.zeros(2)))
    assert "up_proj.weight is (3, 32), expected (48, 32)" in broken(
        tmp_path, target, put("midlayer.mlp.up_proj.weight", torch.zeros(3, H))
    )
    assert "another target" in broken(tmp_path, target, put("fc.weight", torch.zeros(H, 70)))
    assert "tap_layers" in broken(
        tmp_path, target, lambda s, c: c["eagle_config"].clear()
    )  # the default has 3 taps: [2,3,3]
    assert "no EAGLE-3 head" in broken(tmp_path, target, drop("midlayer.hidden_norm.weight"))
    assert "expected 'eagle3'" in broken(
        tmp_path, target, lambda s, c: c.__setitem__("speculators_model_type", "dflash"), producer="speculators"
    )
    assert "pass producer=" in broken(tmp_path, target, lambda s, c: c.__setitem__("architectures", ["Odd"]))
    assert "unknown tap_convention 'inputs'" in broken(tmp_path, target, lambda s, c: None, tap_convention="inputs")


def test_truncated_and_missing_files(target, tmp_path):
    write(tmp_path / "head", "specforge")
    file = tmp_path / "head" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LossyError, match="truncated or damaged"):
        load_head(tmp_path / "head", target)
    file.unlink()
    with pytest.raises(LossyError, match=r"neither model.safetensors nor pytorch_model.bin"):
        load_head(tmp_path / "head", target)
    with pytest.raises(LossyError, match="is no folder"):
        load_head(tmp_path / "none", target)


def test_another_target_is_refused(target, tmp_path):
    write(tmp_path / "head", "specforge")
    load_head(tmp_path / "head", target).save_pretrained(tmp_path / "own")
    wide = LlamaForCausalLM(LlamaConfig(**{**target.config.to_dict(), "vocab_size": V + 1}))
    with pytest.raises(LossyError, match="vocabulary 40, this one has 41"):
        load_head(tmp_path / "own", wide)


def test_training_steps_are_the_inference_chain_on_the_same_tokens(target, tmp_path):
    write(tmp_path / "head", "specforge")
    head = load_head(tmp_path / "head", target)
    text = torch.tensor([[3, 17, 5, 22, 8, 30, 11, 2]])
    with torch.no_grad():
        states = target(text, output_hidden_states=True).hidden_states
        taps = torch.cat([states[t] for t in TAPS], -1)
        steps = unrolled(head, taps, text, 4)
        assert [s.shape[1] for s in steps] == [7, 6, 5, 4]
        for row in range(4):  # a chain from each row, over the text's own tokens
            chain, _ = head_logits(head, target, text[:, : row + 2], text[0, row + 2 : row + 5].tolist())
            for k in range(4):
                torch.testing.assert_close(steps[k][0, row], chain[row + k], atol=1e-5, rtol=1e-5)


def test_the_loss_looks_at_the_right_positions(target, tmp_path):
    """A target whose every logit row names the position: the loss of row t, step k must be that of position t + 1 + k."""
    write(tmp_path / "head", "specforge")
    head = load_head(tmp_path / "head", target)
    text = torch.tensor([[3, 17, 5, 22, 8, 30]])
    with torch.no_grad():
        states = target(text, output_hidden_states=True).hidden_states
        taps = torch.cat([states[t] for t in TAPS], -1)
        goal = torch.randn(1, 6, DV, generator=torch.Generator().manual_seed(4))
        kept = torch.tensor([[True, False, True, True, False, True]])
        values = losses(head, taps, text, goal[kept], kept, 3)
        steps = unrolled(head, taps, text, 3)
    for k, value in enumerate(values):
        rows = [t for t in range(5 - k) if kept[0, t + 1 + k]]
        each = [-(goal[0, t + 1 + k].softmax(-1) * steps[k][0, t].log_softmax(-1)).sum() for t in rows]
        torch.testing.assert_close(value.float(), torch.stack(each).mean().float())


def test_config_is_readable():
    config = Eagle3Config(vocab_size=10, draft_vocab_size=4, hidden_size=8, num_attention_heads=2)
    assert (config.head_dim, config.num_key_value_heads, config.target_hidden_size) == (4, 2, 8)
    assert config.rope_parameters["rope_theta"] == 10000.0
