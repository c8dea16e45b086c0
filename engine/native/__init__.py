"""The CPU step in native code: its sources, its build and its use. Pointers cross, torch does not."""
