"""The domain model: messages, sessions and their logs, state, artifacts, memories, budgets. No I/O, no clock, no randomness.

messages       messages and their digests
session        sessions, entries, model calls, compactions, endings
log            appending to a log and rewinding it
history        installing the entries of an existing log
origins        entries that are copies of entries of other sessions
interruptions  cutting a reply to the part that was heard
medium         finding and detaching the image, audio, video or file in a part of a message
media          media of messages: references, limits, placeholders
images         token costs of images
budget         token budget of a prompt
calibration    differences between a provider's token counts and ours
state          state by scope
templates      placeholders in agents' texts
artifact       named, versioned contents
memory         facts that outlive their session
fact_choices   statements that a caller pinned or dropped
provider_items items of the Responses API that only their provider can read
refusals       messages that a model's provider refused
"""
