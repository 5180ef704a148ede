"""`python -m sightline`, and `torchrun -m sightline`: the command line."""

from sightline.cli.entry import main

if __name__ == "__main__":
    main()
