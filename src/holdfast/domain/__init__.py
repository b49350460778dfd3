"""What things are: messages, a session and its log, state, artifacts, memories, budgets. No await, no clock, no randomness.

messages   what is said, and its digests                   session    sessions, entries, calls, compactions, ends
log        how a log grows and is taken back               history    logs that have a past, put up again
reconcile  how what somebody sent relates to a log         heard      how much of a reply was heard
medium     the medium in a part of a message               media      media of messages: references, limits, placeholders
images     what a picture costs                            budget     what a prompt may take
calibration  what a provider's counts teach                state      state by scope
templates  placeholders in what an agent is told           artifact   named, versioned contents
memory     facts that outlive their session                participants  several users of one session
"""
