"""The working set: from a session's log to the messages that a model should see."""
