"""Operations on sessions from outside of turns.

catalogue             create, find, search and delete sessions
handle                one session, for users of the library
transfer              export and import
forks                 fork, and rewind to an earlier turn
moves                 give a session another user, agent or id
carry_over            carry an earlier session over into a new one
context_preview       a working set without a model call
history               the messages of user and assistant
interruption          a reply of which only a part was heard
speech                messages of an agent outside of turns
state                 session state
facts                 standing facts: list, pin, drop
annotations           pins, importance and refusals
erasure               erase messages for good
explanation           explanations, and their printed form
message_explanations  explain messages of a session
"""
