"""The strategies and their keys: one table of everything that may be set under `context:` and in a request, and its validation.

`holdfast.context.strategies` implements the strategies. This module knows names, types, ranges and defaults, and what requests and API keys
may set.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_whole

DEFAULT_STRATEGY: Final = "digest"
CLEARING: Final = "clear_tool_results"
"""Both a strategy of its own, and a key of all other strategies, which are applied after it."""
RECALL: Final = "recall"
"""The key that says whether a prompt recalls evicted messages of its own session. It stays in force if a request names another strategy."""
RECALLING: Final = frozenset({"digest", "summary_buffer", "salience", CLEARING})
"""Strategies that recall by default."""


_OVER: Final = "before the frontier: over the budget"
_OLDER: Final = "older than the last messages of the window"
_NOT_CONDENSED: Final = "before the frontier: over the budget, and no room to condense it"


class Key(msgspec.Struct, frozen=True):
    """One key of a strategy."""

    kind: Literal["integer", "share", "text", "texts", "flag", "switch", "clearing"]
    """A `share` is a number between 0 and 1, exclusive: 1.0 would leave no room for the next message. A `switch` is `auto`, `on` or `off`;
    YAML reads the last two as true and false. `clearing` is a mapping with the keys of `clear_tool_results`, or true for their defaults, or
    false to switch it off."""
    default: Any
    """The default value; None if `about` describes the default."""
    about: str
    """One line for the documentation, with the unit."""
    low: int = 0
    """Least value of an integer; there is no maximum."""


class StrategySpec(msgspec.Struct, frozen=True):
    """One strategy and its keys."""

    about: str
    keys: Mapping[str, Key] = {}
    left: str = _OVER
    """The reason that `explain` gives for entries that it leaves out; empty if it leaves nothing out."""
    chosen: str = ""
    """The reason that `explain` gives for entries that it chooses from before the newest; empty if it does not choose."""


class ContextSettings(msgspec.Struct, frozen=True):
    """A strategy by name, with the options that were given. The others have the strategy's defaults."""

    strategy: str = DEFAULT_STRATEGY
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Copied, so that the caller's mapping cannot change the frozen settings.
        if not isinstance(self.options, Mapping):
            raise InvalidRequest(f"options must be an object, not {type(self.options).__name__}", param="options")
        msgspec.structs.force_setattr(self, "options", dict(self.options))


class Problem(NamedTuple):
    """One mistake: the key (`""` for the mapping itself), and a message with what is wrong and what is allowed."""

    key: str
    message: str


# -- the table -----------------------------------------------------------------

_RECALL = Key(
    "switch",
    "auto",
    "whether evicted messages are recalled if the current message asks about them: `auto`, `on`, `off`",
)
_WINDOW_SIZE = Key("integer", 20, "messages kept", low=1)
_TARGET = Key("share", 0.33, "share of the budget that is still used after messages were removed")


def _make_budget_key(default: int | None, about: str = "tokens of the conversation") -> Key:
    return Key("integer", default, about, low=1)


MAX_WINDOW: Final = 200_000
"""Tokens of a model's window that are used if no budget is given: in a window of a million tokens no message would ever be evicted, and models find
less in long prompts."""
_MAX_WINDOW = Key("integer", MAX_WINDOW, "maximum tokens of the model's window to use if `budget` is unset", low=1)


def _make_facts_key(*, default: bool) -> Key:
    about = "whether the user's standing facts stay, verbatim, when their messages are removed"
    return Key("flag", default=default, about=about)


_BY_INPUT = "tokens of the conversation; unset: the model's input budget"
_CLEARING_KEYS: Final[Mapping[str, Key]] = {
    "trigger": Key(
        "integer", None, "tokens of the prompt above which results are cleared; unset: when the budget is full", low=1
    ),
    "keep": Key("integer", 3, "newest tool results that stay"),
    "clear_at_least": Key("integer", 4000, "minimum number of tokens to free at a time"),
    "exclude_tools": Key("texts", (), "tools whose results stay"),
    "keep_latest": Key("flag", default=False, about="whether the latest result of each tool stays too"),
}


def _make_spec(
    about: str,
    keys: Mapping[str, Key] = MappingProxyType({}),
    *,
    left: str = _OVER,
    chosen: str = "",
    facts: bool = False,
) -> StrategySpec:
    """Return the specification of a strategy that tool results may be cleared before."""
    clearing = Key("clearing", None, "its keys, or true: older tool results are cleared first; unset: they are not")
    return StrategySpec(
        about, {**keys, "facts": _make_facts_key(default=facts), CLEARING: clearing, RECALL: _RECALL}, left, chosen
    )


