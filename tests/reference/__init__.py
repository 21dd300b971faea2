"""The oracle: every rule of zerodraft once more, in plain Python, one subject per file.

Nothing here imports the code under test. Slow and obvious on purpose: tests compare the fast code with these files,
never these files with themselves.
"""
