"""Answers without a server: engines in child processes, asked over pipes; see `services.offline.runner`."""
