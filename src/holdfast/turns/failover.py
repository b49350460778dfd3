"""What is done about a model that does not answer, before anything of a reply was said: a smaller prompt, or another model.

    build_call -> (settled -> call -> recovered)*

Each model has a view of its own: its window, its counter, its dialect. The prompt for one that stands in is built from the
log as for any turn, so that of the usual one is neither used nor changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.agents import Voice
from holdfast.domain.budget import step_down
from holdfast.errors import (
    BudgetTooSmall,
    ContextTooLong,
    HoldfastError,
    InvalidRequest,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.models import given_up, origin_of
from holdfast.turns.prompting import build_prompt, check_body
from holdfast.turns.refusals import Refusals
from holdfast.turns.turn import Turn

STEPS_DOWN = 3
"""Times that a prompt is made smaller because the provider found it too long."""
PASSED_OVER: Final = "passed_over"
"""The code of an upstream that was not asked, because it cools down."""
OF_KEY: Final = frozenset({401, 402, 403})
"""Refusals of a key, or of what it may do or has paid for."""
OF_OWNER: Final = OF_KEY | {404, 405, 407, 410}
"""Refusals that the server's owner can mend, by configuring an upstream right, and no client by asking otherwise."""


def fails_over(error: HoldfastError) -> bool:
    """Whether another model may be asked after `error`: it says nothing against the request itself.

    A caller's own key that is refused is the caller's affair.
    """
    if isinstance(error, ModelUnavailable | ModelProtocolError | ContextTooLong):
        return True
    of_owner = OF_OWNER - OF_KEY if isinstance(error, ModelError) and error.handed else OF_OWNER
    return isinstance(error, ModelRejected) and error.status in of_owner


async def build_call(turn: Turn) -> None:
    """Build the prompt of the turn's next call: for one that stands in, where its model is to be passed over."""
    own = turn.request.voice
    if len(turn.voices) > 1 and not _available(turn, own):
        if await _stood_in(turn, own, ()):
            return
        await _speak_as(turn, own)
    await build_prompt(turn)


async def _stood_in(turn: Turn, own: Voice, asked: Sequence[Voice]) -> bool:
    """Whether the prompt is another model's by now, which can be asked in place of one that is passed over."""
    for voice in _others(turn, [*asked, own]):
        if _available(turn, voice) and await _built_for(turn, voice) is None:
            turn.roster.upstream(own.llm).failovers += 1
            _tell(turn, own, PASSED_OVER, None)
            return True
    return False


class _Failed(NamedTuple):
    """A model that did not answer."""

    voice: Voice
    error: HoldfastError
    """Without its traceback, whose frames hold the prompt."""


