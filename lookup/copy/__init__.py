"""Copies: the text, where it repeats, and what an edit replaced in it."""
