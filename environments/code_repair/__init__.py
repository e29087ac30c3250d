"""CodeRepair: find and mend a planted bug in a small program."""
