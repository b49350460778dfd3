"""Tune the weights of the keyword ranking by coordinate search on labelled conversations.

    python -m benchmarks.tune_recall benchmarks/recall/dev benchmarks/conversations/dev --rounds 1

The search tries some values for each weight and keeps the best one if it gains more than `LEAST` points. Each file counts the same,
however many questions it has. All conversations together, as those of one user, count as one more file, so that dialogues and chats
share an index. The output is a proposal: round each value to the middle of its plateau, and check kinds that were not tuned on.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.evaluation.dataset import Dataset, Query, Sample, Turn
from benchmarks.evaluation.direct import Direct
from benchmarks.evaluation.evaluator import Evaluator
from benchmarks.evaluation.readers import read
from holdfast.recall.scoring import WEIGHTS, FormWeights, Weights

FACTORS: Final = (0.5, 0.75, 1.33, 2.0)
STARTS: Final = (0.0, 0.1, 0.2, 0.4)
"""Values that are tried in addition to multiples of a weight's current value."""
MIN_GAIN: Final = 0.03
KS: Final = {"5": 1.5, "10": 1.2, "25": 1.0, "50": 0.8}
"""How much recall among the first k results counts, by k."""
GENERAL: Final = (
    *("k1", "name", "coded", "then", "said", "about", "dated", "middle", "steepness", "few_turns", "chunk", "chunk_b"),
    "echo",
)


async def _measure_recall(sets: Sequence[tuple[Dataset, Direct]], weights: Weights) -> float:
    """Return weighted recall in points, averaged over the sets."""
    total = 0.0
    for dataset, direct in sets:
        direct.weights = weights
        turns = (await Evaluator(dataset, direct).run("keyword", ks=[int(k) for k in KS])).turns
        total += 100 * sum(turns[k] * weight for k, weight in KS.items()) / sum(KS.values())
    return total / len(sets)


def _list_weights() -> Iterator[str]:
    """Yield the names of all weights: `k1`, `chat.b`, `chat.before.0`."""
    yield from GENERAL
    for form in ("dialogue", "chat"):
        for name in FormWeights.__struct_fields__:
            one = getattr(getattr(WEIGHTS, form), name)
            yield from (
                (f"{form}.{name}.{at}" for at in range(len(one))) if isinstance(one, tuple) else (f"{form}.{name}",)
            )


def _get_weight(weights: Weights, name: str) -> float:
    value: Any = weights
    for part in name.split("."):
        value = value[int(part)] if part.isdecimal() else getattr(value, part)
    return float(value)


def _set_weight(weights: Weights, name: str, value: float) -> Weights:
    """Return the weights with one value replaced."""
    form, _, rest = name.partition(".")
    if not rest:
        return msgspec.structs.replace(weights, **{name: value})
    field, _, at = rest.partition(".")
    current: FormWeights = getattr(weights, form)
    new = value if not at else tuple(value if str(n) == at else old for n, old in enumerate(getattr(current, field)))
    return msgspec.structs.replace(weights, **{form: msgspec.structs.replace(current, **{field: new})})


def _list_values(value: float) -> list[float]:
    return sorted({round(value * factor, 4) for factor in FACTORS if value}.union(STARTS) - {value})


def _merge(datasets: Sequence[Dataset]) -> Dataset:
    """Merge all conversations into those of one user."""
    turns: list[Turn] = []
    queries: list[Query] = []
    sessions: list[str] = []
    for number, sample in enumerate(sample for dataset in datasets for sample in dataset.samples):
        first, session = len(turns), len(sessions)
        turns += (msgspec.structs.replace(turn, session=turn.session + session) for turn in sample.turns)
        sessions += (f"{number} {name}" for name in sample.sessions)
        queries += (
            msgspec.structs.replace(query, evidence=tuple(at + first for at in query.evidence))
            for query in sample.queries
        )
    return Dataset((Sample("together", tuple(sessions), tuple(turns), tuple(queries)),))


async def tune(paths: Sequence[Path], rounds: int) -> Weights:
    """Return the best weights found."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    datasets = [read([file]) for file in files]
    datasets.append(_merge(datasets))
    sets = [(dataset, Direct(dataset)) for dataset in datasets]
    best, weights = await _measure_recall(sets, WEIGHTS), WEIGHTS
    print(f"{best:.2f} with the current weights")
    for _ in range(rounds):
        for name in _list_weights():
            for value in _list_values(_get_weight(weights, name)):
                changed = _set_weight(weights, name, value)
                score = await _measure_recall(sets, changed)
                if score > best + MIN_GAIN:
                    best, weights = score, changed
                    print(f"{best:.2f} {name} {value}", flush=True)
    return weights


def main() -> None:
    """Print the best weights found, as JSON."""
    parser = argparse.ArgumentParser(description="Tune the weights of the keyword ranking.")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    weights = asyncio.run(tune(options.paths, options.rounds))
    print(msgspec.json.format(msgspec.json.encode(weights)).decode())


if __name__ == "__main__":
    main()
