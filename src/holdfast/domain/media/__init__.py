"""Media in messages: their positions, limits and restoration. No I/O."""
