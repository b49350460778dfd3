"""Consolidation: promote memories that were recalled often, well and by different questions, and explain it in a diary."""
