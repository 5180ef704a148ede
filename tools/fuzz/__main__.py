"""`python -m tools.fuzz`: see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tools.fuzz.campaign import Campaign, all_names, judge, make_samples
from tools.fuzz.formats import FORMATS

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz", description="Damaged files through every reader."
    )
    parser.add_argument(
        "--minutes", type=float, help="time limit in minutes (default: 5, unless --cases is given)"
    )
    parser.add_argument("--cases", type=int, help="total number of cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases")
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first case of each format"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "fuzz", help="where findings are saved"
    )
    parser.add_argument(
        "--show", type=Path, metavar="FOLDER", help="check a saved finding again, in this process"
    )
    options = parser.parse_args()
    if options.show is not None:
        return show(options.show)
    names = all_names(options.only)
    minutes = 5.0 if options.minutes is None and options.cases is None else options.minutes
    with tempfile.TemporaryDirectory(prefix="fuzz-samples-") as folder:
        make_samples(Path(folder), names)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        campaign = Campaign(
            Path(folder), names, options.seed, options.first, options.cases, deadline, options.out
        )
        campaign.run(options.workers)
    print(campaign.table())
    return 1 if campaign.findings else 0


def show(saved: Path) -> int:
    kind, text = judge(saved.name.split("-")[0], saved / "case", saved / "sample")
    print(f"{kind}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
