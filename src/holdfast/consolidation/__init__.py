"""Dreams: memories that were recalled often, well and by different questions are promoted, and the diary says why."""
