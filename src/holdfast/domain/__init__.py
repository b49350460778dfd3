"""What things are: messages, a session and its log, state, artifacts, memories, budgets. No await, no clock, no randomness."""
