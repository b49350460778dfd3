"""Store, merge, find and review memories, which are kept across sessions, and determine who said the words of a memory."""
