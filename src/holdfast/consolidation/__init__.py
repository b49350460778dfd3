"""Consolidation: promote memories that were recalled often, with good scores and by different questions, and record why in a diary."""
