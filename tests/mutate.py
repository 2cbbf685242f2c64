"""Put known bugs back one at a time, and see that the tests turn red.

    python tests/mutate.py [words]     # the bugs whose name has all the words, else all

A bug is a replacement in one file of a copy of the package, and the tests that must notice it. Add to BUGS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAWS, COUPLINGS = ("tests/test_laws.py",), ("tests/test_couplings.py",)
EAGLE = ("tests/test_eagle3_drafting.py",)
ANALYSIS = ("tests/test_analysis.py",)
BATCH, SCHEDULE = ("tests/test_batch.py", "tests/test_ragged.py"), ("tests/test_schedule.py",)
SAMPLING, GREEDY, CACHES = ("tests/test_sampling_law.py",), ("tests/test_greedy.py",), ("tests/test_caches.py",)
DEMO, COMPILING = ("tests/test_demo.py",), ("tests/test_compiling.py",)
STOPPING, STATISTICS, ERRORS = ("tests/test_stopping.py",), ("tests/test_statistics.py",), ("tests/test_errors.py",)
HUB, LOOKUP = ("tests/test_hub.py",), ("tests/test_prompt_lookup.py",)
NEXT_ROW = tuple(
    f"tests/test_cards.py::test_a_{what}"
    for what in ("matched_baseline_stands_in_the_next_row", "baseline_that_was_not_run_is_named")
)
BARE = ("tests/test_cards.py::test_a_figure_without_a_file_is_refused",)
NAMED = tuple(
    f"tests/test_cards.py::test_{what}"
    for what in (
        "every_result_of_the_metadata_stands_in_the_file_that_it_names",
        "every_file_that_a_card_names_is_there",
        "a_speed_names_its_hardware",
    )
)


@dataclass(frozen=True)
class Bug:
    """``old`` in ``file`` (it must be there once) becomes ``new``; then one of ``tests`` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BUGS = [
    Bug("token: <= for <", "couplings/token.py", "coins < self", "coins <= self", COUPLINGS),
    Bug("block: <= for <", "couplings/block.py", "coins < self.acceptance()", "coins <= self.acceptance()", COUPLINGS),
    Bug("block: <= for <, looking", "couplings/block.py", "u[i - 1] < P[i]", "u[i - 1] <= P[i]", COUPLINGS),
    Bug("reference: <= for <", "couplings/reference.py", "coins < self", "coins <= self", COUPLINGS),
    Bug("acceptance not cumulative", "couplings/base.py", "kept.long().cumprod(1).sum(1)", "kept.sum(1)", COUPLINGS),
    Bug(
        "token: replacement from p",
        "couplings/token.py",
        "excess(row_at(self.pi, accepted), row_at(self.q, accepted))",
        "row_at(self.p, accepted)",
        COUPLINGS,
    ),
    Bug(
        "any: replacement from p",
        "couplings/base.py",
        "residual.where(~empty, row_at(self.pi, accepted))",
        "row_at(self.p, accepted)",
        COUPLINGS,
    ),
    Bug(
        "replacement from an empty residual",
        "couplings/base.py",
        "residual.where(~empty, row_at(self.pi, accepted))",
        "residual",
        COUPLINGS,
    ),
    Bug(
        "block: S without P",
        "couplings/block.py",
        "(P[..., None] * pi)",
        "pi.clone()",
        COUPLINGS,
    ),
    Bug(
        "block: residual without P",
        "couplings/block.py",
        "(scale[:, None] * row_at(self.pi, accepted))",
        "row_at(self.pi, accepted)",
        COUPLINGS,
    ),
    Bug("block: P not capped", "couplings/block.py", ".div_(products.cummax(1).values.clamp_min_(1))", "", COUPLINGS),
    Bug("block: P not capped, looking", "couplings/block.py", "min(P * r, 1.0)", "P * r", COUPLINGS),
    Bug(
        "block: S of another position",
        "couplings/block.py",
        "self.pi[row, i], self.q[row, i]",
        "self.pi[row, i - 1], self.q[row, i - 1]",
        COUPLINGS,
    ),
    Bug(
        "block: verified token by token",
        "couplings/block.py",
        ".amax(1)",
        ".ne(0).long().cumprod(1).sum(1)",
        COUPLINGS,
    ),
    Bug("block: P for h", "couplings/block.py", "last = i == coins.shape[1]", "last = True", COUPLINGS),
    Bug(
        "reference: draft for replacement",
        "couplings/reference.py",
        "row_at(self._replacement",
        "row_at(self.q",
        COUPLINGS,
    ),
    Bug(
        "tree: one level and no more",
        "couplings/descend.py",
        "tree.child(nodes, drawn)",
        "tree.child(nodes, drawn) * (nodes == 0)",
        COUPLINGS,
    ),
    Bug("tree: the walk ends at the root", "couplings/descend.py", "paths[row].append(node)", "pass", COUPLINGS),
    Bug(
        "tree: a refused sibling keeps its mass",
        "couplings/descend.py",
        "left.gather(-1, c).where(none, 0.0)",
        "left.gather(-1, c)",
        COUPLINGS,
    ),
    Bug(
        "tree: no renormalisation",
        "couplings/descend.py",
        "left.sum(-1, keepdim=True).clamp_min(torch.finfo(left.dtype).tiny)",
        "1.0",
        COUPLINGS,
    ),
    Bug(
        "tree: nodes see their siblings",
        "tree.py",
        "more = own | seen.gather(1, up)",
        "more = own.cumsum(2).flip(2) > 0",
        EAGLE,
    ),
    Bug("tree: nodes see no ancestors", "tree.py", "more = own | seen.gather(1, up)", "more = own", EAGLE),
    Bug("tree: siblings at different positions", "cached_model.py", "seen.sum(2) - 1", "torch.arange(nodes)", EAGLE),
    Bug("taps: states of another thread", "tapping.py", "if threading.get_ident() == self._thread:", "if True:", EAGLE),
    Bug("tree: windows ignored", "tree_mask.py", 'if kind == "sliding_attention"', "if False", EAGLE),
    Bug(
        "tree: branches left in the cache",
        "cached_model.py",
        "any(node != i for path",
        "False and any(node != i for path",
        EAGLE,
    ),
    Bug("tree: taps not moved", "cached_model.py", "self._taps.close_gaps(starts, edge, order)", "pass", EAGLE),
    Bug(
        "tree: taps of layer outputs",
        "tapping.py",
        "else layers[index]",
        "else layers[min(index + 1, len(layers) - 1)]",
        EAGLE,
    ),
    Bug(
        "head: features of the wrong row",
        "drafting/eagle3.py",
        "[start + 1 for start in tokens_from]",
        "tokens_from",
        EAGLE,
    ),
    Bug(
        "head: drafted rows one position early",
        "drafting/eagle3.py",
        "[depth] if isinstance(depth, int)",
        "[depth - 1] if isinstance(depth, int)",
        EAGLE,
    ),
    Bug(
        "head: drafted rows stay in its cache",
        "drafting/eagle3.py",
        "self.cache.crop(width)",
        "self.cache.crop(10**9)",
        EAGLE,
    ),
    Bug(
        "head: children of the wrong node",
        "drafting/eagle3.py",
        "from_row = chosen // k",
        "from_row = chosen % k",
        EAGLE,
    ),
    Bug(
        "head: offsets taken for ids",
        "eagle3/head.py",
        "device=self.d2t.device) + self.d2t",
        "device=self.d2t.device)",
        EAGLE,
    ),
    Bug(
        "head: the re-ranking keeps the unlikely",
        "drafting/eagle3.py",
        "sort(descending=True, stable=True)",
        "sort(stable=True)",
        EAGLE,
    ),
    Bug(
        "walk: p of the root everywhere",
        "generation/loop.py",
        "window(logits, nodes, 1)",
        "logits[:, :1]",
        EAGLE,
    ),
    Bug(
        "walk: prefix of the root everywhere",
        "generation/loop.py",
        "put(run.tokens, starts, carried.where(nodes > 0, window(run.tokens, starts, 1)))",
        "pass",
        EAGLE,
    ),
    Bug(
        "walk: the bonus of a leaf is p",
        "generation/loop.py",
        "if not run.induced_bonus and tree.are_leaves(nodes):",
        "if tree.are_leaves(nodes):",
        EAGLE,
    ),
    Bug("greedy: highest id of equals", "couplings/descend.py", "pi.argmax(-1)", "pi.flip(-1).argmax(-1)", COUPLINGS),
    Bug("sample: a token without weight", "numerics.py", "right=True", "right=False", COUPLINGS),
    Bug(
        "sample: from a residual of rounding",
        "couplings/base.py",
        "< torch.finfo(residual.dtype).tiny",
        "<= 0",
        COUPLINGS,
    ),
    Bug("cos: lambda swapped", "laws/cos.py", "lerp(p, q,", "lerp(q, p,", LAWS),
    Bug("capped ensemble: lambda swapped", "laws/capped_ensemble.py", "lerp(p, q,", "lerp(q, p,", LAWS),
    Bug(
        "lenience: residual not renormalised",
        "laws/lenience.py",
        "spread(capped(q, p, 1 / self.lenience), excess(p, q))",
        "capped(q, p, 1 / self.lenience).add_(excess(p, q))",
        LAWS,
    ),
    Bug("adaptive ensemble: weight upside down", "laws/adaptive_ensemble.py", "over / room", "room / over", LAWS),
    Bug("contrastive: floor of q", "laws/contrastive.py", "clamp_min(1e-10)", "clamp_min(1e-3)", LAWS),
    Bug("laws: > for >=", "numerics.py", "torch.ge(", "torch.gt(", LAWS),
    Bug("min-p: > for >=", "laws/allowed.py", "p >= min_p_bar", "p > min_p_bar", LAWS),
    Bug("eta: > for >=", "laws/allowed.py", "p >= eta_bar", "p > eta_bar", LAWS),
    Bug(
        "eta: may be empty", "laws/allowed.py", "torch.minimum(threshold, p.amax(-1, keepdim=True))", "threshold", LAWS
    ),
    Bug("typical: entropy in bits", "laws/allowed.py", "torch.exp(-entropy)", "torch.exp2(-entropy)", LAWS),
    Bug(
        "speccascade: alpha for p_base", "laws/speccascade.py", "True) - (1 - self.p_base)", "True) - self.p_base", LAWS
    ),
    Bug(
        "truncation: fallbacks swapped",
        "laws/truncation.py",
        'p if fallback == "target"',
        'p if fallback == "draft"',
        LAWS,
    ),
    Bug(
        "truncation: target on the set only", "laws/truncation.py", "addcmul_(p,", "addcmul_(p * (tested >= bar),", LAWS
    ),
    Bug("laws: rounding breaks the ceiling", "numerics.py", ".clamp_max_(1)", "", LAWS),
    Bug("accounting: KL reversed", "accounting.py", "pi * log_ratio", "p * log_ratio", LAWS),
    Bug("accounting: waste without TV(p, q)", "accounting.py", " - tv(p, q)", "", LAWS),
    # generate() as a whole
    Bug(
        "generate: q taken before the warpers",
        "drafting/stepwise.py",
        "self.scorer.scores(logits, tokens, lengths)[:, 0]",
        "logits[:, 0].float()",
        SAMPLING,
    ),
    Bug(
        "generate: q in verification is not the q that was sampled from",
        "drafting/stepwise.py",
        "kept.append(one_hot(token, q) if self.how.point_mass else q)",
        "kept.append(one_hot(token, q) if self.how.point_mass else (q + q.square()) / (q + q.square()).sum())",
        SAMPLING,
    ),
    Bug(
        "generate: a greedy draft as if it had been sampled",
        "drafting/stepwise.py",
        "one_hot(token, q) if self.how.point_mass else q",
        "q",
        SAMPLING,
    ),
    Bug(
        "generate: replacement from p",
        "couplings/token.py",
        "excess(row_at(self.pi, accepted)",
        "excess(2 * self.p[:, 0]",
        SAMPLING,
    ),
    Bug(
        "generate: the draft's temperature ignored",
        "generation/drafts.py",
        "without_temperature(processors, temperature)",
        "processors",
        SAMPLING,
    ),
    Bug(
        "generate: bonus from p instead of the law",
        "generation/loop.py",
        "if not run.induced_bonus and tree.are_leaves(nodes):",
        "if tree.are_leaves(nodes):",
        SAMPLING,
    ),
    Bug(
        "generate: bonus from the law instead of p", "generation/api.py", 'options.bonus != "target"', "True", SAMPLING
    ),
    Bug(
        "generate: prefix of the first position for all",
        "scores.py",
        "tokens[:, : first + j], scores",
        "tokens[:, :first], scores",
        GREEDY,
    ),
    Bug(
        "generate: processors write into each other's scores",
        "scores.py",
        "scores[:, j].clone()",
        "scores[:, 0]",
        GREEDY,
    ),
    Bug(
        "generate: padding rows keep their mass",
        "scores.py",
        "if self.limit < min(rows, self.vocabulary)",
        "if False",
        GREEDY,
    ),
    Bug(
        "generate: padding is attended to",
        "generation/api.py",
        "attention_mask=mask if padded else None",
        "attention_mask=None",
        GREEDY,
    ),
    Bug(
        "generate: nothing is rolled back",
        "generation/loop.py",
        "run.target.crop([length - 1 for length in run.lengths],",
        "run.target.crop(run.target.held,",
        CACHES,
    ),
    Bug(
        "generate: the cache holds the last token",
        "generation/loop.py",
        "run.target.crop([length - 1 for length in run.lengths],",
        "run.target.crop(run.lengths,",
        CACHES,
    ),
    Bug(
        "generate: sliding windows are not trimmed",
        "cached_model.py",
        "held > width or (self._trims and held)",
        "held > width",
        CACHES,
    ),
    Bug(
        "generate: stop checked only at block ends",
        "generation/stops.py",
        "enumerate(new, start=1):",
        "[(len(new), new[-1])]:",
        STOPPING,
    ),
    Bug("generate: streamed past the stop", "generation/loop.py", "in new[:emitted]:", "in new:", STOPPING),
    Bug(
        "generate: recorded past the stop",
        "generation/loop.py",
        "scores, path[:emitted])",
        "scores, path)",
        STOPPING,
    ),
    Bug(
        "generate: counted past the stop",
        "generation/loop.py",
        "run.stats.rows[number], min(kept[row], emitted)",
        "run.stats.rows[number], kept[row]",
        STATISTICS,
    ),
    Bug(
        "generate: num_assistant_tokens ignored",
        "generation/drafts.py",
        "options.num_assistant_tokens or DEFAULT_DRAFT_LENGTH",
        "DEFAULT_DRAFT_LENGTH",
        STATISTICS,
    ),
    Bug(
        "generate: acceptance length without the bonus",
        "generation/statistics.py",
        "return 1 + _ratio(",
        "return _ratio(",
        STATISTICS,
    ),
    Bug(
        "generate: accounting without the bonus token",
        "generation/loop.py",
        "figures.append(Accounting(*(x[:, None] for x in account(p_bonus",
        "(Accounting(*(x[:, None] for x in account(p_bonus",
        STATISTICS,
    ),
    Bug(
        "generate: broken scores pass",
        "generation/loop.py",
        "    if not all(map(math.isfinite, sums)):",
        "    if False:",
        ERRORS,
    ),
    Bug(
        "generate: a broken q at the bonus position passes",
        "generation/loop.py",
        "if new[-1] == BROKEN",
        "if False",
        ERRORS,
    ),
    Bug("batch: gaps are attended to", "cached_model.py", "if self.mask is not None or ragged:", "if False:", BATCH),
    Bug(
        "batch: positions of the longest row",
        "cached_model.py",
        "places = columns(held, new, self.device)",
        "places = columns([max(held)] * len(held), new, self.device)",
        BATCH,
    ),
    Bug(
        "batch: added columns stay behind the longest row",
        "compat.py",
        "move_up(states, [start - gone for start in starts], edge - gone, order, gone)",
        "pass",
        BATCH,
    ),
    Bug(
        "batch: finished rows stay", "generation/loop.py", "if going and len(going) < len(stopped):", "if False:", BATCH
    ),
    Bug(
        "batch: every row has the first one's processors",
        "scores.py",
        "of_row(processors, row)",
        "of_row(processors, 0)",
        BATCH,
    ),
    Bug(
        "batch: coins as far as the neighbours draft",
        "generation/loop.py",
        "max(count, run.draft.num_assistant_tokens) + 1",
        "count + 1",
        BATCH,
    ),
    Bug(
        "batch: a head's padding is seen",
        "drafting/eagle3.py",
        "(row >= padding) & (row < stable)",
        "row < stable",
        BATCH,
    ),
    Bug(
        "batch: a head's rows stay behind the longest", "eagle3/head.py", "move_up(states, starts, edge)", "pass", BATCH
    ),
    Bug(
        "batch: children of another row's tree",
        "drafting/eagle3.py",
        "y.where(places[:, :, None] >= 0, self._expand(at))",
        "self._expand(at.flip(0))",
        BATCH,
    ),
    Bug(
        "schedule: the bonus step is free",
        "drafting/schedule.py",
        "+ whole * self._bonus",
        "",
        SCHEDULE,
    ),
    Bug(
        "schedule: refusals are not counted",
        "drafting/schedule.py",
        "min(accepted + 1, drafted, self.MOST)",
        "accepted",
        SCHEDULE,
    ),
    Bug(
        "schedule: every place like the first",
        "drafting/schedule.py",
        "self._accepted[gamma - 1] + self.ALIKE",
        "self._accepted[0] + self.ALIKE",
        SCHEDULE,
    ),
    Bug(
        "schedule: a text's first rounds are forgotten",
        "drafting/schedule.py",
        "            self._count(accepted, drafted)\n        self._plain",
        "            pass\n        self._plain",
        SCHEDULE,
    ),
    Bug(
        "schedule: measured with the call's coins",
        "generation/api.py",
        'verification="lossless", generator=coins',
        'verification="lossless"',
        SCHEDULE,
    ),
    Bug(
        "schedule: measured beyond the last position",
        "generation/api.py",
        "prompt = prompt[:, length - limit :]",
        "pass",
        SCHEDULE,
    ),
    Bug(
        "schedule: timed beyond the last position",
        "generation/calibration.py",
        "prompt = prompt[:, sizes[-1] - limit :]",
        "pass",
        SCHEDULE,
    ),
    Bug(
        "schedule: the measurement eats max_time",
        "generation/api.py",
        "criterion.initial_timestamp += time.time() - began",
        "pass",
        SCHEDULE,
    ),
    Bug(
        "mode: any code in inference mode",
        "generation/api.py",
        "self.returns_tokens_only and may_infer(",
        "self.returns_tokens_only or may_infer(",
        ("tests/test_mode.py",),
    ),
    Bug(
        "batch: a row without q is a broken draft",
        "generation/loop.py",
        "bonus.where(pi.amax(-1).isfinite(), BROKEN)",
        "bonus.where(q_bonus[:, 0].isfinite(), BROKEN)",
        BATCH,
    ),
    Bug(
        "schedule: a known pair waits for another's measurement",
        "generation/calibration.py",
        "if key not in _known.get(target, {}):",
        "if True:",
        SCHEDULE,
    ),
    Bug("coins: of the default dtype", "scores.py", ", dtype=torch.float32).to", ").to", SAMPLING),
    Bug(
        "mode: a streamer gets tensors of inference mode",
        "generation/api.py",
        "with torch.inference_mode(False), torch.no_grad():",
        "with torch.no_grad():",
        ("tests/test_mode.py",),
    ),
    Bug("demo: another run's p and q", "demo/law_view.py", "kept[0] is run and ", "", DEMO),
    Bug("demo: a sum of weights that is too large", "demo/law_view.py", "    found /= found.max()", "    #", DEMO),
    Bug("lookup: the first occurrence", "drafting/prompt_lookup.py", "int(ends[-1]) + 1", "int(ends[0]) + 1", LOOKUP),
    Bug("lookup: always γ", "drafting/schedule.py", "min(most, 2 * n)", "most * (n > 0)", LOOKUP),
    Bug("lookup: γ never", "drafting/prompt_lookup.py", "n if n < self.longest else sys.maxsize", "n", LOOKUP),
    Bug(
        "schedule: a copy's places all like its first",
        "drafting/schedule.py",
        "(n + 1, reached *",
        "(n, reached *",
        SCHEDULE,
    ),
    Bug("schedule: rows without a match count", "drafting/schedule.py", "if matched else 0):", "):", SCHEDULE),
    Bug(
        "schedule: only the first row's match",
        "drafting/schedule.py",
        "for n in matched if n]",
        "for n in matched[:1] if n]",
        SCHEDULE,
    ),
    Bug(
        "schedule: a lookup without room does not say what it found",
        "drafting/prompt_lookup.py",
        "        rows = [tokens[row",
        "        if count < 1:\n            return Proposal.chain(tokens[:, :0])\n        rows = [tokens[row",
        SCHEDULE,
    ),
    Bug(
        "lookup: processors see what fills a row up",
        "drafting/prompt_lookup.py",
        "min if self._filler is None else max",
        "max",
        GREEDY,
    ),
    Bug(
        "schedule: accounting asks for nothing", "generation/drafts.py", " or bool(options.accounting))", ")", SCHEDULE
    ),
    Bug("lookup: before the beginning", "drafting/prompt_lookup.py", "(before >= 0) & ", "", LOOKUP),
    Bug(
        "schedule: every level for the price of the first",
        "drafting/schedule.py",
        "(gamma - 1) * steps[max(steps)]",
        "(gamma - 1) * steps[1]",
        SCHEDULE,
    ),
    Bug(
        "schedule: more levels than nodes",
        "drafting/schedule.py",
        "max(self.size, gamma + 1) if gamma",
        "self.size if gamma",
        SCHEDULE,
    ),
    Bug("schedule: never tried again", "drafting/schedule.py", "if self._plain > self._wait:", "if False:", SCHEDULE),
    Bug(
        "analysis: gain and loss swapped",
        "analysis/truncation.py",
        "excess(after, before), excess(before, after), stops",
        "excess(before, after), excess(after, before), stops",
        ANALYSIS,
    ),
    Bug(
        "analysis: a change weighted with the old acceptances before it",
        "analysis/truncation.py",
        "torch.cat([ones, after[:, :-1]], 1)",
        "torch.cat([ones, before[:, :-1]], 1)",
        ANALYSIS,
    ),
    Bug(
        "analysis: KL from the target, not from its truncation",
        "analysis/divergence.py",
        "pi, base = one.induced(p, q), one.matched_baseline().induced(p, q)",
        "pi, base = one.induced(p, q), p",
        ANALYSIS,
    ),
    Bug(
        "analysis: a walk goes on after the end of the text",
        "analysis/tree.py",
        "if not over[parent]:",
        "if True:",
        ANALYSIS,
    ),
    Bug(
        "analysis: acceptance of a tree by its first candidate alone",
        "analysis/tree.py",
        "(emitted[:, tree.tokens[0]] * below(tree)).sum(1)",
        "(emitted[:, tree.tokens[0]] * below(tree)).amax(1)",
        ANALYSIS,
    ),
    Bug(
        "analysis: Δ of the other end",
        "analysis/lenience.py",
        "return 1 - account(p, q, one.induced(p, q)).tv / tv(p, q)",
        "return account(p, q, one.induced(p, q)).tv / tv(p, q)",
        ANALYSIS,
    ),
    Bug(
        "analysis: the divergence looked at one token early",
        "analysis/differences.py",
        "text, [at], generator",
        "text, [at - 1], generator",
        ANALYSIS,
    ),
    Bug("cards: no baseline in the next row", "cards/tables.py", "if against is not None", "if False", NEXT_ROW),
    Bug(
        "cards: a baseline that was not run is left out",
        "cards/tables.py",
        "if against is not None",
        "if against is not None and 'baseline' in row",
        NEXT_ROW,
    ),
    Bug("cards: a bare number in the text passes", "cards/figures.py", "any(c.isdigit() for c in word)", "False", BARE),
    Bug(
        "cards: a bare number as a value passes",
        "cards/figures.py",
        "if isinstance(value, str):",
        "if isinstance(value, int | float):\n        return str(value), ()\n    if isinstance(value, str):",
        BARE,
    ),
    Bug("cards: no names of files under a section", "cards/build.py", "if not section.files", "if True", NAMED),
    Bug(
        "cards: rounded values in the metadata",
        "cards/build.py",
        "metric_value=file.get(*keys)",
        "metric_value=round(file.get(*keys), 2)",
        NAMED,
    ),
    Bug(
        "cards: no hardware beside a speed",
        "cards/tables.py",
        '"× plain decoding, {machine}"',
        '"× plain decoding"',
        NAMED,
    ),
    Bug("push: secrets pass", "hub.py", "in secrets(made):", "in ():", HUB),
    Bug("push: the files that the card names stay behind", "hub.py", "| cited |", "|", HUB),
    Bug("push: a dry run uploads", "cli/push.py", "if upload:", "if True:", HUB),
    Bug("push: the size is not looked at", "hub.py", "> largest * 1e6", "> 1e12", HUB),
    Bug("push: public though --private", "hub.py", "private=private or None", "private=None", HUB),
    Bug("demo: target-alone columns share their coins", "demo/runs.py", "self._set_coins(coins)", "pass", DEMO),
    Bug(
        "demo: a head's q as if each token began a round",
        "demo/records.py",
        "[start + j], [nodes[j]])",
        "[start + j], [0])",
        DEMO,
    ),
    Bug(
        "demo: q without the processors",
        "demo/records.py",
        "draft.scorer.scores(logits, tokens, [start + i])",
        "logits",
        DEMO,
    ),
    Bug(
        "demo: a stop that nobody asks for again",
        "demo/compare.py",
        "session.stopping, number = False, session.started",
        "number = session.started",
        DEMO,
    ),
    Bug(
        "demo: a newer run does not end an older one",
        "demo/compare.py",
        "if session.started != number:",
        "if False:",
        DEMO,
    ),
    Bug("demo: tips are not escaped", "demo/render.py", "shown = escape(piece)", "shown = piece", DEMO),
    Bug(
        "demo: drawings of one place at the same time",
        "demo/page.py",
        '{"concurrency_id": name, "concurrency_limit": 1}',
        '{"concurrency_id": name}',
        DEMO,
    ),
    Bug("demo: any path of the machine", "demo/models.py", "if not self.local:", "if False:", DEMO),
    Bug("demo: overshoot where π is p or q", "demo/law_view.py", "pi > max(p, q) + SETTLED", "pi >= max(p, q)", DEMO),
    Bug(
        "compiling: outputs that a graph reuses",
        "cached_model.py",
        "outputs.logits.clone()",
        "outputs.logits",
        COMPILING,
    ),
    Bug(
        "compiling: the prompt too",
        "cached_model.py",
        "forward = self.model if self._first else self._forward",
        "forward = self._forward",
        COMPILING,
    ),
    Bug("compiling: not the draft", "generation/drafts.py", "compiled=target.compiled", "compiled=None", COMPILING),
    Bug("compiling: not what is timed", "timing.py", "rows=rows, compiled=compiled)", "rows=rows)", COMPILING),
    Bug("compiling: disable_compile", "compiling.py", " or config.disable_compile", "", COMPILING),
    Bug("demo: a turn is never passed on", "demo/turns.py", "        if self._waiting:", "        if False:", DEMO),
]


