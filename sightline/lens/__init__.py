"""Seeing: what a model attended to, exactly, from the fused run; what that means; and what changes when it is changed.

trace = model.trace("The animal didn't cross the street because it was too tired")
trace.weights(layer=5, head=1)          [query, key]
trace.geometry(layer=5, head=1)         |q|, |k|, cos θ and what each contributes
trace.show()                            in a notebook, a terminal or a file
"""
