"""A text or a file in, a text or a file out."""
