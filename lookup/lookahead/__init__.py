"""Lookahead decoding: n-grams that the target guesses in a window."""
