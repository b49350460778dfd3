"""Learn from a provider's answers how its token counts differ from ours, and how large its context window is.

Pure functions and frozen data. There is one `Learned` for each model. Its owner replaces it after each answer, saves it, and
merges the one that another process has saved.

    provider's tokens = ratio * tokens counted here, within the margin

A prompt is built in tokens counted here, so a budget is divided by the ratio and its margin (`Budget.counted`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from holdfast.domain.budget import Budget, step_down

LEAST: Final = 1_000
"""Prompts with fewer tokens are ignored, because the tokens that the provider adds to every prompt are too large a share."""
LOW, HIGH, MOST = 0.5, 2.5, 16.0
"""Ratios below `LOW` and above `MOST` are errors: a truncated prompt, missing cached tokens, the tokens of a whole day. A ratio
above `HIGH` may come from a single hidden prompt that is as long as ours. It counts only after `AGREEING` similar replies in a
row, or after a refusal because of it."""
AGREEING: Final = 3
ALIKE_RATIOS: Final = 1.25
"""Ratios above `HIGH` agree if the highest is at most this many times the lowest."""
ALLOWANCE: Final = 512
"""Tokens that a provider may add before an exact count is doubted, at most a sixteenth of a prompt: the safety headroom."""
AGREED: Final = 1.01
"""Ratio up to which an exact count is confirmed."""
NEWEST, HIGHEST = 32, 8
"""Numbers of pairs that are kept: the newest ones, and the highest ones of a day. So a ratio rises at once and falls slowly,
regardless of the number of turns."""
DAY: Final = 86_400_000
"""Milliseconds."""
ALIKE: Final = 4
"""Pairs that are this many times smaller than the largest one are ignored, because they say nothing about a full window."""
OUTLIER_FROM: Final = 8
"""With at least this many pairs, the single highest one is ignored, unless it comes from a refusal."""
ONE_MARGIN, MOST_MARGIN = 0.05, 0.25
"""Margin for a single pair, and the maximum margin. The margin shrinks with the square root of the number of pairs."""
STEP: Final = 0.02
"""Step size of `Measure.scale`, so that budgets do not change with every turn."""
STALE: Final = 7 * DAY
"""Milliseconds after which an unconfirmed ceiling is dropped."""

CountMethod = Literal["exact", "estimate", "calibrated", "provider"]


class MeasuredCount(msgspec.Struct, frozen=True, gc=False):
    """The number of tokens in a prompt, and how reliable it is."""

    tokens: int
    """The best known count in the provider's tokens, without the margin."""
    how: CountMethod
    margin: float
    """Share of `tokens` that is kept free because the count may be too low; 0.0 for none."""

    def to_wire(self) -> dict[str, Any]:
        """Return the count in the form that reports use."""
        return {"tokens": self.tokens, "how": self.how, "margin": round(self.margin, 3)}


class Measure(msgspec.Struct, frozen=True, gc=False):
    """A calibration at one moment, for use in a budget."""

    ratio: float = 1.0
    """Provider's tokens per token counted here."""
    margin: float = 0.0
    """Share of the ratio by which the ratio of the next prompt may be higher."""
    samples: int = 0

    @property
    def scale(self) -> float:
        """The divisor for a budget: ratio and margin, rounded up to `STEP`; exactly 1.0 if no correction is needed."""
        whole = self.ratio * (1 + self.margin)
        return 1.0 if whole == 1.0 else round(math.ceil(whole / STEP - 1e-9) * STEP, 6)

    def describe(self, counted: int, *, margin: float, provider: int | None = None) -> MeasuredCount:
        """Return a token count with its reliability.

        Args:
            counted: tokens according to the counter.
            margin: the counter's own margin, already included in `counted`; 0.0 for an exact counter.
            provider: the result of the provider's count endpoint, if there is one.
        """
        if provider is not None:
            return MeasuredCount(provider, "provider", 0.0)
        if self.samples and (margin or self.ratio != 1.0):
            return MeasuredCount(round(counted * self.ratio), "calibrated", self.margin)
        if margin:
            return MeasuredCount(math.floor(counted / (1 + margin)), "estimate", margin)
        return MeasuredCount(counted, "exact", 0.0)


