"""python -m cvexp."""

import sys

from cvexp.cli import main

if __name__ == "__main__":
    sys.exit(main())
