"""Experts spread over ranks: who has which, how tokens get there and back, and how ranks step together."""
