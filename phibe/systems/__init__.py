"""Processes that can be simulated, with exact answers where they exist."""