class Recovery:
    """One call of a turn, from failure to failure until somebody answers."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._refused: list[int] = []
        """Tokens of the prompts that the model found too long."""
        self._asked: list[Voice] = []
        self._failed: list[_Failed] = []
        self.refusals = Refusals(turn)

    async def settled(self) -> None:
        """Return when it is settled who is called next: somebody else, where the model is to be passed over by now."""
        turn, own = self._turn, self._turn.request.voice
        if len(turn.voices) == 1 or _available(turn, own) or await _stood_in(turn, own, self._asked):
            return
        if turn.request.voice is not own:
            await _speak_as(turn, own)
            await build_prompt(turn)

    async def recovered(self, error: ModelError | InvalidRequest) -> HoldfastError | None:
        """None when the prompt of another call is built; else what the call as a whole ends with.

        That is the error of the usual model where it failed, else of the first that did, with the others named.
        """
        told: HoldfastError = error
        if isinstance(error, ModelError) and await self.refusals.is_sent_without(error):
            return None
        if isinstance(error, ContextTooLong):
            smaller = await self._smaller(error)
            if smaller is None:
                return None
            told = smaller
        return None if await self._next(told) else self._told(told)

    async def _smaller(self, refusal: ContextTooLong) -> ContextTooLong | None:
        """None when the prompt is built again, smaller; the error where it cannot be."""
        turn = self._turn
        assert turn.working_set is not None, "a prompt was refused"
        self._refused.append(turn.working_set.total_tokens)
        if len(self._refused) > STEPS_DOWN:
            return given_up(refusal, self._refused)
        try:
            await _step_down(turn, refusal)
        except (BudgetTooSmall, InvalidRequest):
            return given_up(refusal, self._refused)
        return None

    async def _next(self, error: HoldfastError) -> bool:
        """Whether another model is found, and its prompt built; those that are passed over come last."""
        turn, own = self._turn, self._turn.request.voice
        # What one that stands in refuses may be right for the next.
        if len(turn.voices) == 1 or not (fails_over(error) or own is not turn.voices[0]):
            return False
        self._note(own, error)
        for voice in sorted(_others(turn, self._asked), key=lambda voice: not _available(turn, voice)):
            if isinstance(error, ContextTooLong) and not await _wider(turn, voice, own, error):
                continue
            why = await _built_for(turn, voice)
            if why is None:
                turn.roster.upstream(own.llm).failovers += 1
                self._refused = []
                return True
            self._note(voice, why)
        return False

    def _note(self, voice: Voice, error: HoldfastError) -> None:
        self._asked.append(voice)
        self._failed.append(_Failed(voice, _apart(error)))
        _tell(self._turn, voice, error.code, error.status if isinstance(error, ModelError) else None)

    def _told(self, error: HoldfastError) -> HoldfastError:
        if len(self._failed) < 2:
            return error
        first, *others = sorted(self._failed, key=lambda failed: failed.voice is not self._turn.voices[0])
        named = "; ".join(f"{failed.voice.llm.name}: {failed.error}" for failed in others)
        told = _apart(first.error, f"{first.error}; nor did those answer that stand in: {named}")
        if isinstance(told, ModelError):
            asked = [wait for one in self._failed if (wait := getattr(one.error, "retry_after", None)) is not None]
            told.retry_after = min(asked, default=None)
        return told


async def _step_down(turn: Turn, refusal: ContextTooLong) -> None:
    """Build the prompt again: for what the refusal teaches of the window, and a tenth below the one that was refused."""
    refused, llm = turn.working_set, turn.request.voice.llm
    assert refused is not None, "a prompt was refused"
    assert refused.request.budget is not None, "a turn's prompt has a budget"
    counted = refused.total_tokens
    turn.learned = turn.engine.learning.refused(llm, counted, refused.request.budget, refusal)
    turn.input_budget = step_down(min(refused.request.input_budget, counted))
    await build_prompt(turn)


# -- who ---------------------------------------------------------------------------


def _others(turn: Turn, asked: Sequence[Voice]) -> list[Voice]:
    """Who may be asked beside these, in order. A caller's own key goes to no other place than it was meant for."""
    place = origin_of(turn.voices[0].llm.client)
    handed = bool(turn.request.headers)
    return [
        voice
        for voice in turn.voices
        if not any(voice is one for one in asked)
        and (not handed or (place is not None and origin_of(voice.llm.client) == place))
    ]


def _available(turn: Turn, voice: Voice) -> bool:
    return turn.roster.upstream(voice.llm).available(turn.engine.clock())


async def _wider(turn: Turn, voice: Voice, own: Voice, refusal: ContextTooLong) -> bool:
    """Whether a model has more room than the `own` one, which refused every prompt."""
    window = refusal.context_limit or own.llm.budget().context_window
    return voice.llm.budget(learned=await turn.engine.learning.of(voice.llm)).context_window > window


async def _built_for(turn: Turn, voice: Voice) -> HoldfastError | None:
    """Build the prompt for another model; why it cannot be."""
    await _speak_as(turn, voice)
    try:
        check_body(voice, turn.request.body, turn.learned)
        await build_prompt(turn)
    except (BudgetTooSmall, InvalidRequest) as exc:
        return exc
    return None


async def _speak_as(turn: Turn, voice: Voice) -> None:
    turn.speak_as(voice, await turn.engine.learning.of(voice.llm))


def _tell(turn: Turn, voice: Voice, code: str, status: int | None) -> None:
    """Have the reply tell who did not answer; once of each way, however many rounds there are."""
    told = {"model": voice.llm.name, "code": code, "status": status}
    if told not in turn.failed:
        turn.failed.append(told)


def _apart(error: HoldfastError, message: str | None = None) -> HoldfastError:
    """The same error without its traceback, with another `message` if one is given."""
    made: Any = type(error).__new__(type(error), str(error) if message is None else message)
    vars(made).update(vars(error))
    return made  # type: ignore[no-any-return]
