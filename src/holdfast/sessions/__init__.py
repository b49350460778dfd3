"""Operations on sessions from outside of turns.

catalogue        create, find, search and delete sessions      handle          one session, for users of the library
transfer         export and import                             forks           fork, and rewind to an earlier turn moves
give a session another user, agent or id      carry_over      what a new session knows of an earlier one context_preview
a working set without a model call            history         the messages of user and assistant interruption     a
reply of which only a part was heard        speech          what an agent says outside of turns state            session
state                                 facts           standing facts: list, pin, drop annotations      pins, importance
and refusals                 erasure         erase messages for good explanation      explanations, and how they are
printed        message_explanations  explain messages of a session
"""