class Pair(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """The counts of one prompt, here and at the provider."""

    at: int
    """Milliseconds since the epoch."""
    counted: int
    """Tokens counted here."""
    reported: int
    """Tokens reported by the provider."""
    refused: bool = False
    """True if the prompt was refused as too long. Such a pair is not an outlier."""

    @property
    def ratio(self) -> float:
        """Provider's tokens per token counted here."""
        return self.reported / self.counted

    @property
    def doubt(self) -> float:
        """The ratio for an exact counter: 1.0 unless the provider counts more than can be explained."""
        added = min(ALLOWANCE, self.counted // 16)
        return 1.0 if self.reported <= self.counted * AGREED + added else self.ratio


def is_believable(counted: int, reported: int) -> bool:
    """Return True if a pair may be used, alone or together with others."""
    return counted >= LEAST and LOW <= reported / counted <= MOST


class Calibration(msgspec.Struct, frozen=True, gc=False):
    """Pairs of one model. Merging is commutative and idempotent."""

    pairs: tuple[Pair, ...] = ()

    def add_pair(self, pair: Pair) -> Calibration:
        """Return the calibration with one more pair; unchanged if the pair cannot be used."""
        return Calibration(_select_kept([*self.pairs, pair])) if is_believable(pair.counted, pair.reported) else self

    def merge(self, other: Calibration) -> Calibration:
        """Return the calibration with the pairs of another process."""
        return Calibration(_select_kept([*self.pairs, *other.pairs])) if other.pairs else self

    def measure(self, *, exact: bool) -> Measure:
        """Return the measure according to the pairs.

        Args:
            exact: True if the counter here is the model's own tokenizer. Then the ratio is 1.0, or more if the provider counts
                more. It is never less, because a prompt of another kind may cost more.
        """
        return _measure(self.pairs, exact) if self.pairs else _NOTHING_LEARNED


_NOTHING_LEARNED: Final = Measure()


@lru_cache(maxsize=256)
def _measure(pairs: tuple[Pair, ...], exact: bool) -> Measure:  # noqa: FBT001 - see `Calibration.measure`
    largest = max((pair.counted for pair in pairs), default=0)
    alike = _select_trusted([pair for pair in pairs if pair.counted * ALIKE >= largest])
    if not alike:
        return Measure()
    ordered = sorted(alike, key=lambda pair: pair.doubt if exact else pair.ratio)
    ratios = [pair.doubt if exact else pair.ratio for pair in ordered]
    top = ratios[-2] if len(ratios) >= OUTLIER_FROM and not ordered[-1].refused else ratios[-1]
    if exact and top == 1.0:
        return Measure(samples=len(ratios))
    spread = (top - statistics.median(ratios)) / top
    margin = min(MOST_MARGIN, ONE_MARGIN / math.sqrt(len(ratios)) + max(0.0, spread) / 2)
    return Measure(top, margin, len(ratios))


def _select_trusted(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that count. Ratios above `HIGH` count only if a refusal, or `AGREEING` pairs in a row, confirm them."""
    if all(pair.ratio <= HIGH for pair in pairs):
        return list(pairs)
    confirmed = [pair.ratio for pair in pairs if pair.refused]
    for row in zip(*(pairs[at:] for at in range(AGREEING)), strict=False):
        ratios = [pair.ratio for pair in row]
        if HIGH < max(ratios) <= min(ratios) * ALIKE_RATIOS:
            confirmed += ratios
    limit = max([HIGH, *(ratio * ALIKE_RATIOS for ratio in confirmed if ratio > HIGH)])
    return [pair for pair in pairs if pair.ratio <= limit]


def _select_kept(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    ordered = sorted(set(pairs))
    since = ordered[-1].at - DAY
    highest = sorted((pair for pair in ordered if pair.at > since), key=lambda pair: (pair.ratio, pair))[-HIGHEST:]
    return tuple(sorted({*ordered[-NEWEST:], *highest}))


class Learned(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Knowledge about one model, learned from its provider's answers."""

    window: int | None = None
    """The limit in tokens that an error named."""
    window_at: int = 0
    """When the window was learned or withdrawn, in milliseconds since the epoch."""
    ceiling: int | None = None
    """Limit for the prompt in the provider's tokens, lowered by a tenth for each refusal that nothing else explains."""
    ceiling_at: int = 0
    calibration: Calibration = Calibration()

    def record_usage(self, counted: int, reported: int, *, at: int) -> Learned:
        """Return the updated knowledge after an answer.

        Args:
            counted: the prompt's tokens as built: `WorkingSet.total_tokens`.
            reported: `usage.prompt_tokens` including cached ones, or the answer of a count endpoint; 0 if it is
                missing.
            at: milliseconds since the epoch.
        """
        learned = msgspec.structs.replace(self, calibration=self.calibration.add_pair(Pair(at, counted, reported)))
        # The provider accepted this many tokens, so a lower limit is wrong.
        if learned.window is not None and reported > learned.window:
            learned = msgspec.structs.replace(learned, window=None, window_at=at)
        if learned.ceiling is not None and (reported > learned.ceiling or at - learned.ceiling_at > STALE):
            learned = msgspec.structs.replace(learned, ceiling=None, ceiling_at=at)
        return learned

    def record_refusal(
        self, counted: int, budget: Budget, *, limit: int | None = None, requested: int | None = None, at: int
    ) -> Learned:
        """Return the updated knowledge after a prompt was refused as too long.

        Figures in the error are trusted. Each refusal that remains unexplained lowers the ceiling by a tenth.

        Args:
            counted: the prompt's tokens as built.
            budget: the budget for which the prompt was built.
            limit: `ContextTooLong.context_limit`.
            requested: `ContextTooLong.requested`.
            at: milliseconds since the epoch.
        """
        learned, known = self, budget.context_window
        if limit is not None:
            known = limit
            learned = msgspec.structs.replace(learned, window=limit, window_at=at)
        expected = math.ceil(counted * budget.scale)
        named = requested if requested is not None and is_believable(counted, requested) else None
        if named is None and expected + budget.max_reply_tokens <= known:
            named = self._explain_refusal(counted, budget, known)
        if (named or expected) + budget.max_reply_tokens <= known:
            ceiling = step_down(min(budget.input, expected))
            return msgspec.structs.replace(learned, ceiling=min(ceiling, learned.ceiling or ceiling), ceiling_at=at)
        if named is None:
            return learned
        taught = learned.calibration.add_pair(Pair(at, counted, named, refused=True))
        return msgspec.structs.replace(learned, calibration=taught)

    def _explain_refusal(self, counted: int, budget: Budget, known: int) -> int | None:
        """Return the size of the prompt according to the newest reply with a doubted ratio, if this explains the refusal."""
        doubted = [pair for pair in self.calibration.pairs if pair.ratio > HIGH and not pair.refused]
        if not doubted:
            return None
        tokens = math.ceil(counted * doubted[-1].ratio)
        return tokens if is_believable(counted, tokens) and tokens + budget.max_reply_tokens > known else None

    def merge(self, other: Learned) -> Learned:
        """Return the combination with the knowledge of another process: the newer value of each limit, and the pairs of both."""
        window = max(self, other, key=lambda one: (one.window_at, one.window or 0))
        ceiling = max(self, other, key=lambda one: (one.ceiling_at, -(one.ceiling or 0)))
        return Learned(
            window=window.window,
            window_at=window.window_at,
            ceiling=ceiling.ceiling,
            ceiling_at=ceiling.ceiling_at,
            calibration=self.calibration.merge(other.calibration),
        )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Learned)


def encode_learned(learned: Learned) -> bytes:
    """Encode the knowledge about a model for a store."""
    return _encoder.encode(learned)


def decode_learned(data: bytes) -> Learned:
    """Decode the result of `encode_learned`; return an empty `Learned` if another version wrote the bytes."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return Learned()
