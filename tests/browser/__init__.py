"""The page at / in headless Chromium."""