_strategies: dict[str, StrategySpec] = {
    "none": _make_spec("everything; refused if it is over the model's window", left=""),
    "buffer_window": _make_spec(
        "the last messages; the task is not kept",
        {
            "window_size": _WINDOW_SIZE,
            "budget": _make_budget_key(None, "maximum tokens of the conversation, as a second limit; unset: none"),
        },
        left=_OLDER,
    ),
    "head_tail": _make_spec(
        "the task, pinned messages and the last messages",
        {
            "window_size": _WINDOW_SIZE,
            "budget": _make_budget_key(None, "maximum tokens of the conversation, as a second limit; unset: none"),
        },
        left=_OLDER,
    ),
    "token_window": _make_spec(
        "the task, pinned messages and the newest messages that fit the budget",
        {
            "budget": _make_budget_key(8000),
            "preserve_recent": Key(
                "integer", 5, "number of newest messages that are shortened before they are removed"
            ),
            "target": _TARGET,
        },
    ),
    "digest": _make_spec(
        "like token_window; removed messages are condensed to their facts, without a model",
        {"budget": _make_budget_key(None, _BY_INPUT), "max_window": _MAX_WINDOW, "target": _TARGET},
        left=_NOT_CONDENSED,
        facts=True,
    ),
    "salience": _make_spec(
        "drops the least important messages first",
        {
            "budget": _make_budget_key(None, _BY_INPUT),
            "max_window": _MAX_WINDOW,
            "target": Key(
                "share",
                None,
                "share of the budget that is still used after a step; unset: from all of a budget of 2,048 tokens down to 0.33 of 8,192",
            ),
            "scorer": Key("text", None, "name of a scorer or an llm that rates messages; unset: built-in signals"),
        },
        left="over the budget, and less important than what stays",
        chosen="important",
        facts=True,
    ),
    "summary_buffer": _make_spec(
        "past the threshold, older messages become one summary, written by a model",
        {
            "budget": _make_budget_key(8000),
            "threshold": Key("share", 0.85, "share of the budget past which a summary is made"),
            "target": Key("share", 0.7, "share of the budget that is used afterwards; less than threshold"),
            "summarizer_llm": Key("text", None, "the llm that writes it; unset: the agent's; `none`: the digest"),
            "prompt": Key("text", None, "the summarizer's prompt; unset: the built-in text"),
        },
        left=_NOT_CONDENSED,
        facts=True,
    ),
    CLEARING: StrategySpec(
        "replaces old tool results with markers; if that is not enough, continues like digest",
        {
            "budget": _make_budget_key(None, _BY_INPUT),
            "max_window": _MAX_WINDOW,
            "facts": _make_facts_key(default=True),
            **_CLEARING_KEYS,
            RECALL: _RECALL,
        },
        left=_NOT_CONDENSED,
    ),
}
STRATEGIES: Final[Mapping[str, StrategySpec]] = MappingProxyType(_strategies)
"""All strategies, including those of the application; see `holdfast.context.strategies`."""
BUILT_IN: Final = frozenset(_strategies)


def add_strategy(name: str) -> None:
    """Add a strategy of the application to the table."""
    _strategies[name] = _make_spec(
        "a strategy of the application",
        {"budget": _make_budget_key(None, _BY_INPUT), "max_window": _MAX_WINDOW},
        left=f"over the budget, and not chosen by the strategy {name}",
        chosen=f"chosen by the strategy {name}",
    )


def remove_strategy(name: str) -> None:
    """Remove a strategy of the application from the table."""
    _strategies.pop(name, None)


# -- parsing -------------------------------------------------------------------


def without_recall(settings: ContextSettings) -> ContextSettings:
    """Return settings that recall only if they say so explicitly: the defaults of other systems do not recall."""
    return ContextSettings(settings.strategy, {RECALL: "off", **settings.options})


def is_recalling(strategy: str, given: object) -> bool:
    """Return True if a strategy recalls with that value of its key `recall`."""
    return strategy in RECALLING if given in ("auto", None) else given in ("on", True)


def parse(given: object, *, where: str = "context", base: ContextSettings | None = None) -> ContextSettings:
    """Parse settings from a mapping with `strategy` and its keys.

        >>> parse({"strategy": "token_window", "budget": 4000})
        ContextSettings(strategy='token_window', options={'budget': 4000})

    Args:
        given: the mapping; None values count as not given.
        where: path of the mapping, for error messages; `""` if its keys are the request's own.
        base: the defaults if `strategy` is not given: its strategy, and its options unless they are given here.

    Raises:
        InvalidRequest: with all mistakes in one message; `param` is the path of the first one.
    """
    settings, problems = examine(given, base=base)
    if not problems:
        return settings
    paths = [".".join(filter(None, (where, problem.key))) for problem in problems]
    text = "; ".join(f"{path}: {problem.message}" for path, problem in zip(paths, problems, strict=True))
    raise InvalidRequest(text, param=paths[0] or None)


