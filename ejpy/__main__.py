"""`python -m ejpy`: the `ejpy` command, run by the interpreter of one's choice."""

from ejpy.cli.main import main

if __name__ == "__main__":
    main()
