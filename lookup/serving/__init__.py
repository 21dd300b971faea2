"""Many sessions stepped at once, for engines."""
