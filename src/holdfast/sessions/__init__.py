"""What is done with sessions from outside of their turns.

catalogue    those of a tenant: made, found, searched, removed     handle     one session, as a user of the library holds it
exporting    exported and imported                         forking    forked, and taken back to an earlier turn
moving       given to another user, agent or id            carry_over what a new one knows of an earlier one
looking      a working set without a call                  history    what user and assistant said
interrupting a reply of which only a part was heard        speaking   what the agent says by itself
state        what stands in the state                      facts      standing facts: listed, pinned, dropped
"""