def check_settings(settings: Any, *, where: str = "context") -> ContextSettings:
    """Check settings that were made in code, as `parse` checks a mapping, and return them.

    Raises:
        InvalidRequest: the settings are invalid.
    """
    if not isinstance(settings, ContextSettings):
        raise InvalidRequest(f"{where} must be ContextSettings, not {type(settings).__name__}", param=where)
    parse({"strategy": settings.strategy, **settings.options}, where=where)
    return settings


def examine(given: object, *, base: ContextSettings | None = None) -> tuple[ContextSettings, list[Problem]]:
    """Return the valid settings together with all mistakes, for callers that know line numbers; otherwise like `parse`."""
    base = base or ContextSettings()
    if not isinstance(given, Mapping):
        return base, [Problem("", f"expected a mapping with `strategy` and its keys, got {_format_value(given)}")]
    options = {key: value for key, value in given.items() if value is not None}
    strategy = options.pop("strategy", None)
    if strategy is None:
        strategy, inherited = base.strategy, base.options
    elif not isinstance(strategy, str) or strategy not in STRATEGIES:
        return base, [Problem("strategy", _describe_unknown_strategy(strategy))]
    else:
        inherited = {key: value for key, value in base.options.items() if key == RECALL}
    keys = STRATEGIES[strategy].keys
    whose = f"keys of strategy {strategy!r}"
    problems = [wrong for key, value in options.items() for wrong in _find_problems(keys, key, value, whose)]
    wrong = {problem.key.partition(".")[0] for problem in problems}
    if not wrong & {"threshold", "target"}:
        right = {key: value for key, value in options.items() if key not in wrong}
        problems += _find_conflicts(strategy, {**inherited, **right})
        wrong |= {problem.key for problem in problems}
    kept = {key: value for key, value in options.items() if key not in wrong}
    return ContextSettings(strategy, {**inherited, **kept}), problems


