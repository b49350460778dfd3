"""Parse strategies as written on a command line, for example `digest`, `digest@2048` or `token_window:preserve_recent=3,target=0.5`.

Two strategies can be combined with `+`, in the order in which they are applied. `clear_tool_results:keep=2+token_window` clears tool
results, and then applies `token_window`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings, parse
from holdfast.context.strategies import WITHOUT_MODEL, Strategy, make_strategy
from holdfast.errors import InvalidRequest

WHERE: Final = "--strategy"
DIGEST: Final = "digest"
"""Value of `summarizer_llm` that means that no model writes summaries, and the digest is used instead."""
NOBODY: Final = WITHOUT_MODEL | {DIGEST}
"""All values of `summarizer_llm` that mean that no model writes summaries."""
_BUDGET, _SUMMARIZER, _SCORER = "budget", "summarizer_llm", "scorer"
_LARGEST = 999_999_999
_CANNOT: Final = (
    "{text!r}: {wrong} cannot be followed by another strategy; "
    f"only {CLEARING} works before another strategy: {CLEARING}+{{wrong}}"
)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\[\]]*\]|\{[^{}]*\}|.', re.DOTALL)
"""Matches a JSON string, list or object, which must not be split, or any single character."""


class Spec(msgspec.Struct, frozen=True):
    """A strategy and its options. If `clear_tool_results` is applied first, its own options are in the option `clear_tool_results`."""

    strategy: str
    options: dict[str, Any] = {}
    """Options of the strategy, except `budget`."""
    budget: int | None = None
    """Budget of this strategy in tokens; None: the budget of the run."""

    @property
    def label(self) -> str:
        """Name of the spec in tables, without the budget. `parse_spec` converts the name back to this spec."""
        clearing = self.options.get(CLEARING)
        own = _format_spec(self.strategy, {key: value for key, value in self.options.items() if key != CLEARING})
        if clearing is None or clearing is False:
            return own
        return f"{_format_spec(CLEARING, clearing if isinstance(clearing, Mapping) else {})}+{own}"

    @property
    def has_summaries(self) -> bool:
        """True if the strategy uses summaries, or a digest in their place."""
        return _SUMMARIZER in STRATEGIES[self.strategy].keys

    @property
    def summarizes(self) -> bool:
        """True if a model should write the summaries of the strategy."""
        return self.has_summaries and self.options.get(_SUMMARIZER) not in NOBODY

    @property
    def summarizer(self) -> str | None:
        """Name of the model that should write summaries, or None if the options name none."""
        named = self.options.get(_SUMMARIZER)
        return str(named) if self.summarizes and named is not None else None

    def make_settings(self, budget: int, *, where: str = WHERE) -> ContextSettings:
        """Return the settings of the strategy.

        Args:
            budget: Budget in tokens. Strategies without a budget ignore it.
            where: Name of the command-line option in error messages.

        Raises:
            InvalidRequest: The strategy or a key is unknown.
        """
        takes = self.strategy in STRATEGIES and _BUDGET in STRATEGIES[self.strategy].keys
        given = {"strategy": self.strategy, **self.options}
        return parse({**given, **({_BUDGET: budget} if takes else {})}, where=where)

    def make_strategy(self, budget: int, *, written: bool = False) -> Strategy:
        """Return the strategy as an object that builds prompts.

        Args:
            budget: Budget in tokens. Strategies without a budget ignore it.
            written: True if a model is available that writes summaries. False: the digest is used instead.
        """
        settings = self.make_settings(budget)
        if self.has_summaries and not (written and self.summarizes):
            settings = ContextSettings(settings.strategy, {**settings.options, _SUMMARIZER: "none"})
        return make_strategy(settings)


def _format_spec(strategy: str, options: Mapping[str, Any]) -> str:
    given = ",".join(f"{key}={_format_value(value)}" for key, value in options.items())
    return f"{strategy}:{given}" if given else strategy


def _format_value(value: Any) -> str:
    """Format a value so that `_parse_value` returns it again. Text is quoted only if it would be parsed as another value."""
    if isinstance(value, str) and _parse_value(value) == value and not set(value) & set(',+"[]{}'):
        return value
    return msgspec.json.encode(value).decode()


Run = tuple[str, int]
"""A run of the replay: the label of its spec (a strategy with its options), and its token budget."""


def plan_runs(specs: Sequence[Spec], budgets: Sequence[int]) -> dict[Run, Spec]:
    """Return the runs to replay, each with its spec: every spec with every budget, without duplicates and sorted by budget.

    A spec with its own budget gets a single run with that budget.
    """
    pairs = [(spec, spec.budget or budget) for budget in budgets for spec in specs]
    runs = {(spec.label, budget): spec for spec, budget in pairs}
    order = list(dict.fromkeys(budget for _, budget in runs))
    return dict(sorted(runs.items(), key=lambda run: order.index(run[0][1])))


# -- reading -----------------------------------------------------------------


def parse_specs(texts: Iterable[str]) -> list[Spec]:
    """Parse texts that each contain one or more specs, separated by commas. Duplicates are removed.

    A part `KEY=VALUE` belongs to the spec before it.

    Raises:
        InvalidRequest: A spec is invalid, or a part `KEY=VALUE` has no strategy before it.
    """
    found: dict[tuple[str, int | None], Spec] = {}
    for text in texts:
        for word in _join_keys(_split(text, ",")):
            spec = parse_spec(word)
            found[spec.label, spec.budget] = spec
    return list(found.values())


def parse_spec(text: str) -> Spec:
    """Parse `STRATEGY[@BUDGET][:KEY=VALUE,…]`, optionally after `clear_tool_results[:KEY=VALUE,…]+`.

        >>> parse_spec("token_window@2048:preserve_recent=3")
        Spec(strategy='token_window', options={'preserve_recent': 3}, budget=2048)
        >>> parse_spec("clear_tool_results:keep=2+token_window").options
        {'clear_tool_results': {'keep': 2}}

    Raises:
        InvalidRequest: The text is invalid, or the strategy or one of its keys is unknown.
    """
    *before, last = [_parse_piece(part) for part in _split(text, "+")]
    if before:
        last = _compose(text, before, last)
    make_strategy(last.make_settings(last.budget or 1, where=""))
    if _SCORER in last.options:
        raise InvalidRequest(
            f"{_SCORER} cannot be used here: replay rates messages by the built-in signals", param=_SCORER
        )
    return last


def parse_tokens(text: str) -> int:
    """Parse a number of tokens, from 1 to 999,999,999.

    Raises:
        InvalidRequest: The text is not a number in this range.
    """
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise InvalidRequest(f"{text!r} is not a number of tokens; use 1 to {_LARGEST}", param=_BUDGET)
    return int(text)


# -- parts of a spec ---------------------------------------------------------


def _split(text: str, mark: str) -> list[str]:
    """Split `text` at each `mark` that is not inside a JSON value."""
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == mark:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _join_keys(words: Iterable[str]) -> Iterator[str]:
    """Yield the text of each spec, with the `KEY=VALUE` parts that follow it joined to it."""
    spec = ""
    for word in filter(None, words):
        key, equals, _ = word.partition("=")
        if not equals or set(key) & set(":@+"):
            if spec:
                yield spec
            spec = word
        elif spec:
            spec += ("," if ":" in _split(spec, "+")[-1] else ":") + word
        else:
            raise InvalidRequest(f"{word!r} must follow a strategy", param="strategy")
    if spec:
        yield spec


def _parse_piece(text: str) -> Spec:
    """Parse one strategy with its keys. Only the syntax is checked."""
    head, _, rest = text.partition(":")
    name, at, number = head.partition("@")
    options = dict(_parse_option(part) for part in _split(rest, ",") if part)
    given = [parse_tokens(number)] if at else []
    if _BUDGET in options:
        given.append(parse_tokens(str(options.pop(_BUDGET))))
    if len(given) > 1:
        raise InvalidRequest(f"{text!r} names two budgets", param=_BUDGET)
    return Spec(name.strip(), options, given[0] if given else None)


def _parse_option(part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals:
        raise InvalidRequest(f"{part.strip()!r} is not KEY=VALUE", param="strategy")
    return key.strip(), _parse_value(value.strip())


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def _compose(text: str, before: Sequence[Spec], last: Spec) -> Spec:
    """Return the combination of the specs in `before` with `last`. Only a single `clear_tool_results` may come before another strategy.

    Args:
        text: The text that is parsed, for error messages.
        before: The specs before the last one.
        last: The last spec.

    Raises:
        InvalidRequest: The strategies cannot be combined.
    """
    for spec in (*before, last):
        if spec.strategy:
            Spec(spec.strategy).make_settings(1, where="")  # reports an unknown strategy
    if not all(spec.strategy for spec in (*before, last)):
        raise InvalidRequest(f"{text!r}: `+` must be between two strategies", param="strategy")
    wrong = next((spec.strategy for spec in before if spec.strategy != CLEARING), None)
    if wrong is not None:
        raise InvalidRequest(_CANNOT.format(text=text, wrong=wrong), param="strategy")
    if len(before) > 1 or last.strategy == CLEARING or CLEARING in last.options:
        raise InvalidRequest(f"{text!r}: {CLEARING} appears twice", param="strategy")
    if before[0].budget is not None:
        raise InvalidRequest(f"{text!r}: the budget belongs to the last strategy, as {last.strategy}@N", param=_BUDGET)
    return msgspec.structs.replace(last, options={**last.options, CLEARING: before[0].options or True})