def put_back(bug: Bug, package: Path) -> None:
    """Put a bug into a copy of the package."""
    file = package / bug.file
    source = file.read_text()
    if source.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: {bug.old!r} is {source.count(bug.old)} times in {bug.file}, not once")
    file.write_text(source.replace(bug.old, bug.new))


def tried(tests: tuple[str, ...], bug: Bug | None = None) -> tuple[int, str]:
    """Exit status and output of pytest, up to the first failure, in a copy of the package with a bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for part in ("hf_lossy", "tests", "demo", "docs", "model_cards", "recipes"):
            shutil.copytree(ROOT / part, where / part, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
        shutil.copy(ROOT / "pyproject.toml", where)
        if bug:
            put_back(bug, where / "hf_lossy")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def noticed(bug: Bug) -> tuple[bool, str]:
    """Whether the tests fail with the bug put back, and what they say. Code that is merely broken does not count."""
    status, output = tried(bug.tests, bug)
    broken = re.search(r"^E +(NameError|AttributeError|ImportError|SyntaxError|TypeError)", output, re.MULTILINE)
    return status == 1 and "\nFAILED " in output and not broken, output


def main() -> int:
    chosen = [bug for bug in BUGS if all(word in bug.name for word in sys.argv[1:])]
    for tests in sorted({bug.tests for bug in chosen}):
        status, output = tried(tests)
        if status:
            print(output)
            sys.exit(f"{' '.join(tests)}: red without any bug put back, which shows nothing")
    missed = 0
    for bug in chosen:
        seen, output = noticed(bug)
        first = next((line for line in output.splitlines() if line.startswith("FAILED")), output[-2000:])
        print(f"{'red  ' if seen else 'GREEN'} {bug.name}: {first}", flush=True)
        missed += not seen
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return missed


if __name__ == "__main__":
    sys.exit(main())
