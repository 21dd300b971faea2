"""The lookup room: what happens on the CPU between two forwards. numpy and numba only, never torch.

Importing this package loads nothing; import the module that owns the noun (``zerodraft.lookup.copy.ngram_index``).
"""
