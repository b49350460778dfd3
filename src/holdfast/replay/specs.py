"""Strategies as written on a command line: `digest`, `digest@2048`, `token_window:preserve_recent=3,target=0.5`.

Compositions are written in the order in which they are applied: `clear_tool_results:keep=2+token_window` clears tool
results, then applies `token_window`.
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
"""Name of a summarizer that stands for no model: the digest is used instead."""
NOBODY: Final = WITHOUT_MODEL | {DIGEST}
"""Names of summarizers that stand for the digest."""
_BUDGET, _SUMMARIZER, _SCORER = "budget", "summarizer_llm", "scorer"
_LARGEST = 999_999_999
_CANNOT: Final = (
    "{text!r}: {wrong} cannot be followed by another strategy; "
    f"only {CLEARING} works before another strategy: {CLEARING}+{{wrong}}"
)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\[[^\[\]]*\]|\{[^{}]*\}|.', re.DOTALL)
"""A JSON string, list or object, which is not split; or any single character."""


class Spec(msgspec.Struct, frozen=True):
    """A strategy with the given keys, including `clear_tool_results` if that is applied first."""

    strategy: str
    options: dict[str, Any] = {}
    """Keys without `budget`."""
    budget: int | None = None
    """Its own budget; None: it uses the budget of the run."""

    @property
    def label(self) -> str:
        """Its name in tables, without the budget; `parse_spec` converts the name back to the same spec."""
        clearing = self.options.get(CLEARING)
        own = _format_spec(self.strategy, {key: value for key, value in self.options.items() if key != CLEARING})
        if clearing is None or clearing is False:
            return own
        return f"{_format_spec(CLEARING, clearing if isinstance(clearing, Mapping) else {})}+{own}"

    @property
    def has_summaries(self) -> bool:
        """True if its strategy makes summaries, with or without a model."""
        return _SUMMARIZER in STRATEGIES[self.strategy].keys

    @property
    def summarizes(self) -> bool:
        """True if its summaries are made by a model, if one is available."""
        return self.has_summaries and self.options.get(_SUMMARIZER) not in NOBODY

    @property
    def summarizer(self) -> str | None:
        """Name of its summarizer; None if none is given."""
        named = self.options.get(_SUMMARIZER)
        return str(named) if self.summarizes and named is not None else None

    def make_settings(self, budget: int, *, where: str = WHERE) -> ContextSettings:
        """Return its settings at a budget, if the strategy takes one.

        Raises:
            InvalidRequest: The strategy or a key is unknown.
        """
        takes = self.strategy in STRATEGIES and _BUDGET in STRATEGIES[self.strategy].keys
        given = {"strategy": self.strategy, **self.options}
        return parse({**given, **({_BUDGET: budget} if takes else {})}, where=where)

    def make_strategy(self, budget: int, *, written: bool = False) -> Strategy:
        """Return its strategy at a budget.

        Args:
            budget: Used if the strategy takes one.
            written: True if a model writes its summaries; otherwise the digest is used instead.
        """
        settings = self.make_settings(budget)
        if self.has_summaries and not (written and self.summarizes):
            settings = ContextSettings(settings.strategy, {**settings.options, _SUMMARIZER: "none"})
        return make_strategy(settings)


def _format_spec(strategy: str, options: Mapping[str, Any]) -> str:
    given = ",".join(f"{key}={_format_value(value)}" for key, value in options.items())
    return f"{strategy}:{given}" if given else strategy


def _format_value(value: Any) -> str:
    """Format a value so that parsing returns it: text is quoted only if it would be parsed as something else."""
    if isinstance(value, str) and _parse_value(value) == value and not set(value) & set(',+"[]{}'):
        return value
    return msgspec.json.encode(value).decode()


# -- reading -----------------------------------------------------------------


def parse_specs(texts: Iterable[str]) -> list[Spec]:
    """Parse comma-separated specs in several texts, without duplicates. A piece `KEY=VALUE` belongs to the spec before it.

    Raises:
        InvalidRequest: A spec is invalid, or a key precedes all strategies.
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
        InvalidRequest: The text is invalid, or this version does not have the strategy or one of its keys.
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
    """Parse a number of tokens.

    Raises:
        InvalidRequest: The text is not such a number.
    """
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise InvalidRequest(f"{text!r} is not a number of tokens; use 1 to {_LARGEST}", param=_BUDGET)
    return int(text)


# -- inside ------------------------------------------------------------------


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
    """Yield specs, each joined with the keys that follow it."""
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
    """Parse one strategy with its keys, without validation."""
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
    """Return `last` combined with the specs before it.

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
