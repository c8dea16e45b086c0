"""Starts the processes of one node, keeps them alive and stops them in order."""
