"""`python -m heretix`: the command line, where its script isn't on the path."""

from heretix.cli import main

if __name__ == "__main__":
    main()
