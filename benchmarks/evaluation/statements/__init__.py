"""Measure which labelled statements of a conversation are still in the prompts that each strategy builds.

conversations   reads and checks files             matching   detects a statement in a prompt
figures         computes the results               prompts    builds the prompts of a conversation
"""
