"""Operations on sessions that happen outside of turns.

catalogue             create, find, search and delete sessions
handle                one session, for users of the library
session_log           the methods of the handle for the log; reads the live path page by page
log_writes            append, replace, pop, clear, and set pins, importance and refusals outside of turns
fields                check the session fields that callers may set
fit                   fit a conversation into a budget without a session
transfer              export and import
forks                 fork, and rewind to an earlier turn
moves                 give a session another user, agent or id
carry_over            carry an earlier session over into a new one
prompt_lookup         find a prompt: one that was sent, the next one, or one that other settings give
contexts              a prompt in the format of a provider's API
past_prompts          read prompts that were sent
interruption          keep only the part of a reply that was heard
speech                let an agent speak outside of turns
state                 session state
records               values under a namespace and a key
memory_files          open the memory files of a user and an agent
session_list          describe and sort sessions for lists
facts                 standing facts: list, pin, drop
erasure               erase messages permanently
model_calls           list recorded model calls
prompt_sections       divide a prompt into sections, and compare it with an earlier one
prompt_views          show the prompt of a call: sections, messages, marks of the log
explanation           explanations, and their printed form
message_explanations  explain messages of a session

Terms used in this package:

- live path: the messages of a session that are in force, in order. Messages that an edit, an interruption or a rewind removed from the
  live path ("retired" messages) stay in the log, but are no longer sent.
- `seq`: number of a message, or of a note, in the session's log, from 0.
- working set: the messages that are sent to the model in one call.
- view: the cached state from which the next working set is built, for one agent and its settings.
- frontier: position in the log from which all messages are sent verbatim because they are recent. Older messages can be left out.
"""
