"""One request: its state, and what a step does with it."""
