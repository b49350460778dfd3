"""The digest: what left a working set, condensed to its facts without a model.

pool     what may still be told, from step to step, and the block it is laid in
facts    what is read out of a unit             speech   what people say, and what is worth nothing in it
texts    sentences, tables and listings         weights  what a fact is worth by itself
page     which facts are told, as text, as many as fit
"""
