"""zerodraft inside serving engines."""
