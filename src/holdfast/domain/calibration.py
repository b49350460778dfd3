"""What a provider says about its prompts, and what that teaches: how far our count is from its own, and its real window.

Pure and frozen: whoever holds a `Learned` puts the next one in its place, saves it if it likes, and merges what another
process has learned. One for each model.

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
"""Tokens below which a prompt teaches nothing: what a provider adds to every prompt is too much of it."""
LOW, HIGH, MOST = 0.5, 2.5, 16.0
"""Ratios below `LOW` and above `MOST` are nonsense: a truncated prompt, cached tokens left out, tokens of a whole day. One above
`HIGH` may be a single hidden prompt as long as ours: it counts once `AGREEING` replies in a row agree on it, or a prompt was refused for it."""
AGREEING: Final = 3
ALIKE_RATIOS: Final = 1.25
"""Ratios above `HIGH` agree when the highest is at most this many times the lowest."""
ALLOWANCE: Final = 512
"""Tokens, at most a sixteenth of a prompt, that a provider may add before an exact count is doubted: the safety headroom."""
AGREED: Final = 1.01
"""Ratio up to which an exact count agrees."""
NEWEST, HIGHEST = 32, 8
"""Pairs kept: the newest, and the highest of a day. So a ratio rises at once and falls slowly, however many turns run."""
DAY: Final = 86_400_000
"""Milliseconds."""
ALIKE: Final = 4
"""Pairs this many times smaller than the largest tell nothing of a full window."""
OUTLIER_FROM: Final = 8
"""Pairs from which a single highest one is passed over, unless it comes from a refusal."""
ONE_MARGIN, MOST_MARGIN = 0.05, 0.25
"""Margin behind a single pair, shrinking with the root of their number; and the most it can be."""
STEP: Final = 0.02
"""Grain of `Measure.scale`: what changes with every turn would move a budget with every turn."""
STALE: Final = 7 * DAY
"""Milliseconds after which a ceiling that nobody confirmed is forgotten."""

CountMethod = Literal["exact", "estimate", "calibrated", "provider"]


class MeasuredCount(msgspec.Struct, frozen=True, gc=False):
    """How many tokens a prompt has, and how far that can be trusted."""

    tokens: int
    """The best that is known, in the provider's tokens, without the margin."""
    how: CountMethod
    margin: float
    """Part of `tokens` that is kept free beside them, because the count may be so much too low; 0.0 for none."""

    def to_wire(self) -> dict[str, Any]:
        """As reports show it."""
        return {"tokens": self.tokens, "how": self.how, "margin": round(self.margin, 3)}


class Measure(msgspec.Struct, frozen=True, gc=False):
    """A calibration at one moment, to be frozen into a budget."""

    ratio: float = 1.0
    """Provider's tokens per token counted here."""
    margin: float = 0.0
    """Part of the ratio by which the next prompt may pass it."""
    samples: int = 0

    @property
    def scale(self) -> float:
        """What a budget is divided by: ratio and margin, rounded up to `STEP`; exactly 1.0 where nothing is to be done."""
        whole = self.ratio * (1 + self.margin)
        return 1.0 if whole == 1.0 else round(math.ceil(whole / STEP - 1e-9) * STEP, 6)

    def describe(self, counted: int, *, margin: float, provider: int | None = None) -> MeasuredCount:
        """Tell a count.

        Args:
            counted: tokens, as the counter counts them.
            margin: the counter's own, which is in `counted` already; 0.0 for an exact one.
            provider: what the provider's count endpoint said, if it was asked and answered.
        """
        if provider is not None:
            return MeasuredCount(provider, "provider", 0.0)
        if self.samples and (margin or self.ratio != 1.0):
            return MeasuredCount(round(counted * self.ratio), "calibrated", self.margin)
        if margin:
            return MeasuredCount(math.floor(counted / (1 + margin)), "estimate", margin)
        return MeasuredCount(counted, "exact", 0.0)


