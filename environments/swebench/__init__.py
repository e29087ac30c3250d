"""SWE-bench: real repositories and issues, graded by the official harness.

Importing this package imports nothing heavy: swebench itself is loaded where a log is judged, in a process of its own.
"""
