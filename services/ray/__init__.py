"""Ranks as actors of a Ray cluster; the only home of the module ray."""
