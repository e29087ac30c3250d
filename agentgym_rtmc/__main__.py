"""`python -m agentgym_rtmc` is the command line."""

import sys

from agentgym_rtmc.cli import main

if __name__ == "__main__":
    sys.exit(main())
