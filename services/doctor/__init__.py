"""`muster doctor`: what would run here, what would not, and what to do about it."""
