"""Which models and records a result was made with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..compat import hub_commit
from ..loading import Pair, dtype_name
from .tasks import Item, Task


def origin(pair: Pair, task: Task, items: Sequence[Item]) -> dict[str, Any]:
    """For ``provenance.json``: name, dtype, device and revision of each model, and the data set with a digest of the records
    that were used, wherever they came from."""
    models = {"target": pair.target, "draft": pair.draft}
    records = hashlib.sha256()
    for item in items:
        records.update(json.dumps(item.record, sort_keys=True, ensure_ascii=False, default=str).encode())
    return {
        "models": {role: revision(model) for role, model in models.items() if model is not None},
        "data": {
            "task": task.name,
            "dataset": task.dataset,
            "revision": task.revision,
            "records": len(items),
            "sha256": records.hexdigest(),
        },
    }


def revision(model: PreTrainedModel) -> dict[str, Any]:
    """Which version of a model it is: the Hub's commit, and a fingerprint of the weights that were loaded."""
    return {
        "name": model.name_or_path,
        "dtype": dtype_name(model),
        "device": str(model.device),
        "commit": hub_commit(model),
        "fingerprint": fingerprint(model),
    }


def fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over every tensor's name, type, shape and up to 1,024 of its values, evenly spaced: fast for any size."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // 1024)][:1024]
        found.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
