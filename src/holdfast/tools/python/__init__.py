"""The tool `python`: what a model writes runs in a process of its session's own, which is held in.

tool      the tool itself, and what the model is told    kernels   which session has which process, and when one ends
files     files become artifacts, and come back          folders   work folders: made, locked, removed
contents  what an untrusted work folder holds            results   what the model is told, no longer than it may be
process   the process over all its lives                 worker    one of them: frames, signals, output
child     the same from its own side: no Holdfast there  calls     a call's limits, and what came of it
sandbox   what holds it in                               seccomp   which system calls it has
settings  how far the tool may go
"""
