"""SWE-bench: real repositories and issues, graded by the official harness.

Importing this package imports nothing heavy: swebench itself is loaded where a log is judged, in a process of its own.
"""

from agentgym_rtmc.environments.swebench.grading import Grade, grade_log
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

__all__ = ["Grade", "SWEBenchRow", "grade_log"]