class Pair(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One prompt, counted by both."""

    at: int
    """Milliseconds since the epoch."""
    counted: int
    """Here."""
    reported: int
    """By the provider."""
    refused: bool = False
    """Whether it was refused as too long: then it is no outlier."""

    @property
    def ratio(self) -> float:
        """Provider's tokens per token counted here."""
        return self.reported / self.counted

    @property
    def doubt(self) -> float:
        """The ratio, for a counter that is exact: 1.0 unless the provider counts more than can be explained."""
        added = min(ALLOWANCE, self.counted // 16)
        return 1.0 if self.reported <= self.counted * AGREED + added else self.ratio


def is_believable(counted: int, reported: int) -> bool:
    """Return True if a pair may teach something, alone or together with others."""
    return counted >= LEAST and LOW <= reported / counted <= MOST


class Calibration(msgspec.Struct, frozen=True, gc=False):
    """Pairs of one model. Merging is commutative, and merging the same twice changes nothing."""

    pairs: tuple[Pair, ...] = ()

    def add_pair(self, pair: Pair) -> Calibration:
        """With one more pair; the same where that teaches nothing."""
        return Calibration(_select_kept([*self.pairs, pair])) if is_believable(pair.counted, pair.reported) else self

    def merge(self, other: Calibration) -> Calibration:
        """With what another process has learned."""
        return Calibration(_select_kept([*self.pairs, *other.pairs])) if other.pairs else self

    def measure(self, *, exact: bool) -> Measure:
        """What the pairs say by now.

        Args:
            exact: whether the model's own tokenizer counts here. Then the ratio is 1.0 unless the provider counts more,
                and never less: a prompt of another kind would not be as cheap.
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
    """Return the pairs that count: ratios above `HIGH` only where a refusal, or `AGREEING` in a row, confirm them."""
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
    """All that is known of one model from its provider's answers."""

    window: int | None = None
    """Tokens: the limit that an error named."""
    window_at: int = 0
    """When, in milliseconds since the epoch; also when it was taken back."""
    ceiling: int | None = None
    """Tokens for the prompt, in the provider's: worked out from refusals that nothing else explains, a tenth at a time."""
    ceiling_at: int = 0
    calibration: Calibration = Calibration()

    def record_usage(self, counted: int, reported: int, *, at: int) -> Learned:
        """After an answer.

        Args:
            counted: the prompt's tokens as built: `WorkingSet.total_tokens`.
            reported: `usage.prompt_tokens`, cached ones included, or what a count endpoint said; 0 when it said nothing.
            at: milliseconds since the epoch.
        """
        learned = msgspec.structs.replace(self, calibration=self.calibration.add_pair(Pair(at, counted, reported)))
        # What was taken, fits: a limit below it is none.
        if learned.window is not None and reported > learned.window:
            learned = msgspec.structs.replace(learned, window=None, window_at=at)
        if learned.ceiling is not None and (reported > learned.ceiling or at - learned.ceiling_at > STALE):
            learned = msgspec.structs.replace(learned, ceiling=None, ceiling_at=at)
        return learned

    def record_refusal(
        self, counted: int, budget: Budget, *, limit: int | None = None, requested: int | None = None, at: int
    ) -> Learned:
        """After a prompt was refused as too long.

        What the error names is believed. What stays unexplained steps the prompt down by a tenth, each time anew.

        Args:
            counted: the prompt's tokens as built.
            budget: that it was built for.
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
        """Return the prompt's tokens by the newest reply whose ratio was too high to be believed, if they explain a refusal."""
        doubted = [pair for pair in self.calibration.pairs if pair.ratio > HIGH and not pair.refused]
        if not doubted:
            return None
        tokens = math.ceil(counted * doubted[-1].ratio)
        return tokens if is_believable(counted, tokens) and tokens + budget.max_reply_tokens > known else None

    def merge(self, other: Learned) -> Learned:
        """With what another process has learned: the later word on each limit, and the pairs of both."""
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
    """The bytes that a store keeps."""
    return _encoder.encode(learned)


def decode_learned(data: bytes) -> Learned:
    """What `encode_learned` wrote; nothing learned where the bytes are of another version."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return Learned()
