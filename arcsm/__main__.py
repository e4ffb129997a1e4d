"""`python -m arcsm` is `arcsm`."""

from arcsm.cli import main

if __name__ == "__main__":
    main()
