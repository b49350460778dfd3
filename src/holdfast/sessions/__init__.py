"""Operations on sessions that happen outside of turns.

catalogue             create, find, search and delete sessions
handle                one session, for users of the library
transfer              export and import
forks                 fork, and rewind to an earlier turn
moves                 give a session another user, agent or id
carry_over            carry an earlier session over into a new one
context_preview       build a working set without calling a model
history               read the live path page by page
interruption          keep only the part of a reply that was heard
speech                let an agent speak outside of turns
state                 session state
facts                 standing facts: list, pin, drop
annotations           pins, importance and refusals
erasure               erase messages permanently
explanation           explanations, and their printed form
message_explanations  explain messages of a session
"""
