"""Draw the README's picture: a sweep's table as the terminal shows it, in SVG.

python benchmarks/picture.py multirun/<sweep> benchmarks/sweep.svg
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from cvexp.console import jobs_table
from cvexp.record import load


def main(sweep: Path, picture: Path) -> None:
    """Read the sweep's records and write the picture."""
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True)
    console.print("$ python -m cvexp -m freeze=last,most,full", style="bold", highlight=False)
    console.print(jobs_table(load(sweep)))
    svg = console.export_svg(title="cvexp")
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S))  # fetches no fonts


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
