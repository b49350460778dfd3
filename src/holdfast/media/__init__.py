"""Media in messages: kept once a session by their content, bound to their messages by reference.

shapes    where data stand in a part, whichever client wrote it          checks   what a request may bring
parts     part <-> reference                                             store    the seam on the way into a store
leaving   put back where messages leave                                  placing  media lists beside placeholders (mistral.rs)
"""
