"""The suffix tree: every repetition of one text, and how often each went on how."""
