"""DataQuestions: questions about small databases, answered with read-only SQL."""
