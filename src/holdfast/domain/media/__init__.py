"""Media in messages: checking them, detaching their data, and restoring the data. No I/O."""
