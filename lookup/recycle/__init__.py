"""Logit recycling: what the target itself named as successors."""
