"""Static pages, served as they are."""
