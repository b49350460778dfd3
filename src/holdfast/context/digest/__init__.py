"""The digest: what left a working set, condensed to its facts without a model.

pool      what may still be told, from step to step   facts     what is read out of a unit
lines     what is kept of one source                  texts     sentences and tables
weighing  what a fact is worth by itself              choosing  which facts are told, in which order
page      chosen facts as text, as many as fit
"""
