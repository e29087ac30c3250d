"""Grading by tests that are assert code, for task sets that bring such tests."""
