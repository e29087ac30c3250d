"""Terminal: small jobs on files and text, done with shell commands."""