def _describe_unknown_strategy(strategy: object) -> str:
    near = difflib.get_close_matches(strategy, STRATEGIES, n=1) if isinstance(strategy, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown strategy {_format_value(strategy)}; {hint}known: {', '.join(STRATEGIES)}"


def _find_problems(keys: Mapping[str, Key], name: str, value: object, whose: str) -> list[Problem]:
    """Return the mistakes in one option and the keys below it."""
    key = keys.get(name)
    if key is None:
        near = difflib.get_close_matches(str(name).replace("-", "_").lower(), keys, n=1)
        if near and near[0] != name:
            return [Problem(name, f"unknown key; did you mean {near[0]!r}?")]
        return [Problem(name, f"unknown key; {whose}: {', '.join(keys) or 'none'}")]
    if key.kind == "clearing" and isinstance(value, Mapping):
        below = [
            wrong
            for inner, what in value.items()
            if what is not None
            for wrong in _find_problems(_CLEARING_KEYS, inner, what, f"keys of {CLEARING}")
        ]
        return [Problem(f"{name}.{problem.key}", problem.message) for problem in below]
    if not _is_valid(key, value):
        return [Problem(name, f"expected {_describe_expected(key)}, got {_format_value(value)}")]
    return []


def _is_valid(key: Key, value: object) -> bool:
    if key.kind in ("flag", "clearing", "switch"):
        return isinstance(value, bool) or (key.kind == "switch" and value in ("auto", "on", "off"))
    if key.kind == "text":
        return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value
    if key.kind == "texts":
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key.kind == "share":
        return 0 < value < 1
    return isinstance(value, int) and value >= key.low


def _describe_expected(key: Key) -> str:
    match key.kind:
        case "flag" | "switch":
            return "true or false" if key.kind == "flag" else "auto, on or off"
        case "clearing":
            return "a mapping with its keys, true or false"
        case "text":
            return "a string that is not empty"
        case "texts":
            return "a list of strings"
        case "share":
            return "a number above 0 and below 1"
        case "integer":
            return f"an integer, at least {key.low}"


def _find_conflicts(strategy: str, options: Mapping[str, Any]) -> list[Problem]:
    """Return the mistakes in options that are valid individually."""
    keys = STRATEGIES[strategy].keys
    if "threshold" not in keys:
        return []
    threshold, target = (options.get(name, keys[name].default) for name in ("threshold", "target"))
    if target < threshold:
        return []
    is_now = f"got {target}" if "target" in options else f"and is {target} unless set"
    return [Problem("target", f"must be less than threshold ({threshold}), {is_now}")]


def _format_value(value: object) -> str:
    """Return a short form of a value for a message. Of a mapping only the type is shown, of a list its first item that is no string."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        odd = [item for item in value if not isinstance(item, str | list | tuple)]
        return f"a list with {_format_value(odd[0])} in it" if odd else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


MODEL_STRATEGIES: Final = frozenset({"summary_buffer"})
"""Strategies that call a model."""
FREE_STRATEGIES: Final = tuple(name for name in STRATEGIES if name not in MODEL_STRATEGIES)
"""Strategies that call no model."""
_BUDGETED: Final = "token_window"
"""Replaces a strategy without a budget if there is a budget to keep."""


class RequestSettings(msgspec.Struct, frozen=True):
    """The settings of the working set in a request and in its API key."""

    strategy: str | None = None
    """The strategy requested."""
    budget: int | None = None
    """The budget requested, in tokens."""
    limit: int | None = None
    """The API key's budget, in tokens."""
    recall: str | bool | None = None
    """The value of `recall` requested: `auto`, `on` or `off`."""

    def check(self, settings: ContextSettings, allowed: Collection[str]) -> None:
        """Reject a request for a strategy or budget that it may not use.

        Args:
            settings: the agent's settings.
            allowed: strategies that a request may name; with the default, strategies of the application are allowed too.

        Raises:
            InvalidRequest: the strategy is unknown or not allowed, or the budget exceeds that of the agent or the API key.
        """
        if self.budget is not None:
            check_whole(self.budget, "budget", 1, MOST)
        if self.recall is not None:
            parse({RECALL: self.recall}, where="")
        if self.strategy is not None:
            parse({"strategy": self.strategy}, where="")
            own = self.strategy not in BUILT_IN and tuple(allowed) == FREE_STRATEGIES
            if self.strategy not in allowed and self.strategy != settings.strategy and not own:
                message = f"strategy {self.strategy!r} is not allowed here; allowed: {', '.join(allowed) or 'none'}"
                raise InvalidRequest(message, param="strategy")
        for whose, limit in (("agent", get_budget(settings)), ("API key", self.limit)):
            if self.budget is not None and limit is not None and self.budget > limit:
                message = f"budget {self.budget:,} is more than the {limit:,} tokens of the {whose}: a request may only lower it"
                raise InvalidRequest(message, param="budget")
        strategy = self.strategy or settings.strategy
        asked = self.strategy is not None or self.budget is not None
        if asked and "budget" not in STRATEGIES[strategy].keys and self._get_smallest_budget(settings) is not None:
            message = f"strategy {strategy!r} has no budget, but at most {self._get_smallest_budget(settings):,} tokens are allowed; name another strategy"
            raise InvalidRequest(message, param="strategy" if self.strategy else "budget")

    def apply(self, settings: ContextSettings) -> ContextSettings:
        """Return the settings for the request; the agent's own object if nothing changes.

        A strategy without a budget is replaced by `token_window` if there is a budget to keep, because an agent that takes over in the
        middle of a turn can no longer reject the request.
        """
        strategy, least = self.strategy or settings.strategy, self._get_smallest_budget(settings)
        if strategy == settings.strategy and least == get_budget(settings) and self.recall is None:
            return settings
        if least is not None and "budget" not in STRATEGIES[strategy].keys:
            strategy = _BUDGETED
        stays = STRATEGIES[strategy].keys if strategy == settings.strategy else (RECALL,)
        options: dict[str, Any] = {key: value for key, value in settings.options.items() if key in stays}
        options |= {} if self.recall is None else {RECALL: self.recall}
        return ContextSettings(strategy, options if least is None else {**options, "budget": least})

    def _get_smallest_budget(self, settings: ContextSettings) -> int | None:
        """Return the smallest budget of request, API key and agent; None if none has one."""
        known = [limit for limit in (self.budget, self.limit, get_budget(settings)) if limit is not None]
        return min(known, default=None)


def get_budget(settings: ContextSettings) -> int | None:
    """Return the budget of settings in tokens, given or by default; None for the model's input budget or no limit."""
    key = STRATEGIES[settings.strategy].keys.get("budget")
    if key is None:
        return None
    budget: int | None = settings.options.get("budget", key.default)
    return budget
