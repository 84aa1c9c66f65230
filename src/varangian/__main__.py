"""`python -m varangian` is the command `varangian`."""

from varangian.cli import main

if __name__ == "__main__":
    main()
