"""Other servers beside ours: how they are installed, started, raced against us and compared."""
