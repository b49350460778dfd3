"""Media in messages: where they stand, what they may be, and how they are put back. No I/O."""
